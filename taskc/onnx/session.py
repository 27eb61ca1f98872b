"""`tc.compile(model)`: a model that runs, called with arrays or as ONNX Runtime's sessions are."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from taskc import CompileError, TensorType
from taskc.arguments import ArgumentError
from taskc.ir.types import from_numpy
from taskc.lang.values import did_you_mean
from taskc.onnx.graph import Array, Graph, Value
from taskc.onnx.importer import Imported, import_graph, inputs_behind, is_known
from taskc.onnx.operators import DataError
from taskc.onnx.passes.pipeline import rewritten

if TYPE_CHECKING:
    from onnx import ModelProto

_MOST_KEPT = 32  # programs
_MOST_DECISIVE = 256  # elements of an input that decide what is compiled


def compile(
    model: str | os.PathLike[str] | bytes | ModelProto | Graph,
    target: str = "cpu",
    *,
    exact: bool = False,
) -> Model:
    """What runs a model: a file, its bytes, a ModelProto, or a graph that has been read.

    exact  convolutions add up their products one by one. Else 3 x 3 ones may be Winograd's where these are faster,
           whose errors are up to ten times as large: 5e-5 where results are about 1
    """
    if target != "cpu":
        raise CompileError(f"models don't run on {target!r}", hint="there is 'cpu'")
    if not isinstance(model, Graph):
        from taskc.onnx.reader import read  # with the package onnx

        model = read(model, is_known)
    return Model(model, exact=exact)


@dataclass(slots=True)
class _Programs:
    """What has been made for one set of types.

    The elements of some inputs decide what is compiled: shapes, numbers of repeats, conditions. There is a program for
    each set of them, and `decisive` says which inputs they are.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    decisive: tuple[str, ...] = ()
    made: OrderedDict[bytes, Imported] = field(default_factory=OrderedDict)

    def program(
        self, graph: Graph, types: Mapping[str, TensorType], feeds: Mapping[str, Array]
    ) -> Imported:
        """One thread makes it, and the others wait."""
        with self.lock:
            while True:
                key = b"".join(feeds[name].tobytes() for name in self.decisive)
                if key in self.made:
                    self.made.move_to_end(key)
                    return self.made[key]
                known = {name: feeds[name].copy() for name in self.decisive}
                rest = {name: kind for name, kind in types.items() if name not in known}
                try:
                    _keep(self.made, key, import_graph(graph, rest, known))
                except DataError as error:
                    behind = inputs_behind(graph, error.name) - known.keys()
                    few = [name for name in sorted(behind) if feeds[name].size <= _MOST_DECISIVE]
                    if not few:
                        raise
                    self.decisive += tuple(few)
                    self.made.clear()


_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


def _keep(kept: OrderedDict[_Key, _Item], key: _Key, item: _Item) -> _Item:
    """Adds an item, and drops the oldest of too many."""
    kept[key] = item
    while len(kept) > _MOST_KEPT:
        kept.popitem(last=False)
    return item


class Model:
    """A compiled model. Calls may come from several threads.

    There is a program for each set of shapes that the inputs have had, and of values where what is compiled depends on
    them; the latest ones are kept.
    """

    def __init__(self, graph: Graph, *, exact: bool = False) -> None:
        self.graph = graph
        self._rewritten = rewritten(graph, exact=exact)
        self.inputs: tuple[Value, ...] = graph.inputs
        self.outputs: tuple[Value, ...] = tuple(
            [graph.values.get(name, Value(name)) for name in graph.outputs]
        )
        self._names = {value.name: value for value in graph.inputs}
        self._lock = threading.Lock()
        self._programs: OrderedDict[tuple[TensorType, ...], _Programs] = OrderedDict()

    def __repr__(self) -> str:
        return f"<model {self.graph.name!r}: {', '.join(map(str, self.inputs))}>"

    def __call__(self, *args: Any, **feeds: Any) -> Any:
        """The output, or a tuple of all; inputs by position, by name, or as a dictionary by name."""
        if len(args) == 1 and isinstance(args[0], Mapping):
            feeds, args = {**args[0], **feeds}, ()
        if len(args) > len(self.inputs):
            raise ArgumentError(f"the model has {len(self.inputs)} inputs, not {len(args)}")
        for value, given in zip(self.inputs, args, strict=False):
            if value.name in feeds:
                raise ArgumentError(f"the input '{value.name}' is given twice")
            feeds[value.name] = given
        returned = self.run(None, feeds)
        return returned[0] if len(returned) == 1 else tuple(returned)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs of these names, or all, for arrays by the names of inputs."""
        wanted = self.graph.outputs if output_names is None else output_names
        for name in wanted:
            if name not in self.graph.outputs:
                raise ArgumentError(_unknown("output", name, self.graph.outputs))
        arrays = self._checked(feeds)
        imported = self._program(arrays)
        made = _run(imported, [arrays[name] for name in imported.inputs])
        return [made[self.graph.outputs.index(name)] for name in wanted]

    def program(self, feeds: Mapping[str, Any]) -> Imported:
        """What runs for arrays like these: it is made if it isn't there, and not run."""
        return self._program(self._checked(feeds))

    def _checked(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """The inputs, in their order, each as it has to be."""
        for name in feeds:
            if name not in self._names:
                raise ArgumentError(_unknown("input", name, [*self._names]))
        missing = [name for name in self._names if name not in feeds]
        if missing:
            raise ArgumentError(f"the model's input '{missing[0]}' is missing")
        arrays = {value.name: _array(value, feeds[value.name]) for value in self.inputs}
        _check_extents(self.inputs, arrays)
        return arrays

    def _program(self, arrays: Mapping[str, Array]) -> Imported:
        types = {name: _type_of(array) for name, array in arrays.items()}
        with self._lock:
            key = tuple(types.values())
            programs = _keep(self._programs, key, self._programs.pop(key, _Programs()))
        return programs.program(self._rewritten, types, arrays)


def _run(imported: Imported, arrays: Sequence[Array]) -> list[Array]:
    """The graph's outputs; one that is known is a copy, which its owner may change."""
    computed: dict[str, Array] = {}
    names = [output for output in imported.outputs if isinstance(output, str)]
    if names:
        returned = imported.program(*arrays)
        several = returned if isinstance(returned, tuple) else (returned,)
        computed = dict(zip(names, several, strict=True))
    return [
        computed[output] if isinstance(output, str) else output.copy()
        for output in imported.outputs
    ]


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    hint = did_you_mean(name, known)
    has = ", ".join(f"'{one}'" for one in known) or "none"
    return f"the model has no {what} '{name}'; {hint or f'it has {has}'}"


def _type_of(array: Array) -> TensorType:
    return TensorType(from_numpy(array.dtype), array.shape)


def _array(value: Value, given: Any) -> Array:
    """What is given for an input, of its type and rank."""
    if isinstance(given, (np.ndarray, np.generic)):
        array = np.asarray(given)
    elif hasattr(given, "__dlpack__"):
        array = np.from_dlpack(given)
    else:
        raise ArgumentError(f"the input '{value.name}' is an array, not {type(given).__name__}")
    try:
        dtype = from_numpy(array.dtype)
    except ValueError as error:
        raise ArgumentError(f"the input '{value.name}': {error}") from None
    if value.dtype not in (None, dtype):
        raise ArgumentError(f"the input '{value.name}' is of {value.dtype}, not {dtype}")
    if value.shape is not None and array.ndim != len(value.shape):
        raise ArgumentError(
            f"the input {value} has {len(value.shape)} dimensions, and the array {array.ndim}"
        )
    return array


def _check_extents(inputs: Sequence[Value], arrays: Mapping[str, Array]) -> None:
    """Numbers are as the model has them, and extents of one name are equal."""
    named: dict[str, tuple[int, str]] = {}
    for value in inputs:
        array = arrays[value.name]
        for axis, (extent, size) in enumerate(zip(value.shape or (), array.shape, strict=False)):
            if isinstance(extent, int) and extent != size:
                raise ArgumentError(
                    f"the input {value} has {extent} along axis {axis}, and the array {size}"
                )
            if (
                isinstance(extent, str) and extent.isidentifier()
            ):  # many models call all of them "?"
                known, where = named.setdefault(extent, (size, value.name))
                if known != size:
                    raise ArgumentError(
                        f"'{extent}' is {known} by '{where}', and {size} by '{value.name}'"
                    )
