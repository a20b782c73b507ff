"""Executions rebuilt as prefix-sharing trajectory trees."""
