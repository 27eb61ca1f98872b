"""The programs of a model: one for each of the first shapes, and then one with dimensions that serves many.

A program in which all extents are numbers is the fastest, and most models are called with one set of shapes or two. So
the first `_EXACT` sets get a program each. The next one gets a program with dimensions (`tc.dim`), which serves later
calls too: it is compiled once, and only its memory plan is made again for each set of sizes.

**Which extents are dimensions**: the ones that have changed, in the least general form of the shapes so far.

    ids [1, 17], mask [1, 17]
    ids [1, 40], mask [1, 40]
    ids [1, 25], mask [1, 25]        ids [1, n], mask [1, n]

An extent that never changed stays a number, and extents that were always equal are one dimension, so that shapes match
as they do in the model. A call that doesn't have this form gets a more general program.

**Decisions that depend on a size**: the program takes the decision of the call that it is compiled for, and records it
(`Assumptions`). It serves calls that lead to the same decisions.

**Sizes that have to be numbers**: where an operator or a kernel needs a number, the extents that it comes from are
numbers from then on (`SizeError`), with a program for each of their values. In the worst case these are all extents.

At most `_MOST_OPEN` programs with dimensions are made for one set of decisive values. After that, and for arrays
without elements, each set of shapes has a program of its own; the latest `_MOST_EXACT` are kept.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np

from taskc import CompileError, TensorType, dim
from taskc.ir.reentry import Turn
from taskc.ir.text_rules import identifier
from taskc.ir.types import DType, from_numpy
from taskc.lang.assumptions import Assumptions
from taskc.lang.sizes import Dimension
from taskc.onnx.importer import Imported, import_graph, inputs_behind
from taskc.onnx.model import MOST_DECISIVE, PROCESSOR, Place, outputs_for
from taskc.onnx.passes.pipeline import rewritten
from taskc.operators.call import CountError, DataError, SizeError
from taskc.operators.control import NO_STEPS, UNLIKE_STEPS
from taskc.operators.graph import Array, Graph, Node, Value, on_host
from taskc.runtime.driver import whole_program
from taskc.runtime.machine import built_for

logger = logging.getLogger(__name__)

_EXACT = 2  # sets of shapes with a program each, before one with dimensions is compiled
_MOST_EXACT = 32
_MOST_OPEN = 8
_MOST_SERVED = 1024  # sets of shapes whose program with dimensions is remembered

Shapes: TypeAlias = tuple[tuple[int, ...], ...]  # of the inputs, in their order
Axis: TypeAlias = tuple[int, int]  # the input's number, and the axis's

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


def keep(kept: dict[_Key, _Item], key: _Key, item: _Item, most: int) -> _Item:
    """Make an item the most recent, and drop the oldest of more than `most`."""
    kept.pop(key, None)
    item = kept.setdefault(key, item)
    for old in [*kept][:-most]:
        kept.pop(old, None)
    return item


@dataclass(frozen=True, slots=True)
class Form:
    """Shapes in which some extents are dimensions."""

    extents: Mapping[Axis, int | Dimension]

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        return tuple(dict.fromkeys(n for n in self.extents.values() if isinstance(n, Dimension)))

    def sizes(self, shapes: Shapes) -> dict[Dimension, int] | None:
        """The values of the dimensions at shapes of this form without empty axes; None for others."""
        sizes: dict[Dimension, int] = {}
        for (number, axis), extent in self.extents.items():
            size = shapes[number][axis]
            known = extent if isinstance(extent, int) else sizes.setdefault(extent, size)
            if known != size or size == 0:
                return None
        return sizes

    def shape(self, number: int, rank: int) -> tuple[int | Dimension, ...]:
        return tuple([self.extents[number, axis] for axis in range(rank)])


def least_general(seen: Sequence[Shapes], numbers: set[Axis], names: Mapping[Axis, str]) -> Form:
    """The least general form of some shapes; axes in `numbers` keep the last shapes' extents."""
    extents: dict[Axis, int | Dimension] = {}
    dimensions: dict[tuple[int, ...], Dimension] = {}
    for number, shape in enumerate(seen[-1]):
        for axis, size in enumerate(shape):
            at = number, axis
            sizes = tuple([shapes[number][axis] for shapes in seen])
            if at in numbers or len({*sizes}) == 1:
                extents[at] = size
                continue
            if sizes not in dimensions:
                dimensions[sizes] = dim(_unused(names[at], dimensions.values()))
            extents[at] = dimensions[sizes]
    return Form(extents)


def _unused(name: str, dimensions: Iterable[Dimension]) -> str:
    used, candidate, count = {one.name for one in dimensions}, name, 1
    while candidate in used:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


@dataclass(frozen=True, slots=True)
class _Open:
    """A program with dimensions, and the conditions under which it is right."""

    form: Form
    assumptions: Assumptions
    imported: Imported

    def serves(self, shapes: Shapes) -> bool:
        sizes = self.form.sizes(shapes)
        return sizes is not None and self.assumptions.serve(sizes)


@dataclass(slots=True)
class Versions:
    """The programs of a graph for one set of values of its decisive inputs.

    dtypes   of the other inputs
    known    the decisive inputs
    late     names of tensors that decide only when a program runs
    seen     the last shapes that programs were compiled for
    numbers  axes that must not be dimensions
    """

    graph: Graph
    dtypes: Mapping[str, DType]
    known: Mapping[str, Array]
    late: frozenset[str] = frozenset()
    exact: dict[Shapes, Imported] = field(default_factory=dict)
    open: list[_Open] = field(default_factory=list)
    served: dict[Shapes, Imported] = field(default_factory=dict)
    seen: deque[Shapes] = field(default_factory=lambda: deque(maxlen=_EXACT + _MOST_OPEN))
    numbers: set[Axis] = field(default_factory=set)
    making: Turn = field(default_factory=Turn)

    def program(self, shapes: Shapes) -> Imported:
        """The program for arrays of these shapes. One thread compiles a missing one; others that miss one wait."""
        program = self._found(shapes)
        if program is not None:
            return program
        with self.making.taken() as is_alone:
            return self._found(shapes) or self._made(shapes, is_alone)

    def programs(self) -> list[Imported]:
        return [*self.exact.values(), *(one.imported for one in [*self.open])]

    def _found(self, shapes: Shapes) -> Imported | None:
        program = self.exact.get(shapes)
        if program is not None:
            return keep(self.exact, shapes, program, _MOST_EXACT)
        program = self.served.get(shapes)
        if program is None:
            program = next((one.imported for one in [*self.open] if one.serves(shapes)), None)
        return program and keep(self.served, shapes, program, _MOST_SERVED)

    def _made(self, shapes: Shapes, is_alone: bool) -> Imported:
        opened = self._opened(shapes) if is_alone else None
        if opened is not None:
            self.open.append(opened)
            return opened.imported
        kinds = {
            name: dtype[shape]
            for (name, dtype), shape in zip(self.dtypes.items(), shapes, strict=True)
        }
        imported = import_graph(self.graph, kinds, self.known, late=self.late)
        return keep(self.exact, shapes, imported, _MOST_EXACT)

    def _opened(self, shapes: Shapes) -> _Open | None:
        """A program with dimensions for shapes that no other serves; None if they get a program of their own."""
        if any(0 in shape for shape in shapes):
            return None
        self.seen.append(shapes)
        if len(self.seen) <= _EXACT or len(self.open) == _MOST_OPEN:
            return None
        while True:
            form = least_general(self.seen, self.numbers, self._names())
            sizes = form.sizes(shapes)
            if not sizes:
                return None
            assumptions = Assumptions(sizes)
            try:
                imported = self._compiled(form, shapes, assumptions)
            except SizeError as error:
                self._fix_as_numbers(
                    {*error.dimensions} & {*form.dimensions} or {*form.dimensions}, form
                )
                continue
            except CompileError as error:
                # A program without dimensions may still compile; if the model is wrong, it reports the error.
                text = "%s: each set of shapes gets a program of its own, which compiles at its first call: %s"
                logger.warning(text, self.graph.name or "model", error)
                self._fix_as_numbers({*form.dimensions}, form)
                continue
            return _Open(form, assumptions, imported)

    def _fix_as_numbers(self, dimensions: set[Dimension], form: Form) -> None:
        """Make the axes with these dimensions numbers from now on."""
        self.numbers |= {at for at, extent in form.extents.items() if extent in dimensions}

    def _compiled(self, form: Form, shapes: Shapes, assumptions: Assumptions) -> Imported:
        kinds = {
            name: TensorType(dtype, form.shape(number, len(shapes[number])))
            for number, (name, dtype) in enumerate(self.dtypes.items())
        }
        imported = import_graph(self.graph, kinds, self.known, assumptions, self.late)
        if imported.program.ir.parameters:
            whole_program(imported.program)
        return imported

    def _names(self) -> dict[Axis, str]:
        """The name of each axis as a dimension: the model's, or one made from its input's."""
        values = {value.name: value for value in self.graph.inputs}
        names: dict[Axis, str] = {}
        for number, name in enumerate(self.dtypes):
            for axis in range(len(self.seen[-1][number])):
                declared = (values[name].shape or {axis: None})[axis]
                is_name = isinstance(declared, str) and declared.isidentifier()
                names[number, axis] = str(declared) if is_name else identifier(f"{name}_{axis}")
        return names


# --- A graph cut in two: first the nodes that a tensor depends on, and the rest once that tensor is known
#     x -> NonZero -> n -> Gather -> y        x -> NonZero -> n        x, n -> Gather -> y
#
# Where compilation depends on the elements of a tensor, or on their number, the tensor has to be computed first. So the
# graph is cut there, each part runs as a model, and the second takes the first one's outputs as inputs.
#
# In the body of a Loop, the tensor differs from turn to turn. So the graph is cut around the Loop, whose body is a
# model of its own that is called for each turn; likewise for the branches of an If.


def cut_at(graph: Graph, name: str) -> tuple[Graph, ...]:
    """The part that computes a tensor, and the rest; empty where no node of the graph itself computes it."""
    before = _dependencies(graph, [name])
    return _split(graph, before) if before else ()


def cut_around(graph: Graph, name: str) -> tuple[Graph, ...]:
    """The part before an If or Loop whose graphs compute a tensor, that node alone, and the rest; or empty."""
    for node in graph.nodes:
        if node.operator in ("If", "Loop") and name in _within(node):
            before, rest_graph = _split(graph, _dependencies(graph, node.reads))
            return before, *_split(rest_graph, {node})
    return ()


def _split(graph: Graph, before: set[Node]) -> tuple[Graph, Graph]:
    later = tuple([node for node in graph.nodes if node not in before])
    outputs = {output for node in before for output in node.outputs}
    wanted = {*graph.outputs}.union(*(node.reads for node in later))
    handed = tuple([output for output in sorted(outputs & wanted) if output])
    inputs = tuple([value for value in graph.inputs if value.name in wanted])
    values = tuple([graph.values.get(output) or Value(output) for output in handed])
    before_graph = replace(
        graph, outputs=handed, nodes=tuple([n for n in graph.nodes if n in before])
    )
    return before_graph, replace(graph, inputs=(*inputs, *values), nodes=later)


def _dependencies(graph: Graph, names: Iterable[str]) -> set[Node]:
    """The nodes that tensors depend on."""
    makers = {output: node for node in graph.nodes for output in node.outputs if output}
    nodes: set[Node] = set()
    waiting = [*names]
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += node.reads
    return nodes


def _within(node: Node) -> Iterator[str]:
    """The names of inputs and outputs in the graphs of a node's attributes, at any depth."""
    for graph in node.graphs:
        yield from (value.name for value in graph.inputs)
        for inner in graph.nodes:
            yield from inner.outputs
            yield from _within(inner)


# --- Tracing on demand, while a model is called -------------------------------------------------


_MAX_SETS = 32  # sets of types, and sets of decisive values


@dataclass(slots=True)
class _Programs:
    """The programs for inputs of one set of types and ranks.

    The elements of some inputs (`decisive`) decide what is compiled: shapes, numbers of repeats, conditions. There are
    programs for each set of their values. Tensors named in `late` decide only when the program runs.
    """

    decisive: tuple[str, ...] = ()
    late: frozenset[str] = frozenset()
    made: dict[tuple[object, ...], Versions] = field(default_factory=dict)

    def program(self, graph: Graph, feeds: Mapping[str, Array]) -> Imported:
        while True:
            decisive, versions, shapes = self._versions(graph, feeds)
            try:
                return versions.program(shapes)
            except DataError as error:
                self._decide(error, graph, feeds, decisive)

    def _decide(
        self, error: DataError, graph: Graph, feeds: Mapping[str, Array], decisive: tuple[str, ...]
    ) -> None:
        """Make one more tensor decide at compile time or at run time; another thread may have done so already."""
        for name in error.names:
            behind = inputs_behind(graph, name) - {*decisive}
            if error.can_wait and not (
                behind and all(_is_option(feeds[input_name]) for input_name in behind)
            ):
                if name not in self.late:
                    self.late |= {name}
                    self.made.clear()
                return
            # A tensor computed from floats differs from call to call: the graph is cut there.
            few = [
                input_name
                for input_name in sorted(behind)
                if feeds[input_name].size <= MOST_DECISIVE
                and (input_name == name or feeds[input_name].dtype.kind in "biu")
            ]
            if few:
                added = [input_name for input_name in few if input_name not in self.decisive]
                self.decisive = tuple(dict.fromkeys((*self.decisive, *added)))
                if added:
                    self.made.clear()
                return
        raise error

    def programs(self) -> list[Imported]:
        return [one for versions in [*self.made.values()] for one in versions.programs()]

    def _versions(
        self, graph: Graph, feeds: Mapping[str, Array]
    ) -> tuple[tuple[str, ...], Versions, Shapes]:
        """The decisive inputs, the programs for these values of them, and the shapes of the other inputs."""
        decisive = tuple([one for one in self.decisive if feeds[one].size <= MOST_DECISIVE])
        late = self.late
        others = {name: array for name, array in feeds.items() if name not in decisive}
        known = {name: on_host(feeds[name]) for name in decisive}
        values = [(array.shape, array.tobytes()) for array in known.values()]
        key = decisive, late, *values
        versions = self.made.get(key)
        if versions is None:
            known = {name: array.copy() for name, array in known.items()}
            dtypes = {name: from_numpy(array.dtype) for name, array in others.items()}
            versions = Versions(graph, dtypes, known, late)
        versions = keep(self.made, key, versions, _MAX_SETS)
        return decisive, versions, tuple([array.shape for array in others.values()])


def _is_option(array: Array) -> bool:
    """Whether an input looks like an option, such as a sample rate or a flag, rather than data."""
    return array.size == 1 and array.dtype.kind in "biu"


class Traced:
    """A graph's programs.

    Where compilation depends on a tensor that the graph computes, the part that computes it runs as a graph of its own,
    and then the rest, compiled for its results.

    There are programs for the shapes of past inputs (see the head of this module), and for the values of decisive
    inputs; the latest ones are kept.
    """

    shapes: Sequence[Mapping[str, tuple[int, ...]]] = ()  # any may be traced

    def __init__(
        self,
        graph: Graph,
        *,
        exact: bool = False,
        operands: DType | None = None,
        is_part: bool = False,
        place: Place = PROCESSOR,
    ) -> None:
        self.graph = graph
        self._place = place
        self._rewritten = graph
        if not is_part:
            with built_for(place.machine):
                self._rewritten = rewritten(graph, exact=exact, operands=operands)
        self._parts: tuple[Traced | _Control, ...] = ()
        self._programs: dict[tuple[object, ...], _Programs] = {}

    def run(self, arrays: Mapping[str, Array]) -> list[Array]:
        """All outputs, from the programs of its parts in order."""
        known, results = {**arrays}, []
        for part in self._parts:
            results = part.outputs({value.name: known[value.name] for value in part.graph.inputs})
            known.update(zip(part.graph.outputs, results, strict=True))
        return results

    def outputs(self, arrays: Mapping[str, Array]) -> list[Array]:
        program = self.whole(arrays)
        return self.run(arrays) if program is None else outputs_for(program, arrays, self._place)

    def prepare(self, arrays: Mapping[str, Array]) -> None:
        program = self.whole(arrays)
        if program is not None and program.program.ir.parameters:
            whole_program(
                program.program, None if self._place.machine is None else self._place.name
            )

    def whole(self, arrays: Mapping[str, Array]) -> Imported | None:
        """The program of the whole graph for arrays like these; None where it runs in parts."""
        if self._parts:
            return None
        try:
            return self.traced(arrays)
        except (CountError, DataError) as error:
            cuts = (
                cut(self._rewritten, name) for cut in (cut_at, cut_around) for name in error.names
            )
            match next(filter(None, cuts), ()):
                case first, rest:
                    self._parts = self._part(first), self._part(rest)
                case first, node, rest:
                    before = [self._part(first)] if first.nodes else []
                    self._parts = *before, _Control(node, self._place), self._part(rest)
                case _:
                    raise
            return None

    def _part(self, graph: Graph) -> Traced:
        return Traced(graph, is_part=True, place=self._place)

    def traced(self, arrays: Mapping[str, Array]) -> Imported:
        key = tuple([(array.dtype, array.ndim) for array in arrays.values()])
        programs = keep(self._programs, key, self._programs.get(key) or _Programs(), _MAX_SETS)
        with built_for(self._place.machine):
            return programs.program(self._rewritten, arrays)

    def kept(self) -> tuple[Imported, ...]:
        programs = [one for kind in [*self._programs.values()] for one in kind.programs()]
        return (*programs, *[one for part in self._parts for one in part.kept()])


class _Control:
    """A graph of one If or Loop, whose bodies are models of their own: Python chooses a branch, or counts turns.

    So the results of branches and turns may have any shape and rank, and the number of turns may be any.

    """

    def __init__(self, graph: Graph, place: Place) -> None:
        self.graph = graph
        (self._node,) = graph.nodes
        self._bodies: dict[str, Traced] = {}
        for name, inner in self._node.attributes.items():
            if isinstance(inner, Graph):
                names = [*(value.name for value in inner.inputs), *inner.captured]
                constants = {
                    name_inside: graph.constants[name_inside]
                    for name_inside in names
                    if name_inside in graph.constants
                }
                inputs = tuple(
                    [Value(name_inside) for name_inside in names if name_inside not in constants]
                )
                body = replace(inner, inputs=inputs, constants=inner.constants | constants)
                self._bodies[name] = Traced(body, is_part=True, place=place)

    def outputs(self, arrays: Mapping[str, Array]) -> list[Array]:
        known = {**self.graph.constants, **arrays}
        inputs = [known[name] if name else None for name in self._node.inputs]
        if self._node.operator == "If":
            results = self._run("then_branch" if _element(inputs[0]) else "else_branch", known)
        else:
            results = self._turns(known, *inputs)
        named = dict(zip(self._node.outputs, results, strict=False))
        return [named[name] for name in self.graph.outputs]

    def _run(self, body: str, known: Mapping[str, Any]) -> list[Array]:
        traced = self._bodies[body]
        return traced.outputs({value.name: known[value.name] for value in traced.graph.inputs})

    def _turns(
        self, known: Mapping[str, Any], most: Any = None, goes_on: Any = None, *state: Any
    ) -> list[Array]:
        names = [value.name for value in next(self._node.graphs).inputs]
        parts: list[list[Any]] = []
        while (most is None or len(parts) < _element(most)) and (
            goes_on is None or _element(goes_on)
        ):
            turn = np.array(len(parts), np.int64), np.array(True), *state
            goes_on, *made = self._run("body", {**known, **dict(zip(names, turn, strict=True))})
            state = (*made[: len(state)],)
            parts.append([*map(on_host, made[len(state) :])])
        stacked = self._node.outputs[len(state) :]
        if any(stacked) and not parts:
            raise self._node.error(NO_STEPS)
        try:
            return [*state, *map(np.stack, zip(*parts, strict=True))]
        except ValueError:
            raise self._node.error(UNLIKE_STEPS) from None

    def kept(self) -> tuple[Imported, ...]:
        return tuple([one for body in self._bodies.values() for one in body.kept()])


def _element(array: Any) -> Any:
    return on_host(array).reshape(-1)[0]
