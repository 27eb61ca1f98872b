"""The tuner: it finds the fastest of many kernels by measuring them."""
