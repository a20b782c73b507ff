"""Modules that engines import into their own processes: nothing of gyre may be imported here."""
