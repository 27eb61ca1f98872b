"""IR to IR, one pass a file."""
