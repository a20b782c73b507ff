"""The log: a journal that a kill cannot hurt, sealed into Parquet."""
