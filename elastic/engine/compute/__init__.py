"""From tokens to logits to tokens: one packed forward pass and what it reads and writes."""
