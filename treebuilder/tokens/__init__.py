"""Token ids in one tree."""
