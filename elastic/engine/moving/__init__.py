"""A conversation's keys and values from one engine to another."""
