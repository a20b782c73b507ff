"""The control API: what can be asked of a running proxy, and said to it."""
