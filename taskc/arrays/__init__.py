"""What a call is given: arrays of NumPy, PyTorch, JAX, packed or on a device; and how they fit parameters."""
