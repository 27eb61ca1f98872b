"""A GEMM as a problem, whichever algorithm computes it: c[..., m, n] = epilogue(a[..., m, k] @ b[..., k, n]).

The operands, their order and their types are written down here; the epilogue is what epilogue.py makes of a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import taskc as tc
from taskc import CompileError, DType, TensorType, repeat, spatial
from taskc.dataclass import dataclass
from taskc.kernels.epilogue import Epilogue
from taskc.kernels.padding import pitch
from taskc.kernels.signatures import (
    Decorator,
    Extent,
    Function,
    Made,
    Value,
    Values,
    with_types,
)

Extents = Sequence[Extent]
Activation = Callable[[Any], Any]
Types = tuple[DType, DType, DType]  # of both operands and the sum

MOST_BATCH_AXES = 3


@dataclass(frozen=True, slots=True)
class Gathered:
    """A left operand that isn't laid out as a matrix: the pixels that a filter covers, for one (implicit GEMM).

    type     of what it is gathered from
    load     load(tall, depth) is a function of a, row and q: the block value of so many rows and steps of k
    in_bulk  whether bulk copies can gather it
    """

    type: TensorType
    load: Callable[[int, int], Function]
    in_bulk: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """right, total, result  the types of b, of sums and offsets, and of c
    transpose_a, transpose_b  a is given as [k, m], b as [n, k]
    packed      b comes in the order in which the kernel reads it
    turned      it is packed from [n, k]
    by_rows     bias and scale are of c's rows, not of its columns
    by          what operands are rounded to as they are multiplied
    batch       what stands in front of the last two axes, of a and of b; they broadcast
    pitched     the rows of a and b have zeros behind them, up to their `pitch`
    gathered    a isn't given as a matrix
    """

    m: Extent
    n: Extent
    k: Extent
    dtype: DType
    right: DType
    total: DType
    result: DType
    transpose_a: bool = False
    transpose_b: bool = False
    packed: bool = False
    bias: bool = False
    scale: bool = False
    residual: bool = False
    by_rows: bool = False
    activation: Activation | None = None
    by: DType | None = None
    batch: tuple[tuple[Extent, ...], tuple[Extent, ...]] = ((), ())
    pitched: bool = False
    gathered: Gathered | None = None
    turned: bool = False

    def __post_init__(self) -> None:
        if self.packed and (self.transpose_b or self.batch[1]):
            raise CompileError("a packed operand has an order of its own, and no batch axes")
        _check_batch(*self.batch)

    @property
    def wide(self) -> DType:
        """The type of sums, which are in registers."""
        return self.total

    @property
    def multiplied(self) -> Types:
        """The types that a matrix instruction is asked for."""
        return self.by or self.dtype, self.by or self.right, self.total

    @property
    def batches(self) -> tuple[Extent, ...]:
        """The batch axes of the result."""
        rank = max(len(axes) for axes in self.batch)
        pairs = zip(*(padded(axes, rank) for axes in self.batch), strict=True)
        return tuple([other if is_(one, 1) else one for one, other in pairs])

    @property
    def is_joined(self) -> bool:
        """Whether the rows of all products are counted as those of one: b is the same for all."""
        return isinstance(self.m, int) and all(is_(n, 1) for n in self.batch[1])

    @property
    def products(self) -> Extent:
        return 1 if self.is_joined else prod(self.batches)

    @property
    def height(self) -> Extent:
        """Rows of a product."""
        return prod(self.batches) * self.m if self.is_joined else self.m

    @property
    def types(self) -> tuple[TensorType, TensorType, tuple[TensorType, ...], TensorType]:
        """Of a, b, what else an element of c is made of, and c."""
        m, n, k = self.m, self.n, self.k
        rows = ((k, m) if self.transpose_a else (m, k)), ((n, k) if self.transpose_b else (k, n))
        kinds = self.dtype, self.right
        a, b = (
            TensorType(kind, (*axes, row, pitch(columns, kind) if self.pitched else columns))
            for kind, axes, (row, columns) in zip(kinds, self.batch, rows, strict=True)
        )
        further = tuple([kind for kinds in self.of_sums.operands for kind in kinds])
        return self.gathered.type if self.gathered else a, b, further, self.of_sums.made

    @property
    def left_at(self) -> Function:
        """An element of the matrix a."""

        return tc.function(lambda a, i, q: a[q, i] if self.transpose_a else a[i, q])

    @property
    def right_at(self) -> Function:
        """An element of the matrix b."""

        return tc.function(lambda b, q, j: b[j, q] if self.transpose_b else b[q, j])

    @property
    def counted(self) -> tuple[Extent, ...]:
        """How many products there are, where there are batch axes."""
        return () if self.batch == ((), ()) else (self.products,)

    @property
    def place(self) -> Function:
        """Which product a row belongs to, and which one of that product's it is."""
        is_joined = self.is_joined and len(self.counted) > 0

        return tc.function(
            lambda number, i: ((i // self.m,), i % self.m) if is_joined else (number, i)
        )

    def element_of(self, own: Extents) -> Function:
        """All indices of a matrix's element: a function of the product's number, if any, and of the last two."""
        once = [is_(extent, 1) for extent in padded(own, MOST_BATCH_AXES)]
        # Of an empty axis no element is asked for.
        whole = padded(self.batches, MOST_BATCH_AXES)
        first, middle, last = [1 if is_(extent, 0) else extent for extent in whole]
        inner, rank = prod((middle, last)), len(own)
        is_alone = is_(prod((first, middle)), 1)

        @tc.function
        def axes(number: Value) -> Any:
            return (
                0 if once[0] else number // inner,
                0 if once[1] else number // last if is_(first, 1) else number // last % middle,
                0 if once[2] else number if is_alone else number % last,
            )[-rank:]

        return tc.function(lambda number, i, j: (*axes(*number), i, j) if rank else (i, j))

    @property
    def operand(self) -> Function:
        """An element of a for a sum; behind the last row, an element of the last."""
        of_a, place = self.element_of(self.batch[0]), self.place

        @tc.function
        def operand(a: Value, number: Value, i: Value, q: Value) -> Any:
            owner, row = place(number, min(i, self.height - 1))
            if self.transpose_a:
                return a[of_a(owner, q, row)].to(self.total)
            else:
                return a[of_a(owner, row, q)].to(self.total)

        return operand

    @property
    def of_sums(self) -> Epilogue:
        return Epilogue(
            bias=self.bias, scale=self.scale, residual=self.residual, activation=self.activation,
            total=self.total, made=TensorType(self.result, (*self.batches, self.m, self.n)),
            features=self.m if self.by_rows else self.n,
        )  # fmt: skip

    @property
    def epilogue(self) -> Function:
        """An element of c, from its sum, the further operands, its column, and its indices."""
        function = self.of_sums.function

        @tc.function
        def epilogue(value: Value, further: Values, j: Value, at: Values) -> Any:
            return function(value, further, at[-2] if self.by_rows else j, at)

        return epilogue

    def kernel(
        self, workers: int, blocks: Function, packed: TensorType | None = None
    ) -> tc.KernelDefinition:
        """blocks(a, b, further, c) as a kernel, with the parameters that the problem has.

        packed  b's type where it is packed
        """
        packs: dict[str, Any] | None = {"b": (self.k, self.n)} if self.packed else None
        if packed is not None and self.turned:
            packs = {"b": self._turning(workers, packed)}
        decorate = tc.kernel(workers=workers, packs=packs)
        return self._defined(decorate, blocks, packed or self.types[1])

    def _turning(self, workers: int, packed: TensorType) -> tc.KernelDefinition:
        """Puts b, given as [n, k], into the order of a type, with zeros behind its ends."""
        given, n, k = self.right[self.n, self.k], self.n, self.k
        depth, columns = packed.shape
        own = repeat(16, 1) * spatial(1, workers)

        @tc.kernel(workers=workers)
        def pack_rows(b: tc.typed[given], panels: tc.typed[tc.out[packed]]) -> None:
            for q, col in tc.tiles((depth, columns), by=own.shape):
                for i, j in own:
                    if q + i < depth and col + j < columns:
                        value = self.right(0)
                        if q + i < k and col + j < n:
                            value = b[col + j, q + i]
                        panels[q + i, col + j] = value

        return pack_rows

    def program(self, steps: Function) -> tc.ProgramDefinition:
        """steps(a, b, further, c) as a program, with the parameters that the problem has."""
        return self._defined(tc.program, steps, self.types[1])

    def _defined(self, decorate: Decorator[Made], run: Function, right: TensorType) -> Made:
        left, _, _, made = self.types
        offset, scale, residue = self.of_sums.operands

        @decorate
        def matmul(
            a: tc.typed[left],
            b: tc.typed[right],
            offsets: tc.typed[offset],
            scales: tc.typed[scale],
            residual: tc.typed[residue],
            c: tc.out[made],
        ) -> None:
            run(a, b, (*offsets, *scales, *residual), c)

        return matmul


def problem_of(m: Extent, n: Extent, k: Extent, dtype: DType, **options: Any) -> Problem:
    """Complete the options of a call: signatures.py has the default types."""
    if options.get("packed") and options.get("transpose_b"):
        options |= {"transpose_b": False, "turned": True}
    return Problem(**with_types({"m": m, "n": n, "k": k, "dtype": dtype, **options}))


def _check_batch(a: Extents, b: Extents) -> None:
    rank = max(len(a), len(b))
    if rank > MOST_BATCH_AXES:
        raise CompileError(
            f"products have at most {MOST_BATCH_AXES} batch axes, and these {rank}",
            hint="neighbours that both operands have, or that one has, are one axis as well",
        )
    for one, other in zip(padded(a, rank), padded(b, rank), strict=True):
        if not (is_(one, 1) or is_(other, 1) or one is other or one == other):
            raise CompileError(
                f"the batch axes {tuple(a)} and {tuple(b)} can't be broadcast",
                hint=f"an axis has the extents {one}, {other}",
            )


def is_(extent: Extent, number: int) -> bool:
    """Whether an extent is known to be this number."""
    return isinstance(extent, int) and extent == number


def padded(extents: Extents, rank: int) -> tuple[Extent, ...]:
    """Puts extents of 1 in front."""
    return (1,) * (rank - len(extents)) + tuple(extents)
