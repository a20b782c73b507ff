"""Proof that trees are what their log says."""
