"""Trees as arrays."""
