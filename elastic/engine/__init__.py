"""The embedded engine: transformers behind OpenAI's wires, with exact ids, live weights and movable KV."""
