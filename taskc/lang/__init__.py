"""Python source to IR: the body of a kernel is parsed, never run."""
