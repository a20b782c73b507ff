"""What each engine can say about its tokens, and how it is asked and cut out again."""
