"""One optimizer step, and what surrounds it."""
