"""Arrays of a call (NumPy, PyTorch, JAX, packed or on a device), and how they fit parameters."""
