"""`Tiling` is a plan of taskc.kernels.matmul; this is its public path."""

from taskc.kernels.matmul import Tiling

__all__ = ["Tiling"]
