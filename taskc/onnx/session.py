"""`tc.compile(model)`: a model that runs, called with arrays or as ONNX Runtime's sessions are."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from taskc import CompileError, DType, bf16
from taskc.arguments import ArgumentError
from taskc.ir.types import from_numpy
from taskc.lang.values import did_you_mean
from taskc.onnx.graph import Array, Graph, Value
from taskc.onnx.importer import Imported, arrays_of, inputs_behind, is_known
from taskc.onnx.operators import CountError, DataError
from taskc.onnx.passes.pipeline import rewritten
from taskc.onnx.stages import cut_at
from taskc.onnx.versions import Shapes, Versions, keep

if TYPE_CHECKING:
    from onnx import ModelProto

# What operands of products with weights are rounded to.
PRECISIONS: dict[str, DType | None] = {"f32": None, "bf16": bf16}

_MOST_KEPT = 32  # sets of types, and of decisive values
_MOST_DECISIVE = 256  # elements of an input that decide what is compiled


def compile(
    model: str | os.PathLike[str] | bytes | ModelProto | Graph,
    target: str = "cpu",
    *,
    exact: bool = False,
    precision: str = "f32",
) -> Model:
    """What runs a model: a file, its bytes, a ModelProto, or a graph that has been read.

    exact  convolutions add up their products one by one. Else 3 x 3 ones may be Winograd's where these are faster,
           whose errors are up to ten times as large: 5e-5 where results are about 1
    precision  "bf16" rounds both operands of f32 products with weights to that, and sums in f32: `taskc verify
               --precision bf16` says what that costs
    """
    if precision not in PRECISIONS:
        raise CompileError(
            f"there is no precision {precision!r}",
            hint=f"there is {', '.join(map(repr, PRECISIONS))}",
        )
    if target != "cpu":
        raise CompileError(f"models don't run on {target!r}", hint="there is 'cpu'")
    if not isinstance(model, Graph):
        from taskc.onnx.reader import read  # with the package onnx

        model = read(model, is_known)
    return Model(model, exact=exact, operands=PRECISIONS[precision])


@dataclass(slots=True)
class _Programs:
    """What has been made for inputs of one set of types and ranks.

    The elements of some inputs decide what is compiled: shapes, numbers of repeats, conditions. There are programs for
    each set of them, and `decisive` says which inputs they are. What else decides, under the names `late`, does so
    when the program runs.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    decisive: tuple[str, ...] = ()
    late: frozenset[str] = frozenset()
    made: OrderedDict[tuple[object, ...], Versions] = field(default_factory=OrderedDict)

    def program(self, graph: Graph, feeds: Mapping[str, Array]) -> Imported:
        while True:
            decisive, versions, shapes = self._versions(graph, feeds)
            try:
                return versions.program(shapes)
            except DataError as error:
                with self.lock:
                    self._decide(error, graph, feeds, decisive)

    def _decide(
        self, error: DataError, graph: Graph, feeds: Mapping[str, Array], decisive: tuple[str, ...]
    ) -> None:
        """Has one more thing decide what is compiled, or what is run; another thread may have found it out."""
        for name in error.names:
            behind = inputs_behind(graph, name) - {*decisive}
            if error.can_wait and not (behind and all(_is_option(feeds[one]) for one in behind)):
                if name not in self.late:
                    self.late |= {name}
                    self.made.clear()
                return
            few = [one for one in sorted(behind) if feeds[one].size <= _MOST_DECISIVE]
            if few:
                found = [one for one in few if one not in self.decisive]
                self.decisive += tuple(found)
                if found:
                    self.made.clear()
                return
        raise error

    def programs(self) -> list[Imported]:
        with self.lock:
            made = [*self.made.values()]
        return [one for versions in made for one in versions.programs()]

    def _versions(
        self, graph: Graph, feeds: Mapping[str, Array]
    ) -> tuple[tuple[str, ...], Versions, Shapes]:
        """The decisive inputs, the programs for these values of them, and the shapes of the others."""
        with self.lock:
            decisive = tuple([it for it in self.decisive if feeds[it].size <= _MOST_DECISIVE])
            rest = {name: array for name, array in feeds.items() if name not in decisive}
            key = tuple([(feeds[name].shape, feeds[name].tobytes()) for name in decisive])
            versions = self.made.get(key)
            if versions is None:
                known = {name: feeds[name].copy() for name in decisive}
                dtypes = {name: from_numpy(array.dtype) for name, array in rest.items()}
                versions = Versions(graph, dtypes, known, self.late)
            keep(self.made, key, versions, _MOST_KEPT)
        return decisive, versions, tuple([array.shape for array in rest.values()])


def _is_option(array: Array) -> bool:
    """Whether it is rather a choice among programs than data: a sample rate, a flag."""
    return array.size == 1 and array.dtype.kind in "biu"


class Model:
    """A compiled model. Calls may come from several threads.

    Where what is compiled depends on what a part of the graph has computed, that part runs as a model of its own, and
    then the rest, for what it has made.

    There are programs for the shapes that the inputs have had (versions.py), and for values where what is compiled
    depends on them; the latest ones are kept.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        exact: bool = False,
        operands: DType | None = None,
        is_part: bool = False,
    ) -> None:
        self.graph = graph
        self._rewritten = graph if is_part else rewritten(graph, exact=exact, operands=operands)
        self._parts: tuple[Model, ...] = ()
        self.inputs: tuple[Value, ...] = graph.inputs
        self.outputs: tuple[Value, ...] = tuple(
            [graph.values.get(name, Value(name)) for name in graph.outputs]
        )
        self._names = {value.name: value for value in graph.inputs}
        self._lock = threading.Lock()
        self._programs: OrderedDict[tuple[object, ...], _Programs] = OrderedDict()

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
        made = self._computed(self._checked(feeds))
        return [made[self.graph.outputs.index(name)] for name in wanted]

    def _computed(self, arrays: Mapping[str, Array]) -> list[Array]:
        """All outputs, by a program or by those of two parts."""
        if not self._parts:
            try:
                imported = self._program(arrays)
            except (CountError, DataError) as error:
                cuts = (cut_at(self._rewritten, name) for name in error.names)
                parts = next(filter(None, cuts), ())
                if not parts:
                    raise
                self._parts = tuple([Model(part, is_part=True) for part in parts])
            else:
                return _run(imported, [arrays[name] for name in imported.inputs])
        first, rest = self._parts
        made = first._computed(arrays)
        known = {**arrays, **dict(zip(first.graph.outputs, made, strict=True))}
        return rest._computed({value.name: known[value.name] for value in rest.inputs})

    def program(self, feeds: Mapping[str, Any]) -> Imported:
        """What runs for arrays like these: it is made if it isn't there, and not run."""
        return self._program(self._checked(feeds))

    @property
    def programs(self) -> tuple[Imported, ...]:
        """What it has compiled and kept."""
        with self._lock:
            kinds = [*self._programs.values()]
        own = [one for kind in kinds for one in kind.programs()]
        return (*own, *[one for part in self._parts for one in part.programs])

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
        with self._lock:
            key = tuple([(array.dtype, array.ndim) for array in arrays.values()])
            programs = keep(self._programs, key, self._programs.get(key) or _Programs(), _MOST_KEPT)
        return programs.program(self._rewritten, arrays)


def _run(imported: Imported, arrays: Sequence[Array]) -> list[Array]:
    """The graph's outputs."""
    is_known = all(isinstance(output, np.ndarray) for output in imported.outputs)
    returned: Any = () if is_known else imported.program(*arrays)
    return arrays_of(imported.outputs, returned if isinstance(returned, tuple) else (returned,))


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    hint = did_you_mean(name, known)
    has = ", ".join(f"'{one}'" for one in known) or "none"
    return f"the model has no {what} '{name}'; {hint or f'it has {has}'}"


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
