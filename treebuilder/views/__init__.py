"""Trees for people: one, all of them, two builds compared."""
