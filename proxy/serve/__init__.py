"""The processes of a proxy: one server, or several workers under a supervisor."""
