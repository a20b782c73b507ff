"""The recording proxy: agents talk through it, and every call is on disk with exact token ids."""
