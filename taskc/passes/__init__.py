"""Passes from IR to IR, one pass a file."""
