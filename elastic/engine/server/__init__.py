"""The engine over HTTP: OpenAI's wires with vLLM's field names, and the control calls."""
