"""`tc.cuda`: SIMT kernels. They are below phases: their author places the barriers.

Besides what is declared here, every operation of `taskc.ir.operations` has its name, with underscores for dots:
`cp_async`, `shuffle_xor`. Type checkers and editors read `cuda.pyi`, which is made of these names.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from inspect import Parameter, Signature
from typing import Any, TypeVar

from taskc.ir.operations import OFFERED, Operation
from taskc.lang.definition import cuda_kernel as kernel
from taskc.lang.names import INTRINSICS, Intrinsic, in_kernels, word_for

V = TypeVar("V")


@in_kernels
def barriers(count: int) -> Any:
    """An array of `count` mbarriers in shared memory."""


@in_kernels
def roles() -> AbstractContextManager[None]:
    """A block of roles, which run concurrently; together they have all the workers of the kernel."""


@in_kernels
def role(name: str, *, warps: int) -> AbstractContextManager[None]:
    """The code of some warps while the other roles run theirs: `with tc.cuda.role("producer", warps=1):`."""


@in_kernels
def cluster_rank() -> Any:
    """The block's number in its cluster, row-major."""


@in_kernels
def cluster_sync() -> None:
    """A barrier of all workers of all blocks of the cluster."""


@in_kernels
def peer(buffer: V, rank: Any) -> V:
    """The copy of a `tc.shared` or `tc.cuda.barriers` buffer in the block of that rank of the cluster."""


@in_kernels
def grid_sync() -> None:
    """A barrier of all workers of all blocks; global stores before it are visible to all of them after it."""


@in_kernels
def ptx(dtype: type[V], text: str, *operands: Any, meaning: Callable[..., Any]) -> V:
    """The value that PTX computes from its operands: the result is `%0` in the text, and they are `%1`, `%2`, …

    meaning  what the text computes, as a lambda or a `@tc.function` of the operands: the simulator evaluates it
    """


@in_kernels
def load_acquire(element: V) -> V:
    """Loads an element of 4 or 8 bytes; after it the worker sees all stores before this value's `store_release`."""


@in_kernels
def store_release(element: Any, value: Any) -> None:
    """Stores an element of 4 or 8 bytes after all earlier stores of its worker."""


@in_kernels
def syncwarp() -> None:
    """A barrier of a warp, 32 consecutive workers."""


@in_kernels
def syncrole() -> None:
    """A barrier of the workers of a role."""


@in_kernels
def wgmma(acc: Any, a: Any, b: Any, *, accumulate: Any = True) -> None:
    """Starts a matrix product of a warpgroup: fences, commit and wait are the author's.

    accumulate  where it is false, the product starts from zero
    """


def _offer(operation: Operation) -> Intrinsic:
    """The function for an operation of the target: operands are positional, and the last one may be variadic."""
    kinds: dict[str, int] = {}
    parameters = []
    for operand in operation.operands:
        kind = operand.rstrip("*")
        kinds[kind] = kinds.get(kind, 0) + 1
        way = Parameter.VAR_POSITIONAL if operand.endswith("*") else Parameter.POSITIONAL_ONLY
        name = f"{kind}s" if operand.endswith("*") else f"{kind}{kinds[kind]}"
        parameters.append(Parameter(name, way, annotation=Any))
    declared = Signature(parameters, return_annotation=None if operation.result is None else Any)
    name = operation.name.replace(".", "_")
    return Intrinsic(
        f"cuda.{name}", declared, f"{operation.meaning}\n\nBy: {operation.participants}."
    )


globals().update({row.name.replace(".", "_"): _offer(row) for row in OFFERED})

__all__ = ["kernel", *(name[5:] for name in INTRINSICS if name.startswith("cuda."))]


def __getattr__(name: str) -> Intrinsic:
    said, word = f"there is no tc.cuda.{name}", word_for(name)
    if word:
        # Python adds a hint of its own, unless the error has no name.
        raise AttributeError(f"{said}; {word}", name=None)
    raise AttributeError(said)


def __dir__() -> list[str]:
    return sorted(__all__)
