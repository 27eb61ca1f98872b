"""Storage of mappings: composed, as mixed-radix modes, or enumerated, as a table.

Both forms answer the same queries, for arrays of workers or of tasks at once. A form knows its
full shape only. `Mapping` applies the limit afterwards, which is possible because the mask
depends only on the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isqrt, prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from taskc.dataclass import dataclass
from taskc.ir.reentry import cached_property

Shape = tuple[int, ...]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
Array = TypeVar("Array", Integers, Booleans)


class Mode(NamedTuple):
    """One digit of a worker's or a slot's number; it adds digit * stride to one coordinate."""

    dimension: int | None  # None for replication, whose stride is 0
    size: int
    stride: int


Modes = tuple[Mode, ...]


class Factor(NamedTuple):
    """One constructor of a composition, as written."""

    kind: str
    sizes: Shape
    order: Shape | None = None


def merged(modes: Iterable[Mode]) -> Modes:
    """The unique list of modes, slowest first, for the same function.

    Without size 1 and mergeable neighbours the list is unique: the fastest mode's stride is the
    offset of number 1, and its size is the first number whose offset is not that many strides;
    then the same holds of the rest.
    """
    result: list[Mode] = []
    for mode in modes:
        slower = result[-1] if result else None
        if mode.size == 1:
            continue
        if (
            slower
            and slower.dimension == mode.dimension
            and slower.stride == mode.size * mode.stride
        ):
            result[-1] = Mode(mode.dimension, slower.size * mode.size, mode.stride)
        else:
            result.append(mode)
    return tuple(result)


def scaled(modes: Modes, shape: Shape) -> Modes:
    """The modes with every stride multiplied by the extent of its dimension."""
    return tuple(
        mode
        if mode.dimension is None
        else mode._replace(stride=mode.stride * shape[mode.dimension])
        for mode in modes
    )


def without_suffix(modes: Modes, suffix: Modes, shape: Shape) -> Modes | None:
    """The modes f with merged(scaled(f, shape) + suffix) == modes, or None."""
    rest = list(modes)
    for position in reversed(range(len(suffix))):
        mode = suffix[position]
        if not rest:
            return None
        last = rest.pop()
        if last == mode:
            continue
        # Only the slowest mode of the suffix can have merged with a mode of f.
        count, remainder = divmod(last.size, mode.size)
        if position or remainder or last[::2] != mode[::2]:
            return None
        rest.append(Mode(mode.dimension, count, mode.size * mode.stride))
    if any(mode.dimension is not None and mode.stride % shape[mode.dimension] for mode in rest):
        return None
    return tuple(
        mode
        if mode.dimension is None
        else mode._replace(stride=mode.stride // shape[mode.dimension])
        for mode in rest
    )


def offsets(modes: Modes, numbers: Integers, rank: int) -> Integers:
    """The offset that each number adds to the task, [..., rank]."""
    result = np.zeros((*numbers.shape, rank), dtype=np.int64)
    for mode in reversed(modes):
        numbers, digit = np.divmod(numbers, mode.size)
        if mode.dimension is not None:
            result[..., mode.dimension] += digit * mode.stride
    return result


def number(modes: Modes, coordinates: Sequence[Any]) -> Any:
    """The number whose digits are the coordinates; the lowest such number under replication."""
    result: Any = np.int64(0)
    for mode in modes:
        result = result * mode.size
        if mode.dimension is not None:
            result = result + coordinates[mode.dimension] // mode.stride % mode.size
    return result


def row_major(coordinates: Sequence[Any], shape: Shape) -> Any:
    """The row-major number of each task."""
    result: Any = np.int64(0)
    for coordinate, extent in zip(coordinates, shape, strict=True):
        result = result * extent + coordinate
    return result


@dataclass(frozen=True, slots=True)
class Composed:
    """Task (w, s) is the sum of the offsets of w and s.

    In each dimension the strides of all modes together are 1, a, a * b, … up to the extent: a
    coordinate spells its digits, so every task has an owner, and equally many of them.
    """

    shape: Shape
    worker_modes: Modes
    slot_modes: Modes

    @property
    def workers(self) -> int:
        return prod(mode.size for mode in self.worker_modes)

    @property
    def slots(self) -> int:
        return prod(mode.size for mode in self.slot_modes)

    def tasks(self, workers: Integers) -> Integers:
        """The tasks [worker, slot, rank] of some workers."""
        rank = len(self.shape)
        slots = offsets(self.slot_modes, np.arange(self.slots), rank)
        return offsets(self.worker_modes, workers, rank)[:, None] + slots

    def valid(self, workers: Integers) -> Booleans:
        return np.ones((len(workers), self.slots), dtype=np.bool_)

    def owner(self, coordinates: Sequence[Any]) -> tuple[Any, Any]:
        """The first owner of each task, a worker and a slot."""
        return number(self.worker_modes, coordinates), number(self.slot_modes, coordinates)

    def find(self, workers: Integers, coordinates: Sequence[Any]) -> Any:
        """The slot in which each worker has each task, or -1."""
        worker, slot = self.owner(coordinates)
        place = offsets(self.worker_modes, workers, len(self.shape))
        first = number(self.worker_modes, [place[..., i] for i in range(len(self.shape))])
        return np.where(worker == first, slot, -1)

    def multiplicity(self) -> Integers:
        return np.full(self.shape, self.workers * self.slots // prod(self.shape), dtype=np.int64)

    def times(self, inner: Composed) -> Composed:
        return Composed(
            tuple(a * b for a, b in zip(self.shape, inner.shape, strict=True)),
            merged(scaled(self.worker_modes, inner.shape) + inner.worker_modes),
            merged(scaled(self.slot_modes, inner.shape) + inner.slot_modes),
        )

    def over(self, inner: Composed) -> Composed | None:
        """The one form f with f.times(inner) == self, or None; the shape has to be a multiple."""
        worker_modes = without_suffix(self.worker_modes, inner.worker_modes, inner.shape)
        slot_modes = without_suffix(self.slot_modes, inner.slot_modes, inner.shape)
        if worker_modes is None or slot_modes is None:
            return None
        shape = tuple(a // b for a, b in zip(self.shape, inner.shape, strict=True))
        return Composed(shape, worker_modes, slot_modes)

    def project(self, kept: Shape) -> Composed:
        place = {old: new for new, old in enumerate(kept)}
        worker_modes = (
            mode._replace(dimension=place[mode.dimension])
            if mode.dimension in place
            else Mode(None, mode.size, 0)
            for mode in self.worker_modes
        )
        slot_modes = (
            mode._replace(dimension=place[mode.dimension])
            for mode in self.slot_modes
            if mode.dimension in place
        )
        shape = tuple(self.shape[i] for i in kept)
        return Composed(shape, merged(worker_modes), merged(slot_modes))

    def same_owners(self, other: Composed) -> bool:
        # The tasks of worker 0 determine the slots' offsets, and those the offset of each worker.
        def in_order(modes: Modes) -> Modes:
            return merged(sorted(modes, key=lambda mode: (mode.dimension, -mode.stride)))

        return (self.shape, self.worker_modes) == (other.shape, other.worker_modes) and (
            in_order(self.slot_modes) == in_order(other.slot_modes)
        )


@dataclass(frozen=True, eq=False)
class Enumerated:
    """A table of tasks [worker, slot, rank], and the mask of (worker, slot) pairs that have one."""

    shape: Shape
    table: Integers
    mask: Booleans

    @property
    def workers(self) -> int:
        return len(self.mask)

    @property
    def slots(self) -> int:
        return int(self.mask.shape[1])

    def tasks(self, workers: Integers) -> Integers:
        return self.table[workers]

    def valid(self, workers: Integers) -> Booleans:
        return self.mask[workers]

    def owner(self, coordinates: Sequence[Any]) -> tuple[Any, Any]:
        pair = self._first_pairs[row_major(coordinates, self.shape)]
        worker, slot = np.divmod(pair, max(self.slots, 1))
        return np.where(pair < 0, -1, worker), np.where(pair < 0, -1, slot)

    def find(self, workers: Integers, coordinates: Sequence[Any]) -> Any:
        keys, slots = self._keys
        wanted = workers * prod(self.shape) + row_major(coordinates, self.shape)
        if not keys.size:
            return np.full(np.shape(wanted), -1)
        position = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        return np.where(keys[position] == wanted, slots[position], -1)

    def multiplicity(self) -> Integers:
        count = np.bincount(self._numbers[self.mask], minlength=prod(self.shape))
        return count.reshape(self.shape).astype(np.int64)

    @cached_property
    def _numbers(self) -> Integers:
        coordinates = [self.table[..., i] for i in range(len(self.shape))]
        return np.broadcast_to(row_major(coordinates, self.shape), self.mask.shape)

    @cached_property
    def _first_pairs(self) -> Integers:
        """For each task's number the first worker * slots + slot, or -1."""
        numbers, first = np.unique(self._numbers[self.mask], return_index=True)
        result = np.full(prod(self.shape), -1, dtype=np.int64)
        result[numbers] = np.flatnonzero(self.mask)[first]
        return result

    @cached_property
    def _keys(self) -> tuple[Integers, Integers]:
        """Worker and task as one ascending number, with its slot; the first slot comes first."""
        worker, slot = np.nonzero(self.mask)
        keys = worker * prod(self.shape) + self._numbers[self.mask]
        order = np.argsort(keys, kind="stable")
        return keys[order], slot[order]

    def times(self, inner: Enumerated) -> Enumerated:
        shape = tuple(a * b for a, b in zip(self.shape, inner.shape, strict=True))
        extents = np.array(inner.shape, dtype=np.int64)
        table = self.table[:, None, :, None] * extents + inner.table[None, :, None]
        mask = self.mask[:, None, :, None] & inner.mask[None, :, None]
        pairs = self.workers * inner.workers, self.slots * inner.slots
        return table_form(shape, table.reshape(*pairs, len(shape)), mask.reshape(pairs))

    def over(self, inner: Enumerated) -> Enumerated | None:
        """The only possible f with f.times(inner) == self, to be checked by the caller; or None."""
        held = np.argwhere(inner.mask)
        if not len(held) or self.slots % inner.slots:
            return None
        worker, slot = held[0]
        pairs = np.s_[worker :: inner.workers, slot :: inner.slots]
        extents = np.array(inner.shape, dtype=np.int64)
        table = (self.table[pairs] - inner.table[worker, slot]) // extents
        shape = tuple(a // b for a, b in zip(self.shape, inner.shape, strict=True))
        return table_form(shape, table, self.mask[pairs])

    def same_owners(self, other: Enumerated) -> bool:
        slots = max(self.slots, other.slots)
        return np.array_equal(self._sorted_numbers(slots), other._sorted_numbers(slots))

    def _sorted_numbers(self, slots: int) -> Integers:
        """Each worker's task numbers ascending, padded with a number that no task has."""
        result = np.full((self.workers, slots), prod(self.shape), dtype=np.int64)
        result[:, : self.slots][self.mask] = self._numbers[self.mask]
        return np.sort(result, axis=1)


def table_form(shape: Shape, table: Integers, mask: Booleans) -> Enumerated:
    """An enumerated form; empty slots read as zeros, so that equal functions have equal tables."""
    return Enumerated(shape, read_only(table * mask[..., None]), read_only(mask))


def read_only(array: Array) -> Array:
    array.setflags(write=False)
    return array


# --- How `auto_map` divides its workers among the dimensions ------------------------------------


def coalesced_split(shape: Shape, workers: int) -> Shape:
    """The extents of the tile of workers, whose product is `workers`, that steps over a shape.

    A masked task costs an issue slot and a broken row costs bandwidth. So a tile may take up to a
    quarter more steps than the best one if that makes its rows longer. Of these tiles the longest
    row within the shape wins, then the fewest steps. Workers that are left over come last in the
    numbering: they exceed the shape in the outermost dimension, so whole warps of them idle. Then
    the most workers in the innermost dimension win, then in the one before it.
    """
    steps = {tile: prod(rounded_quotient(shape, tile)) for tile in _tiles(workers, len(shape))}
    fewest = min(steps.values())
    return min(
        (tile for tile in steps if 4 * steps[tile] <= 5 * fewest),
        key=lambda tile: (
            -min(tile[-1], shape[-1]),
            steps[tile],
            [max(0, extent - size) for extent, size in zip(tile[::-1], shape[::-1], strict=True)],
            [-extent for extent in reversed(tile)],
        ),
    )


def rounded_quotient(shape: Shape, tile: Shape) -> Shape:
    """The number of tiles that cover the shape, by dimension."""
    return tuple(-(-a // b) for a, b in zip(shape, tile, strict=True))


def _tiles(workers: int, rank: int) -> Iterator[Shape]:
    """All ordered factorizations of a number."""
    if rank == 1:
        yield (workers,)
        return
    for extent in _divisors(workers):
        for rest in _tiles(workers // extent, rank - 1):
            yield (extent, *rest)


def _divisors(number: int) -> list[int]:
    small = [i for i in range(1, isqrt(number) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})


# --- What is asked of a mapping's arguments, and the error that names the numbers ---------------


class MappingError(ValueError):
    """An invalid mapping, or a query without an answer."""


def checked_integer(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise MappingError(f"{what} must be an integer; got {value!r}")
    return int(value)


def checked_sizes(asker: str, sizes: Sequence[Any]) -> Shape:
    for size in sizes:
        if hasattr(type(size), "__index__") and not isinstance(size, (int, np.integer)):
            raise MappingError(
                f"{asker}({joined(sizes)}) is the same at all calls, and {size} is known only at one; "
                "go through it in tiles, as in `for start in tc.tiles(n, by=32)` or `range(0, n, 32)`"
            )
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise MappingError(
                f"{asker}({joined(sizes)}) needs integers of at least 1; got {size!r}"
            )
    return tuple(int(size) for size in sizes)


def checked_order(asker: str, sizes: Shape, order: Sequence[Any]) -> Shape:
    dimensions = tuple(checked_integer(i, "a dimension") for i in order)
    if sorted(dimensions) != list(range(len(sizes))):
        raise MappingError(
            f"{asker}({joined(sizes)}) needs each dimension of 0..{len(sizes) - 1} once in its "
            f"order; got {dimensions}"
        )
    return dimensions


def checked_task(task: Sequence[Any], shape: Shape, where: str) -> Shape:
    coordinates = tuple(checked_integer(coordinate, "a coordinate") for coordinate in task)
    if len(coordinates) != len(shape) or not is_inside(coordinates, shape):
        raise MappingError(f"{where}{coordinates} is outside the shape {shape}")
    return coordinates


def is_inside(task: Shape, shape: Shape) -> bool:
    return all(0 <= i < extent for i, extent in zip(task, shape, strict=True))


def fits(shape: Shape, outer: Shape) -> bool:
    return all(a <= b for a, b in zip(shape, outer, strict=True))


def joined(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))
