"""Trees on disk: docs/tree-format.md."""
