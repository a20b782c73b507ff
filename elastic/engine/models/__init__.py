"""Which models the engine serves, and how each is found, made and checked."""
