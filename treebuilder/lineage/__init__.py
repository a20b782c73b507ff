"""Typed links between calls, with evidence: which call goes on from which, and why."""
