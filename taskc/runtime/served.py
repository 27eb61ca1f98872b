"""From a call's arrays to a compiled program: by the arrays' types, and by elements that decide what is compiled.

`Served` keeps programs, and asks a source for one that it does not have. A source traces a graph, loads a bundle, or
looks into a cache before it traces.

    call -> fast(arrays)    arrays of types that a checked call had: one lookup, and no check
         -> find(arrays)    checked arrays: a kept program, or the source's

A checked call takes tens of microseconds, a fast one two or three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from taskc.ir.reentry import Turn
from taskc.lang.program import ProgramDefinition
from taskc.runtime import user_passes

_MAX_PROGRAMS = 64
_MAX_TYPES = 1024  # sets of types that one program serves

Types: TypeAlias = tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
Values: TypeAlias = tuple[tuple[int, bytes], ...]
FastCall: TypeAlias = Callable[[Sequence[Any]], list[Any]]  # from all arrays to all outputs

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


def keep(kept: dict[_Key, _Item], key: _Key, item: _Item, most: int) -> list[_Item]:
    """Make an item the most recent, and drop the oldest of more than `most`; returns the dropped ones."""
    kept.pop(key, None)
    kept[key] = item
    dropped = [kept.pop(old, None) for old in [*kept][:-most]]
    return [old for old in dropped if old is not None]


class Servable(Protocol):
    """A program, and the names of the arrays that it takes. The elements of other arrays decided what is compiled."""

    @property
    def program(self) -> object: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...


_Program = TypeVar("_Program", bound=Servable)
_Found = TypeVar("_Found", bound=Servable, covariant=True)


class ProgramSource(Protocol[_Found]):
    def find(self, arrays: Mapping[str, Any], *, is_traced: bool) -> _Found | None:
        """The program for arrays like these, or None; `is_traced` asks for one that isn't loaded, if there can be."""


@dataclass(slots=True, eq=False)
class Entry(Generic[_Program]):
    """A kept program for arrays of some types.

    values  the elements that arrays at some positions must have, as bytes
    fast    the call without checks; None until a checked call has compiled it
    """

    program: _Program
    types: Types
    values: Values
    fast: FastCall | None = None


class Served(Generic[_Program]):
    """Programs by the types and decisive elements of arrays. Calls may come from several threads."""

    def __init__(self, source: ProgramSource[_Program]) -> None:
        self._source = source
        self._turn = Turn()
        self._entries: dict[Types, tuple[Entry[_Program], ...]] = {}
        self._by_program: dict[int, dict[int, Entry[_Program]]] = {}

    @property
    def programs(self) -> tuple[_Program, ...]:
        """The kept programs."""
        return tuple(
            [
                entry.program
                for kept in [*self._by_program.values()]
                for entry in [*kept.values()][:1]
            ]
        )

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
        for entry in self._entries.get(tuple(types), ()):
            for position, elements in entry.values:
                if arrays[position].tobytes() != elements:
                    break
            else:
                if entry.fast is not None:
                    return entry.fast
        return None

    def find(self, arrays: Mapping[str, Any], *, is_traced: bool = False) -> Entry[_Program] | None:
        """The entry for checked arrays; None where the source has no program for them.

        One thread asks the source; others that miss a program wait.

        is_traced  a program that was loaded from a file won't do, if there can be another. While user passes are
                   registered none does, as they don't run on it
        """
        is_traced = is_traced or bool(user_passes.registered())
        entry = self._kept(arrays, is_traced)
        if entry is None:
            with self._turn.taken():
                entry = self._kept(arrays, is_traced)
                if entry is None:
                    program = self._source.find(arrays, is_traced=is_traced)
                    entry = None if program is None else self._keep(arrays, program)
        return entry

    def _kept(self, arrays: Mapping[str, Any], is_traced: bool) -> Entry[_Program] | None:
        given = [*arrays.values()]
        for entry in self._entries.get(types_of(given), ()):
            if (not is_traced or isinstance(entry.program.program, ProgramDefinition)) and all(
                _elements(given[position]) == elements for position, elements in entry.values
            ):
                return entry
        return None

    def _keep(self, arrays: Mapping[str, Any], program: _Program) -> Entry[_Program]:
        types = types_of(arrays.values())
        values = [
            (position, _elements(array))
            for position, (name, array) in enumerate(arrays.items())
            if name not in program.inputs
        ]
        entry = Entry(program, types, tuple(values))
        for known in self._entries.get(types, ()):
            if known.program is program and known.values == entry.values:
                return known
        self._entries[types] = (*self._entries.get(types, ()), entry)
        entries = self._by_program.get(id(program), {})
        dropped = keep(entries, id(entry), entry, _MAX_TYPES)
        for others in keep(self._by_program, id(program), entries, _MAX_PROGRAMS):
            dropped += others.values()
        for old in dropped:
            left = tuple([one for one in self._entries.get(old.types, ()) if one is not old])
            if left:
                self._entries[old.types] = left
            else:
                self._entries.pop(old.types, None)
        return entry


def types_of(arrays: Iterable[Any]) -> Types:
    return tuple([(array.dtype, array.shape) for array in arrays])


def _elements(array: Any) -> bytes:
    on_host = array if isinstance(array, np.ndarray) else array.numpy()
    elements: bytes = on_host.tobytes()
    return elements
