"""The log: an Arrow IPC journal that a kill cannot hurt, sealed into Parquet."""
