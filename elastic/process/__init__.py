"""Programs under supervision: whatever they start ends with them."""
