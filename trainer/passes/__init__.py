"""Forward and backward over packed trees."""
