"""Journal and Parquet read as one log."""
