"""Trees in the formats of trainers and viewers."""
