"""Who has which tasks: the questions that a mapping answers. What the words mean is told in taskc/ir/mapping.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from taskc.ir.cached import cached_property
from taskc.ir.mapping_checks import (
    MappingError,
    checked_integer,
    checked_sizes,
    checked_task,
    fits,
    is_inside,
    joined,
)
from taskc.ir.mapping_forms import (
    Booleans,
    Composed,
    Enumerated,
    Integers,
    Modes,
    Shape,
    read_only,
)


@dataclass(frozen=True, eq=False, repr=False)
class Owners:
    form: Composed | Enumerated
    limit: Shape | None = None  # tasks outside are masked; never equal to the shape

    @property
    def shape(self) -> Shape:
        return self.form.shape

    @property
    def iterated(self) -> Shape:
        """The shape whose tasks are done: the limit where there is one."""
        return self.limit or self.shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def workers(self) -> int:
        return self.form.workers

    @cached_property
    def slots(self) -> int:
        """The length of the longest worker's list, empty slots included."""
        return self.form.slots

    @property
    def is_composed(self) -> bool:
        return isinstance(self.form, Composed)

    @property
    def worker_modes(self) -> Modes | None:
        """The digits of a worker's number, slowest first; None where enumerated."""
        return self.form.worker_modes if isinstance(self.form, Composed) else None

    @property
    def slot_modes(self) -> Modes | None:
        """The digits of a slot's number, slowest first; None where enumerated."""
        return self.form.slot_modes if isinstance(self.form, Composed) else None

    @cached_property
    def tasks(self) -> Integers:
        """All tasks, [worker, slot, rank]; zeros in empty slots."""
        tasks = self.form.tasks(np.arange(self.workers))
        return read_only(tasks if self.valid.all() else tasks * self.valid[..., None])

    @cached_property
    def valid(self) -> Booleans:
        """Which slots hold a task, [worker, slot]."""
        return read_only(self._valid_of(np.arange(self.workers)))

    def _valid_of(self, workers: Integers) -> Booleans:
        valid = self.form.valid(workers)
        if self.limit is not None:
            valid = valid & (self.form.tasks(workers) < self.limit).all(axis=-1)
        return valid

    @cached_property
    def _enumerated(self) -> Enumerated:
        return Enumerated(self.shape, self.tasks, self.valid)

    @property
    def _key(self) -> tuple[Shape, Shape, int, int]:
        return self.shape, self.iterated, self.workers, self.slots

    @property
    def name(self) -> str:
        """The mapping in a message, where an enumeration would be too long."""
        return str(self) if self.is_composed else f"mapping({self.shape}, {self.workers}, …)"

    # Questions.

    def __call__(self, worker: int) -> list[Shape]:
        """This worker's tasks in order, empty slots left out."""
        worker = checked_integer(worker, "a worker")
        if not 0 <= worker < self.workers:
            raise MappingError(f"worker {worker} is outside 0..{self.workers - 1} of {self.name}")
        which = np.array([worker])
        return [tuple(task) for task in self.form.tasks(which)[self._valid_of(which)].tolist()]

    def owner(self, task: Sequence[int]) -> tuple[int, int]:
        """The worker and the slot that hold a task; the first ones where it is replicated."""
        task = checked_task(task, self.shape, "task ")
        worker, slot = self.form.owner(task)
        if worker < 0 or not is_inside(task, self.iterated):
            raise MappingError(f"no worker has task {task} in {self.name}")
        return int(worker), int(slot)

    def owner_table(self) -> tuple[Integers, Integers]:
        """The workers and the slots that own each task first, of the full shape; -1 for nobody."""
        return self._owners

    @cached_property
    def _owners(self) -> tuple[Integers, Integers]:
        coordinates = np.indices(self.shape, sparse=True)
        inside = self._inside_limit(coordinates)
        worker, slot = (
            np.broadcast_to(np.where(inside, number, -1), self.shape)
            for number in self.form.owner(coordinates)
        )
        return read_only(worker), read_only(slot)

    def _inside_limit(self, coordinates: Sequence[Any]) -> Any:
        inside: Any = np.True_
        for coordinate, extent in zip(coordinates, self.iterated, strict=True):
            inside = inside & (coordinate >= 0) & (coordinate < extent)
        return inside

    def find(self, workers: ArrayLike, tasks: ArrayLike) -> Integers:
        """The slot where workers[...] hold tasks[..., rank], broadcast; -1 where they don't."""
        workers, tasks = np.asarray(workers, np.int64), np.asarray(tasks, np.int64)
        if not tasks.ndim or tasks.shape[-1] != self.rank:
            raise MappingError(
                f"tasks of {self.name} have {self.rank} coordinates; "
                f"got an array of shape {tasks.shape}"
            )
        known = (workers >= 0) & (workers < self.workers)
        inside = self._inside_limit([tasks[..., i] for i in range(self.rank)])
        safe = tasks * inside[..., None]
        slot = self.form.find(workers * known, [safe[..., i] for i in range(self.rank)])
        if not (known.all() and inside.all()):  # slot may be large
            slot = np.where(known & inside, slot, -1)
        return np.broadcast_to(slot, np.broadcast_shapes(workers.shape, tasks.shape[:-1]))

    def multiplicity(self) -> Integers:
        """How many (worker, slot) pairs hold each task, an array of the full shape."""
        inside = self._inside_limit(np.indices(self.shape, sparse=True))
        return np.asarray(np.where(inside, self.form.multiplicity(), 0))

    def covers(self, shape: Sequence[int]) -> bool:
        """Every task of the shape has an owner."""
        shape = self._same_rank(shape, "covers")
        if self.is_composed or not fits(shape, self.shape):
            return fits(shape, self.iterated)
        return bool(self.multiplicity()[tuple(map(slice, shape))].all())

    @cached_property
    def is_replicated(self) -> bool:
        """Some task has two owners."""
        if self.is_composed:
            return self.workers * self.slots > prod(self.shape)
        return bool((self.multiplicity() > 1).any())

    def is_bijection(self, shape: Sequence[int]) -> bool:
        """Every task of the shape has exactly one owner, and no other task has any."""
        if not self.covers(shape):
            return False
        if self.is_composed:
            return self.iterated == tuple(shape) and not self.is_replicated
        return int(np.count_nonzero(self.valid)) == prod(shape)

    def same_owners(self, other: Owners) -> bool:
        """Each worker has the same tasks in both, in any order of slots."""
        if self._key[:3] != other._key[:3]:
            return False
        f, g = self.form, other.form
        if isinstance(f, Composed) and isinstance(g, Composed):
            if f.same_owners(g):
                return True
            if self.limit is None:  # a limit can mask the difference
                return False
        return self._enumerated.same_owners(other._enumerated)

    def _same_rank(self, shape: Sequence[int], asker: str) -> Shape:
        sizes = checked_sizes(asker, shape)
        if len(sizes) != self.rank:
            raise MappingError(
                f"{asker}({joined(sizes)}) has rank {len(sizes)}, but {self.name} has {self.rank}"
            )
        return sizes
