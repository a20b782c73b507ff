"""Who is computed next, with which memory."""
