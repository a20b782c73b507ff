"""The `gyre` command: a thin shell over the other parts."""
