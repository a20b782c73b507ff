"""Executions: a harness on a task, from its start to its score. Knows no torch."""
