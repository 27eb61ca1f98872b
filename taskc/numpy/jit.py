"""`@tc.jit`: a function of arrays that is noted once per path, and replayed without its Python.

    @tc.jit
    def step(x, y):            the first call notes its operations: programs, with where their inputs come from
        z = x + y
        if z.sum() > 0:        a value is needed: the program so far, then one path per outcome
            z = z * 2
        return z

Calls of the same key (types and shapes of arrays, other arguments, the values that the function closes over) replay the
programs. Arrays that it closes over are arguments, too. A call whose outcome is new is noted as another path. A
function runs each time if it needs values in another way, as `print` does, or if an object around it may change unseen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dis import get_instructions
from functools import lru_cache, update_wrapper
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias, cast

import numpy as np

from taskc.dataclass import dataclass
from taskc.numpy.array import Array, adopted, known
from taskc.numpy.ending import end
from taskc.numpy.noting import copied, replace
from taskc.numpy.segment import Segment, here, recorders

Known: TypeAlias = "np.ndarray[Any, Any]"

_log = logging.getLogger("taskc.jit")
_MOST_KEYS = 256
_OUTCOMES: dict[str, Callable[[Known], Hashable]] = {
    "bool": bool, "int": int, "float": lambda value: float(value).hex(), "index": int,
    "item": lambda value: value.tobytes(),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Fresh:
    """A constant of which each call gets a copy, since the program writes to it."""

    array: Known


class _Node:
    """A point of a function's run: programs, and then what happens by the outcome of a value.

    steps     programs, each with its inputs: places among the arguments and earlier results, or constants
    asked     the place of the value that decides, and how it is read
    children  by outcome
    returned  what the function returns, with places of arrays; None before its end
    written   places of the new values of arguments
    """

    __slots__ = ("asked", "children", "returned", "steps", "written")

    def __init__(self) -> None:
        self.steps: list[tuple[Callable[[list[Known]], list[Known]], list[Any]]] = []
        self.asked: tuple[int, str] | None = None
        self.children: dict[Hashable, _Node] = {}
        self.returned: Callable[[list[Known]], Any] | None = None
        self.written: list[tuple[int, int]] = []


class _Recorder:
    """Records a run of a function from its root on, through nodes that are there."""

    def __init__(self, root: _Node, arguments: list[Known]) -> None:
        self.node = root
        self.is_new = not root.steps and root.asked is None and root.returned is None
        self.values = arguments  # kept, so that identities stay
        self.places = {id(value): place for place, value in enumerate(arguments)}
        self.problem = ""

    def ran(
        self,
        call: Any,
        inputs: list[Known],
        owned: tuple[int, ...],
        results: list[Known],
        before: dict[int, Known],
    ) -> None:
        if self.is_new:
            sources: list[Any] = []
            for n, value in enumerate(inputs):
                place = self.places.get(id(value))
                sources.append(
                    place if place is not None else _Fresh(before[n]) if n in owned else value
                )
            self.node.steps.append((call, sources))
        for value in results:
            self.places[id(value)] = len(self.values)
            self.values.append(value)

    def read(self, value: Known, reason: str) -> None:
        """A value is needed, which depends on the arguments where its place is known."""
        place = self.places.get(id(value))
        if place is None or self.problem:
            return
        if reason not in _OUTCOMES:
            self.problem = f"it needs a value for {reason}"
            return
        node = self.node
        node.asked = place, reason
        outcome = _OUTCOMES[reason](value)
        self.is_new = outcome not in node.children
        if self.is_new:
            _log.info("a new path: a value, read as %s, is %r", reason, outcome)
        self.node = node.children.setdefault(outcome, _Node())


class Jit:
    """A function that is noted once per path."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._roots: dict[Hashable, _Node | None] = {}
        self._names, self._rebinds = _outside(function.__code__)
        update_wrapper(self, function)

    def __call__(self, *args: Any, **options: Any) -> Any:
        given = [*args, *options.values()] if options else args
        arrays: list[Known] = []
        others: list[Any] = []
        key: list[Hashable] = [tuple(options)] if options else []
        for value in given:
            kind = type(value)
            if kind is Array or isinstance(value, Array | np.ndarray):
                is_known = kind is Array and value._segment is None
                array = value._value if is_known else _elements(value)
                arrays.append(array)
                key.append((array.dtype, array.shape))
            else:
                others.append(value)
                key.append((kind,))
        try:
            around = _around(self._function, self._names, self._rebinds)
            outer = [value for value in around if type(value) is Array]
            arrays += [known(value, "jit") for value in outer]
            if len(arrays) > 1 and len({*map(id, arrays)}) < len(arrays):
                places = [*map(id, arrays)]
                key.append(tuple([places.index(place) for place in places]))
            key += map(_fixed, others + around)
            node = self._roots.get(tuple(key), _UNKNOWN)
        except (
            TypeError,
            ValueError,
        ):  # no hash, or an object that may change; a name that is not bound yet
            node = None
        if node is None or (outer and any(value is item for value in outer for item in given)):
            return self._function(*args, **options)
        values = [x if x.flags.c_contiguous else np.ascontiguousarray(x) for x in arrays]
        end_of_path = None if node is _UNKNOWN else _replayed(node, values)
        if end_of_path is None:
            return self._record(tuple(key), args, options, outer)
        if end_of_path.returned is None:  # another thread records it
            return self._function(*args, **options)
        if end_of_path.written:
            targets = [value for value in given if isinstance(value, Array | np.ndarray)] + outer
            for place, result in end_of_path.written:
                _write(targets[place], values[result])
        return end_of_path.returned(values)

    def _record(
        self, key: Hashable, args: tuple[Any, ...], options: dict[str, Any], outer: list[Array]
    ) -> Any:
        """Run the function's Python, and record what it notes as a path from the root of this key."""
        if len(self._roots) >= _MOST_KEYS:
            self._roots.clear()
        root = self._roots.setdefault(key, _Node())
        assert root is not None
        originals = [x for x in (*args, *options.values()) if isinstance(x, Array | np.ndarray)]
        own = {
            id(x): copied(x) if isinstance(x, Array) else adopted(np.array(x, order="C"))
            for x in originals
        }
        inside = [*[own[id(x)] for x in originals], *outer]
        originals += outer
        values = [known(x, "jit") for x in inside]
        rest = iter(inside)
        given = [next(rest) if isinstance(x, Array | np.ndarray) else x for x in args]
        named = {
            n: next(rest) if isinstance(x, Array | np.ndarray) else x for n, x in options.items()
        }
        outer, outer_segment = here.recorder, here.segment
        recorder = here.recorder = _Recorder(root, [*values])
        here.segment = Segment()
        recorders.append(recorder)
        try:
            result = self._function(*given, **named)
            leaves = [*_arrays_in(result), *inside]
            finals = [_quietly(x) for x in leaves]
        except BaseException:
            self._roots.pop(key, None)
            raise
        finally:
            here.recorder, here.segment = outer, outer_segment
            recorders.remove(recorder)
        node, places = recorder.node, recorder.places
        written = [
            (n, x, new)
            for n, (x, new) in enumerate(
                zip(originals, finals[-len(inside) :] if inside else [], strict=True)
            )
            if new is not values[n]
        ]
        if recorder.problem or not _is_tree(result):
            _log.info(
                "%s runs each time: %s",
                self._function.__name__,
                recorder.problem or "it returns an object",
            )
            self._roots[key] = None
        else:
            node.written = [(n, places[id(new)]) for n, _, new in written if id(new) in places]
            node.returned = _returner(result, places)
        for _, target, new in written:
            _write(target, new)
        return result


_UNKNOWN = _Node()
_NAMED = frozenset({ModuleType, FunctionType, BuiltinFunctionType, np.ufunc, Jit})


def _elements(value: Any) -> Known:
    return known(value, "jit") if type(value) is Array else np.asarray(value)


def _replayed(node: _Node, values: list[Known]) -> _Node | None:
    """The end of the path of these arguments, whose programs have added their results; None of an outcome not seen."""
    while True:
        for call, sources in node.steps:
            inputs = [
                values[s] if type(s) is int else s if type(s) is not _Fresh else s.array.copy()
                for s in sources
            ]
            values += call(inputs)
        if node.asked is None:
            return node
        place, reason = node.asked
        child = node.children.get(_OUTCOMES[reason](values[place]))
        if child is None:
            return None
        node = child


@lru_cache(maxsize=1024)
def _outside(code: CodeType) -> tuple[tuple[str, ...], bool]:
    """The names that code may take from its module, and whether it binds names outside anew."""
    inner = [_outside(item) for item in code.co_consts if isinstance(item, CodeType)]
    names = dict.fromkeys((*code.co_names, *[name for parts, _ in inner for name in parts]))
    rebinds = any(
        item.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
        or (item.opname in ("STORE_DEREF", "DELETE_DEREF") and item.argval in code.co_freevars)
        for item in get_instructions(code)
    )
    return tuple(names), rebinds or any(inside for _, inside in inner)


def _around(
    function: Callable[..., Any], names: tuple[str, ...], rebinds: bool, seen: tuple[Any, ...] = ()
) -> list[Any]:
    """The values that a function closes over, and those of functions beside it that it may call.

    One that binds a name outside anew has an effect of its own: then an object that may change is among them.
    """
    beside = function.__globals__
    values = [beside[name] for name in names if name in beside]
    if function.__closure__:
        values += [cell.cell_contents for cell in function.__closure__]
    for value in values[:]:
        if type(value) is FunctionType and value.__globals__ is beside and value not in seen:
            values += _around(value, *_outside(value.__code__), (*seen, value))
    return [*values, object()] if rebinds else values


def _fixed(value: Any) -> Hashable:
    """The part of a key for a value around a function; a TypeError for one that may change without another hash."""
    kind: Any = type(value)
    if kind in _NAMED:
        return cast("Hashable", value)
    if kind is Array:
        return value.dtype, value.shape
    if isinstance(value, type) or kind.__hash__ is not object.__hash__:
        return kind, value
    raise TypeError(f"a {kind.__name__} may change")


def jit(function: Callable[..., Any]) -> Jit:
    """Note a function's operations once per path, and replay them as compiled programs."""
    return Jit(function)


def _quietly(x: Array) -> Known:
    """The value of a returned array, which decides nothing."""
    if type(x) is not Array:
        x = copied(x)
    if x._segment is not None:
        end(x._segment, "return")
    return cast("Known", x._value)


def _write(target: Any, value: Known) -> None:
    if isinstance(target, Array):
        replace(target, adopted(value))
    else:
        np.copyto(target, value)


def _arrays_in(result: Any) -> list[Array]:
    if isinstance(result, Array):
        return [result]
    if type(result) in (tuple, list):
        return [x for part in result for x in _arrays_in(part)]
    return [x for part in result.values() for x in _arrays_in(part)] if type(result) is dict else []


def _is_tree(result: Any) -> bool:
    if type(result) in (tuple, list):
        return all(map(_is_tree, result))
    if type(result) is dict:
        return all(map(_is_tree, result.values()))
    return result is None or isinstance(result, Array | int | float | complex | str | bool)


def _returner(result: Any, places: dict[int, int]) -> Callable[[list[Known]], Any]:
    """The function from the values of a run to what the function returns."""
    if isinstance(result, Array):
        value = _quietly(result)
        place = places.get(id(value))
        if place is None:
            return lambda values: adopted(value)
        return lambda values: adopted(values[place])
    if type(result) in (tuple, list):
        kind, parts = type(result), [_returner(part, places) for part in result]
        return lambda values: kind([part(values) for part in parts])
    if type(result) is dict:
        named = {name: _returner(part, places) for name, part in result.items()}
        return lambda values: {name: part(values) for name, part in named.items()}
    return lambda values: result
