"""Cells of hardware that serve rollouts or train, and the engines inside them."""
