"""`product` is an entry of taskc.kernels.matmul; this is its public path."""

from taskc.kernels.matmul import product

__all__ = ["product"]
