"""A program in this process: its plans in the form that c/program.c executes, and the arenas of its calls.

A plan, a frame or an arena is allocated where a call finds none free: for new sizes, and for each simultaneous
call. All are freed with the program. From the second set of sizes on, plans are resized (`taskc.programs.resize`).
Where a program's only size grows from call to call, compiled code adapts the words of one plan for the most.

`timed` times the calls of a program one by one in a normal run: a frame's step function is replaced by one that reads
the clock, and the cost of reading it, some 30 ns, is subtracted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from time import perf_counter_ns
from typing import Any, TypeAlias

import numpy as np

from taskc.arrays.packed import packed
from taskc.backend.cpu.compile import LoadedKernel, words_of
from taskc.backend.cpu.entry import GIVEN_UP, python_function
from taskc.backend.cpu.pool import pool
from taskc.backend.limits import LimitError, current_limits
from taskc.errors import InternalError, assert_never
from taskc.format import bytes_text
from taskc.ir import nodes as ir
from taskc.ir.affine import affine
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Tensor, Variable
from taskc.ir.reentry import Turn
from taskc.ir.spans import span
from taskc.programs.ir import Program
from taskc.programs.plan import (
    Given,
    InArena,
    InConstant,
    Jump,
    Plan,
    PlannedCall,
    PlannedStep,
    Word,
    deciding,
)
from taskc.programs.resize import SizeWord, is_resizable, roomy, size_words

Busy: TypeAlias = Callable[[int, Sequence[int]], int]

_MOST_PLANS = 256  # sets of sizes, and of roomy ones; with one more, all plans are dropped
_PAGE = 4096
_NOT_READY, _NO_MEMORY = -1, -2  # status of run_program
_ALL = 1 << 31  # number of threads: all there are

_turn = Turn()  # taken while a program's plans, frames or arenas change


class _Structure(ctypes.Structure):
    """A structure that c/program.c reads by address. It never moves, and its owner keeps alive what it points to."""

    @property
    def address(self) -> int:
        return ctypes.addressof(self)


class ProgramMemory(_Structure):
    """`program`."""

    _fields_ = (("plans", ctypes.c_void_p), ("arenas", ctypes.c_void_p))


class _PlanMemory(_Structure):
    """`plan`."""

    _fields_ = (
        ("next", ctypes.c_void_p),
        ("keys", ctypes.c_int64), ("key", ctypes.c_void_p),
        ("bytes", ctypes.c_int64), ("frames", ctypes.c_void_p),
        ("patches", ctypes.c_int64), ("patch", ctypes.c_void_p),
        ("moves", ctypes.c_int64), ("move", ctypes.c_void_p),
        ("growing", ctypes.c_int64), ("grows", ctypes.c_int64), ("grow", ctypes.c_void_p),
    )  # fmt: skip


_KEPT = (("next", ctypes.c_void_p), ("busy", ctypes.c_int64), ("bytes", ctypes.c_int64))


class _ArenaMemory(_Structure):
    """`arena`."""

    _fields_ = (*_KEPT, ("memory", ctypes.c_void_p))


class _FrameMemory(_Structure):
    """`frame`."""

    _fields_ = (
        *_KEPT,
        ("words", ctypes.c_void_p),
        ("count", ctypes.c_int64), ("steps", ctypes.c_void_p),
        ("scratch", ctypes.c_int64), ("step", ctypes.c_void_p),
        ("arena", ctypes.c_void_p), ("moved", ctypes.c_void_p),
        ("helpers", ctypes.c_int64), ("size", ctypes.c_int64),
    )  # fmt: skip


class ProgramArena:
    """Page-aligned memory for the temporaries of one call at a time."""

    def __init__(self, size: int) -> None:
        self.memory = np.empty(size + _PAGE, np.uint8)
        self.node = _ArenaMemory(bytes=size)
        self.node.memory = -(-self.memory.ctypes.data // _PAGE) * _PAGE


class _PlanFrame:
    """The words of all calls of a plan, for one call of the program at a time."""

    def __init__(self, plan: LoadedPlan, step: int, helpers: int) -> None:
        self.words = plan.words.copy()
        starts = self.words.ctypes.data + 8 * plan.starts
        job, begin, count, number, beside = plan.code
        none = np.zeros_like(job)
        columns = [job, starts[:-1], begin, none, count, starts[1:] - 8, number, beside]
        self.steps = np.stack(columns, axis=1)  # `call`
        self.node = _FrameMemory(
            words=self.words.ctypes.data,
            count=len(self.steps),
            steps=self.steps.ctypes.data,
            scratch=plan.scratch,
            step=step,
            helpers=helpers,
            size=plan.size,
        )


class LoadedPlan:
    """A plan's constant words, and the positions of the words that each call fills in.

    code    the columns of `call` that are the same for all frames
    starts  where each step's words begin, which end with a status word; then the end of all words
    given   positions of addresses that the caller gives, each with the parameter's number and an offset
    moved   positions of addresses in the arena, each with an offset
    size    the size that grows, if one does
    """

    size = 0

    def __init__(
        self, plan: Plan, kernels: Sequence[LoadedKernel], constants: Sequence[int], key: np.ndarray
    ) -> None:
        used = [kernels[call.kernel] for call in plan.calls]
        self.scratch = max((loaded.compiled.scratch for loaded in used), default=0)
        self.arena = plan.arena
        words = [_words_of(step) for step in plan.steps]
        code = [_code_of(step, kernels) for step in plan.steps]
        self.code = np.array(code, np.int64).reshape(-1, 5).T
        self.starts = np.cumsum([0, *[len(step_words) + 1 for step_words in words]])
        self.words = np.zeros(self.starts[-1], np.uint64)
        patches: list[tuple[int, int, int]] = []
        moves: list[tuple[int, int]] = []
        for start, step_words in zip(self.starts, words, strict=False):
            for number, word in enumerate(step_words, start=int(start)):
                match word:
                    case Given():
                        patches.append((number, word.parameter, word.offset))
                    case InArena():
                        moves.append((number, word.offset))
                    case InConstant():
                        self.words[number] = constants[word.number] + word.offset
                    case int():
                        self.words[number] = word % 2**64
        self.given, self.moved = _table(patches, 3), _table(moves, 2)
        self._publish(key)

    def _publish(self, key: np.ndarray) -> None:
        self.frames: list[_PlanFrame] = []
        self.key = key
        self.node = _PlanMemory(
            keys=len(self.key), key=self.key.ctypes.data, bytes=self.arena,
            patches=len(self.given), patch=self.given.ctypes.data,
            moves=len(self.moved), move=self.moved.ctypes.data, growing=-1,
        )  # fmt: skip

    def let_grow(self, number: int, most: int, growth: np.ndarray) -> None:
        """Serve sizes below `most`, too: `growth` has numbers of words, and how much each grows with the size."""
        self.size, self.growth = most, growth
        self.node.growing, self.node.grows = number, len(growth)
        self.node.grow = growth.ctypes.data

    def changed(self, numbers: np.ndarray, changes: np.ndarray, key: np.ndarray) -> LoadedPlan:
        """The same plan for other sizes: `changes` are added to the words, or to the offsets, of these numbers."""
        by_word = np.zeros(len(self.words), np.int64)
        by_word[numbers] = changes
        plan = copy(self)
        plan.given, plan.moved = self.given.copy(), self.moved.copy()
        for table in (plan.given, plan.moved):
            table[:, -1] += by_word[table[:, 0]]
            by_word[table[:, 0]] = 0
        plan.words = self.words + by_word.view(np.uint64)
        plan._publish(key)
        return plan

    def add_frame(self, step: int, threads: int = _ALL) -> None:
        frame = _PlanFrame(self, step, threads - 1)
        frame.node.next = self.node.frames
        self.frames.append(frame)
        self.node.frames = frame.node.address

    @property
    def is_idle(self) -> bool:
        return not any(frame.node.busy for frame in self.frames)


def _words_of(step: PlannedStep) -> tuple[Word, ...]:
    match step:
        case PlannedCall():
            return step.words
        case Jump():
            return () if step.unless is None else (step.unless,)
        case _:
            return assert_never(step)


def _code_of(step: PlannedStep, kernels: Sequence[LoadedKernel]) -> tuple[int, int, int, int, int]:
    """A step's columns in `call`: job, begin, count, kernel, beside."""
    match step:
        case PlannedCall():
            library = kernels[step.kernel].library
            return library["job"], 0, library["count"], step.kernel, step.beside
        case Jump():
            return 0, step.to, 0, step.unless is not None, -1
        case _:
            return assert_never(step)


class _RoomyPlan:
    """A plan for sizes rounded up, from which those for smaller sizes are made."""

    def __init__(
        self,
        plan: Plan,
        loaded: LoadedPlan,
        words: Sequence[SizeWord],
        sizes: Mapping[Variable, Any],
    ) -> None:
        steps = {number: step for step, number in enumerate(plan.order)}
        self._loaded = loaded
        self._numbers = np.array([loaded.starts[steps[one.call]] + one.word for one in words], int)
        distinct = {str(one.size): one.size for one in words}
        self._sizes = [*distinct.values()]
        places = {text: place for place, text in enumerate(distinct)}
        self._places = np.array([places[str(one.size)] for one in words], int)
        self._scales = np.array([one.scale for one in words], np.int64)
        self._values = self._values_at(sizes)

    def _values_at(self, sizes: Mapping[Variable, Any]) -> np.ndarray:
        return np.array([extent_value(size, sizes) for size in self._sizes], np.int64)

    def growth(self, dimension: Variable) -> np.ndarray | None:
        """The words that grow with a dimension, and by how much; None where one does otherwise, or is an address."""
        forms = [affine(size) for size in self._sizes]
        if any(form.terms.keys() - {dimension} for form in forms):
            return None
        slopes = np.array([form.coefficient(dimension) for form in forms], np.int64)
        addresses = np.concatenate([self._loaded.given[:, 0], self._loaded.moved[:, 0]])
        if np.isin(self._numbers, addresses).any():
            return None
        return np.stack([self._numbers, slopes[self._places] * self._scales], axis=1)

    def at(self, sizes: Mapping[Variable, Any], key: np.ndarray) -> LoadedPlan:
        """The plan for sizes that are no larger."""
        less = self._values_at(sizes) - self._values
        return self._loaded.changed(self._numbers, less[self._places] * self._scales, key)


def _table(rows: Sequence[tuple[int, ...]], columns: int) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, columns)


class LoadedProgram:
    """A program whose kernels are loaded.

    kernels  in a plan's order
    planned  makes the plan for given sizes and number of threads, from the number of threads that each call can use
    """

    def __init__(
        self,
        program: Program,
        kernels: Sequence[LoadedKernel],
        planned: Callable[[Mapping[ir.Variable, Any], int, Busy], Plan],
    ) -> None:
        self.program = program
        self.kernels = kernels
        self.arenas: list[ProgramArena] = []
        self._planned = planned
        self._constants = [np.ascontiguousarray(memory) for _, memory in program.constants]
        items = [*program.parameters, *program.dimensions]
        self._deciding = [(items.index(item), item) for item in deciding(program)]
        self._plans: dict[tuple[int, ...], LoadedPlan] = {}
        self._roomy: dict[tuple[int, ...], _RoomyPlan | None] = {}
        sizes = [item for _, item in self._deciding]
        # The most that the only size is expected to be, as long as one plan may serve all smaller ones.
        self._most = sizes[0].most if len(sizes) == 1 else None
        self._limits = current_limits()
        self._left: list[LoadedPlan] = []  # plans that were dropped while calls still ran on them
        self._node = ProgramMemory()
        # Set when the threads start, with the first run.
        self._begin: Callable[[int, int], int | None] | None = None
        self._run: Callable[[int], int] | None = None

    def run(self, values: Sequence[Any], dimensions: dict[ir.Variable, int]) -> int:
        """Run on arguments that fit. Returns 0, or the failed assertion's number, with its kernel in the upper half."""
        with packed(self.program.parameters, values) as passed:
            words = words_of(self.program, passed, dimensions)
            while True:
                frame, owner = self._ready(words)
                code = self._run_frame(frame)
                del owner
                if code == _NO_MEMORY:
                    raise MemoryError("no scratch memory")
                if code == GIVEN_UP:
                    pool().raise_again()
                if code != _NOT_READY:
                    return code
                most = max((loaded.compiled.scratch for loaded in self.kernels), default=0)
                pool().prepare(most)

    @span("run")
    def _run_frame(self, frame: int) -> int:
        if self._run is None:
            address = pool().library["run_program"]
            self._run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address)
        return self._run(frame)

    def _ready(self, words: np.ndarray) -> tuple[int, LoadedProgram]:
        """A free frame for these words, and the program that owns it.

        Another thread may take a frame that was just added; then one more is added. A call that interrupts a change of
        the plans runs on a program of its own.
        """
        if self._begin is None:
            kind = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
            self._begin = kind(pool().library["begin"])
        while True:
            frame = self._begin(self._node.address, words.ctypes.data)
            if frame:
                return frame, self
            with _turn.taken() as is_alone:
                if not is_alone:
                    program = LoadedProgram(self.program, self.kernels, self._planned)
                    program._limits = self._limits
                    program._make_room(words)
                    return program._ready(words)
                self._make_room(words)

    def _make_room(self, words: np.ndarray) -> None:
        """Allocate what the last attempt lacked: a plan, a frame or an arena."""
        plan = self._growing(words) or self._plans.get(self._key(words)) or self._add_plan(words)
        if all(frame.node.busy for frame in plan.frames):
            plan.add_frame(pool().step, self._limits.threads or _ALL)
        size = plan.node.bytes
        if all(arena.node.busy or arena.node.bytes < size for arena in self.arenas):
            self._add_arena(size)

    def _key(self, words: np.ndarray) -> tuple[int, ...]:
        return tuple([int(words[number]) for number, _ in self._deciding])

    def _resized(self, words: np.ndarray) -> LoadedPlan | None:
        """The plan for the sizes among these words, made from one for roomy sizes; None for the first sizes.

        Of sizes that grow from call to call the first plan is made from one for the most.
        """
        is_first = not self._plans and all(own.most is None for own in self.program.dimensions)
        if is_first or self._limits.memory is not None or not self._size_words:
            return None
        sizes = dict(zip([item for _, item in self._deciding], self._key(words), strict=True))
        roomy_sizes = {
            item: roomy(size, item) if item in self.program.dimensions else size
            for item, size in sizes.items()
        }
        roomy_key = tuple(roomy_sizes.values())
        if roomy_key not in self._roomy:
            plan = self.plan(roomy_sizes)
            loaded = self.in_memory(plan, words)
            self._roomy[roomy_key] = (
                _RoomyPlan(plan, loaded, self._size_words, roomy_sizes)
                if is_resizable(self.program, plan)
                else None
            )
        roomy_plan = self._roomy[roomy_key]
        return None if roomy_plan is None else roomy_plan.at(sizes, self._pairs(words))

    def _growing(self, words: np.ndarray) -> LoadedPlan | None:
        """The one plan for all sizes up to the most that is expected; None where there is none."""
        most = self._most
        if most is None or self._limits.memory is not None or self._key(words)[0] > most:
            return None
        if (most,) not in self._plans:
            ((number, dimension),) = self._deciding
            words = words.copy()
            words[number] = most
            plan = self.planned_for(words)
            loaded, growth = self.in_memory(plan, words), None
            if self._size_words is not None and is_resizable(self.program, plan):
                sized = _RoomyPlan(plan, loaded, self._size_words, {dimension: most})
                growth = sized.growth(dimension)
            if growth is None:
                self._most = None
                return None
            loaded.let_grow(number, most, growth)
            self._publish(loaded, (most,))
        return self._plans[most,]

    @cached_property
    def _size_words(self) -> list[SizeWord] | None:
        """The words that depend on sizes; None if plans can't be resized."""
        return size_words(self.program)

    def planned_for(self, words: np.ndarray, threads: int | None = None) -> Plan:
        """The plan for the sizes among these words."""
        pairs = zip(self._deciding, self._key(words), strict=True)
        return self.plan({item: size for (_, item), size in pairs}, threads)

    def _add_plan(self, words: np.ndarray) -> LoadedPlan:
        plan = self._resized(words) or self.in_memory(self.planned_for(words), words)
        self._publish(plan, self._key(words))
        return plan

    def _publish(self, plan: LoadedPlan, key: tuple[int, ...]) -> None:
        if len(self._plans) >= _MOST_PLANS:
            self._node.plans = None  # calls find none of them from now on
            self._left = [old for old in (*self._left, *self._plans.values()) if not old.is_idle]
            self._plans.clear()
        if len(self._roomy) > _MOST_PLANS:
            self._roomy.clear()
        plan.node.next = self._node.plans
        self._plans[key] = plan
        self._node.plans = plan.node.address

    def plan(self, sizes: Mapping[ir.Variable, Any], threads: int | None = None) -> Plan:
        """The plan for given sizes, and for `threads`, by default as many as it may use."""
        if threads is None:
            threads = min(pool().threads, self._limits.threads or _ALL)
        with span("plan"):
            return self._planned(sizes, threads, self._busy)

    def _busy(self, kernel: int, words: Sequence[int]) -> int:
        """The number of threads that a call keeps busy; 0 where it is too quick for more than one."""
        return max(0, self.kernels[kernel].count(np.array(words, np.uint64)))

    def in_memory(self, plan: Plan, words: np.ndarray) -> LoadedPlan:
        """Load a plan, or a part of one, for the sizes among these words."""
        constants = [memory.ctypes.data for memory in self._constants]
        return LoadedPlan(plan, self.kernels, constants, self._pairs(words))

    def _pairs(self, words: np.ndarray) -> np.ndarray:
        """The words that a plan is looked up by, each with its position."""
        return _table([(number, int(words[number])) for number, _ in self._deciding], 2)

    def _add_arena(self, size: int) -> None:
        """Add an arena, and drop the smaller ones that are free.

        Touching new pages costs time. So the arena is twice as large as the dropped ones, with the surplus untouched:
        as the sizes of calls grow, all pages are new only now and then.
        """
        self._check_memory(size)
        self._node.arenas = None
        dropped = [arena.node.bytes for arena in self.arenas if not arena.node.busy]
        self.arenas = [arena for arena in self.arenas if arena.node.busy]
        ample = 2 * max(dropped, default=0) if self._limits.memory is None else 0
        self.arenas.append(ProgramArena(max(size, ample)))
        for arena, following in zip(self.arenas, [*self.arenas[1:], None], strict=True):
            arena.node.next = following and following.node.address
        self._node.arenas = self.arenas[0].node.address

    def _check_memory(self, size: int) -> None:
        most = self._limits.memory
        constants = sum(memory.nbytes for memory in self._constants)
        busy = sum(arena.node.bytes for arena in self.arenas if arena.node.busy)
        if most is not None and constants + busy + size > most:
            beside = f", beside {bytes_text(busy, 'MiB')} of calls that run" if busy else ""
            raise LimitError(
                f"'{self.program.name}' takes {bytes_text(constants, 'MiB')} for constants and"
                f" {bytes_text(size, 'MiB')} for temporaries{beside}, and is limited to {bytes_text(most, 'MiB')}"
            )

    def entry(
        self, slow: Callable[..., Any], failed: Callable[[int], Any]
    ) -> Callable[..., Any] | None:
        """A compiled Python function, as for a kernel; plans, too, are found by compiled code."""
        return python_function(self.program, [self._node.address], slow, failed, self)


_WARM = 3  # rounds that don't count
_EMPTY_STEPS = 1000  # steps that measure the cost of reading the clock

_measuring = Turn()  # simultaneous measurements would disturb each other


def timed(
    program: LoadedProgram, values: Sequence[Any], dimensions: dict[Variable, int], rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each call of the single-threaded plan, a row for each round; and seconds of the whole program.

    The whole program runs without stamps. A call that takes less than the clock's jitter may come out negative.
    The arguments have been run before, so that no assertion fails. Arguments written in place are restored before
    each round.
    """
    pool().prepare(max((loaded.compiled.scratch for loaded in program.kernels), default=0))
    with packed(program.program.parameters, values) as passed, _measuring.taken():
        words = words_of(program.program, passed, dimensions)
        whole_plan, one_by_one = program.planned_for(words), program.planned_for(words, threads=1)
        arena = ProgramArena(max(whole_plan.arena, one_by_one.arena))
        stamps = _Stamps(len(one_by_one.calls))
        plain = _TimedFrame(program.in_memory(whole_plan, words), arena, pool().step)
        stamping = _TimedFrame(program.in_memory(one_by_one, words), arena, stamps.step)
        in_place = [
            (value, np.array(value))
            for item, value in zip(program.program.parameters, passed, strict=True)
            if isinstance(item, Tensor) and item.role == "inout"
        ]
        calls, whole = [], []
        for _ in range(_WARM + rounds):
            _put_back(in_place)
            before = perf_counter_ns()
            plain.run(words)
            whole.append(perf_counter_ns() - before)
            _put_back(in_place)
            calls.append(stamps.of(lambda: stamping.run(words), len(one_by_one.calls)))
        _put_back(in_place)
    return np.array(calls[_WARM:]) * 1e-9, np.array(whole[_WARM:]) * 1e-9


def _put_back(in_place: Sequence[tuple[Any, np.ndarray]]) -> None:
    for value, before in in_place:
        np.copyto(np.asarray(value), before)


class _Stamps:
    """Clock readings between steps; `step` is the address of the function that replaces the pool's."""

    def __init__(self, most: int) -> None:
        self._library = pool().library
        self._table = np.zeros(max(most, _EMPTY_STEPS) + 1, np.int64)
        self._set("stamps", self._table.ctypes.data)
        self.step = self._library["stamped"]
        nothing = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._library["stamp_nothing"])
        self._own = 0.0
        self._own = float(np.median(self.of(lambda: nothing(_EMPTY_STEPS), _EMPTY_STEPS)))

    def _set(self, name: str, value: int) -> None:
        ctypes.c_int64.from_address(self._library[name]).value = value

    def of(self, run: Callable[[], object], steps: int) -> np.ndarray:
        """The nanoseconds of each step that `run` executes."""
        self._set("taken", 0)
        run()
        return np.diff(self._table[: steps + 1]) - self._own


class _TimedFrame:
    """A plan that runs with the given step function."""

    def __init__(self, plan: LoadedPlan, arena: ProgramArena, step: int) -> None:
        plan.add_frame(step)
        self._kept = plan, arena  # kept alive, since they are read by address
        self._node = ProgramMemory(plans=plan.node.address, arenas=arena.node.address)
        begin = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
        self._begin, self._run = begin(pool().library["begin"]), run(pool().library["run_program"])

    def run(self, words: np.ndarray) -> None:
        frame = self._begin(self._node.address, words.ctypes.data)
        if not frame:
            raise InternalError("a plan has no frame or no arena")
        code = self._run(frame)
        if code == GIVEN_UP:
            pool().raise_again()
        if code:
            raise InternalError(f"a program that ran before ended with {code}")
