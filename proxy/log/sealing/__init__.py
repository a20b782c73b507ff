"""From the journal to Parquet."""
