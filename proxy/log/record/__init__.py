"""From finished calls to the journal."""
