"""From a call's arrays to a compiled program: by the arrays' types, and by elements that decide what is compiled.

`Served` keeps programs, and asks a source for one that it does not have. A source traces a graph, loads a bundle, or
looks into a cache before it traces.

    call -> fast(arrays)    arrays of types that a checked call had, or that its program serves, too: no other check
         -> find(arrays)    checked arrays: a kept program, or the source's

A checked call takes tens of microseconds, a fast one two or three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from taskc.arrays.device import AnyArray
from taskc.dataclass import dataclass
from taskc.ir.extents import compute
from taskc.ir.reentry import Turn
from taskc.programs.definition import ProgramDefinition
from taskc.runtime import user_passes

_MAX_PROGRAMS = 64

Array: TypeAlias = np.ndarray[Any, Any]
Types: TypeAlias = tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
Arrays: TypeAlias = Mapping[str, AnyArray]  # by the names of a graph's inputs
FastCall: TypeAlias = Callable[[Sequence[Any]], list[Any]]  # from all arrays to all outputs

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


def keep(kept: dict[_Key, _Item], key: _Key, item: _Item, most: int) -> list[_Item]:
    """Make an item the most recent, and drop the oldest of more than `most`; returns the dropped ones."""
    kept.pop(key, None)
    kept[key] = item
    dropped = [kept.pop(old, None) for old in [*kept][:-most]]
    return [old for old in dropped if old is not None]


# --- Programs of graphs -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CountedOutput:
    """An output of a program, followed by one that holds the number of valid elements along an axis."""

    name: str
    axis: int


class Condition:
    """Whether types of arrays are served. Calls with new shapes ask it, so it is compiled.

    text    a Python expression of the types, `t`, and of numbered data types, `d0`, `d1`, ...:
            "len(t[0][1]) == 2 and (n0 := t[0][1][1]) > 0 and t[0] == (d0, (1, n0,))"
    """

    def __init__(self, text: str, dtypes: Sequence[np.dtype[Any]]) -> None:
        self.text = text
        self.dtypes = tuple(dtypes)
        scope = {"compute": compute, **{f"d{k}": dtype for k, dtype in enumerate(self.dtypes)}}
        self._holds: Callable[[Types], bool] = eval(f"lambda t: {text}", scope)

    def __call__(self, types: Types) -> bool:
        return self._holds(types)


# The name of a program's output, or an array that doesn't depend on inputs.
Output: TypeAlias = str | CountedOutput | Array


@dataclass(frozen=True, slots=True, eq=False)
class Runnable:
    """A program of a graph.

    program  None if all outputs are constants
    inputs   the graph's inputs that it takes; the elements of others decided what was compiled
    outputs  the source of each of the graph's outputs
    serves   whether `inputs` of these types are served; None if only those are that it was found for
    """

    program: Any
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    serves: Condition | None = field(default=None, kw_only=True)


def outputs_of(
    runnable: Runnable, arrays: Arrays, call: Callable[[list[AnyArray]], Any]
) -> list[Any]:
    """The graph's outputs for arrays by the names of its inputs; `call` runs the program."""
    is_known = all(isinstance(output, np.ndarray) for output in runnable.outputs)
    returned = () if is_known else call([arrays[name] for name in runnable.inputs])
    return arrays_of(runnable.outputs, returned)


def fast_call(runnable: Runnable, names: Sequence[str]) -> FastCall:
    """A function from arrays by position to the graph's outputs, on the processor."""
    program, outputs = runnable.program, runnable.outputs
    order = [names.index(name) for name in runnable.inputs]
    if all(isinstance(output, np.ndarray) for output in outputs):
        return lambda arrays: arrays_of(outputs, ())
    if not all(isinstance(output, str) for output in outputs):
        return lambda arrays: arrays_of(outputs, program(*[arrays[place] for place in order]))
    is_one = len(outputs) == 1

    def run(arrays: Sequence[Any]) -> list[Any]:
        results = program(*[arrays[place] for place in order])
        return [results] if is_one else [*results]

    return run


def arrays_of(outputs: Sequence[Output], returned: Any) -> list[Any]:
    """A graph's outputs, from those of its program; a known one is copied, as its owner may change it."""
    parts, arrays = iter(returned if isinstance(returned, tuple) else (returned,)), []
    for output in outputs:
        match output:
            case str():
                arrays.append(next(parts))
            case CountedOutput():
                most, (count,) = on_host(next(parts)), on_host(next(parts))
                arrays.append(most[(slice(None),) * output.axis + (slice(count),)].copy())
            case _:
                arrays.append(output.copy())
    return arrays


def on_host(array: AnyArray) -> Array:
    """The array in CPU memory."""
    return array if isinstance(array, np.ndarray) else array.numpy()


# --- Which one a call gets ----------------------------------------------------------------------


class ProgramFinder(Protocol):
    def find(self, arrays: Arrays, *, is_traced: bool) -> Runnable | None:
        """The program for arrays like these, or None; `is_traced` asks for one that isn't loaded, if there can be."""


@dataclass(slots=True, eq=False)
class ServedProgram:
    """A kept program, and the types that it was found for.

    values  the elements that arrays at some positions must have, as bytes
    others  the positions of the other arrays, which the program takes
    fast    the call without checks; None until a checked call has compiled it
    """

    runnable: Runnable
    types: Types
    values: tuple[tuple[int, bytes], ...]
    others: tuple[int, ...]
    fast: FastCall | None = None

    def serves(self, types: Types, arrays: Sequence[AnyArray]) -> bool:
        """Whether arrays of these types, under which it was looked up, are served."""
        serves = self.runnable.serves
        if not self.values:
            return serves is None or serves(types)
        for position, elements in self.values:
            if types[position] != self.types[position] or _elements(arrays[position]) != elements:
                return False
        return serves is None or serves(tuple([types[position] for position in self.others]))


class Served:
    """Programs by the types and decisive elements of arrays. Calls may come from several threads."""

    def __init__(self, source: ProgramFinder) -> None:
        self._source = source
        self._turn = Turn()
        self._kept: dict[int, ServedProgram] = {}
        self._entries: dict[Types, tuple[ServedProgram, ...]] = {}
        self._open: tuple[ServedProgram, ...] = ()  # programs that serve many types

    @property
    def runnables(self) -> tuple[Runnable, ...]:
        """The kept programs."""
        return tuple([entry.runnable for entry in [*self._kept.values()]])

    def fast(self, arrays: Sequence[Any]) -> FastCall | None:
        """The call for these arrays; None if none was compiled, or if one of them is no plain NumPy array.

        User passes run on every call, so there is none while any is registered.
        """
        if user_passes.registered():
            return None
        types = []
        for array in arrays:
            if type(array) is not np.ndarray:
                return None
            types.append((array.dtype, array.shape))
        key = tuple(types)
        exact = self._entries.get(key)
        if exact is not None and not exact[0].values:
            return exact[0].fast
        entry = self._serving(key, arrays)
        return None if entry is None else entry.fast

    def find(self, arrays: Arrays, *, is_traced: bool = False) -> ServedProgram | None:
        """The entry for checked arrays; None where the source has no program for them.

        One thread asks the source; others that miss a program wait.

        is_traced  a program that was loaded from a file won't do, if there can be another. While user passes are
                   registered none does, as they don't run on it
        """
        is_traced = is_traced or bool(user_passes.registered())
        entry = self._found(arrays, is_traced)
        if entry is None:
            with self._turn.taken():
                entry = self._found(arrays, is_traced)
                if entry is None:
                    runnable = self._source.find(arrays, is_traced=is_traced)
                    entry = None if runnable is None else self._keep(arrays, runnable)
        return entry

    def _serving(
        self, types: Types, arrays: Sequence[AnyArray], *, is_traced: bool = False
    ) -> ServedProgram | None:
        """The first kept program that serves these arrays, which have these types."""
        for entry in (*self._entries.get(types, ()), *self._open):
            if entry.serves(types, arrays) and (
                not is_traced or isinstance(entry.runnable.program, ProgramDefinition)
            ):
                return entry
        return None

    def _found(self, arrays: Arrays, is_traced: bool) -> ServedProgram | None:
        given = [*arrays.values()]
        return self._serving(types_of(given), given, is_traced=is_traced)

    def _keep(self, arrays: Arrays, runnable: Runnable) -> ServedProgram:
        decisive = [(n, name) for n, name in enumerate(arrays) if name not in runnable.inputs]
        values = tuple([(number, _elements(arrays[name])) for number, name in decisive])
        others = tuple([n for n, name in enumerate(arrays) if name in runnable.inputs])
        entry = ServedProgram(runnable, types_of(arrays.values()), values, others)
        replaced = self._kept.pop(id(runnable), None)
        for old in (replaced, *keep(self._kept, id(runnable), entry, _MAX_PROGRAMS)):
            if old is not None:
                self._put(old, [one for one in self._of(old) if one is not old])
        self._put(entry, [*self._of(entry), entry])
        return entry

    def _of(self, entry: ServedProgram) -> tuple[ServedProgram, ...]:
        """The entries among which one is looked up."""
        is_open = entry.runnable.serves is not None
        return self._open if is_open else self._entries.get(entry.types, ())

    def _put(self, entry: ServedProgram, entries: Sequence[ServedProgram]) -> None:
        if entry.runnable.serves is not None:
            self._open = tuple(entries)
        elif entries:
            self._entries[entry.types] = tuple(entries)
        else:
            self._entries.pop(entry.types, None)


def types_of(arrays: Iterable[AnyArray]) -> Types:
    return tuple([(array.dtype, array.shape) for array in arrays])


def _elements(array: AnyArray) -> bytes:
    return on_host(array).tobytes()
