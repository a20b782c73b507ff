"""GSPO over trajectory trees."""
