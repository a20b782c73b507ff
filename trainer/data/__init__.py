"""Trees as training takes them."""
