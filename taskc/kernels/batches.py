"""`batch_matmul` is an entry of taskc.kernels.matmul; this is its public path."""

from taskc.kernels.matmul import batch_matmul

__all__ = ["batch_matmul"]
