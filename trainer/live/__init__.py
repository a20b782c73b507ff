"""A live run: executions, trees, updates and publications, again and again. loop.py is its entry."""
