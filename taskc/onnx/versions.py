"""The programs of a model: one for each of the first shapes, and then one for all that change as they did.

A program in which all extents are numbers is the fastest, and most models are called with one set of shapes or two. So
the first `_EXACT` sets get a program each. The next one gets a program with dimensions (`tc.dim`), which serves later
calls too: it is compiled once, and only its plan, the place of each temporary, is made for each set of sizes.

**Which extents are dimensions**: those that have changed, as the least general form of the shapes so far.

    ids [1, 17], mask [1, 17]
    ids [1, 40], mask [1, 40]
    ids [1, 25], mask [1, 25]        ids [1, n], mask [1, n]

What was one number each time stays that number, and what was equal each time is one dimension, so that shapes fit each
other as they do in the model. A call that doesn't have this form gets a program that is more general.

**What is built by them**: where an operator goes one way or another by a size, the program goes that of the call that
it is made for, and has assumed so (`Assumptions`); it serves the calls that would have gone the same way.

**What can't be left open**: where an operator or a kernel needs a number, the extents that it has come from are numbers
from then on (`SizeError`): there is a program for each of their values. In the worst case that is all of them.

No more than `_MOST_OPEN` programs with dimensions are made for one set of decisive values. Behind them, and for arrays
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
from taskc.operators.graph import Array, Graph, Node, Value
from taskc.operators.results import on_host
from taskc.runtime.driver import whole_program
from taskc.runtime.machine import built_for

logger = logging.getLogger(__name__)

_EXACT = 2  # sets of shapes with a program each, before there is one with dimensions
_MOST_EXACT = 32
_MOST_OPEN = 8
_MOST_SERVED = 1024  # sets of shapes of which it is kept which program with dimensions serves them

Shapes: TypeAlias = tuple[tuple[int, ...], ...]  # of the inputs, in their order
Axis: TypeAlias = tuple[int, int]  # of which input, and which one of its own

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


def keep(kept: dict[_Key, _Item], key: _Key, item: _Item, most: int) -> _Item:
    """Puts an item last, and drops the first of too many."""
    kept.pop(key, None)
    item = kept.setdefault(key, item)
    for old in [*kept][:-most]:
        kept.pop(old, None)
    return item


@dataclass(frozen=True, slots=True)
class Form:
    """Shapes some of whose extents are dimensions."""

    extents: Mapping[Axis, int | Dimension]

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        return tuple(dict.fromkeys(n for n in self.extents.values() if isinstance(n, Dimension)))

    def sizes(self, shapes: Shapes) -> dict[Dimension, int] | None:
        """What the dimensions are at shapes of this form, which have elements; None for others."""
        found: dict[Dimension, int] = {}
        for (number, axis), extent in self.extents.items():
            size = shapes[number][axis]
            known = extent if isinstance(extent, int) else found.setdefault(extent, size)
            if known != size or size == 0:
                return None
        return found

    def shape(self, number: int, rank: int) -> tuple[int | Dimension, ...]:
        return tuple([self.extents[number, axis] for axis in range(rank)])


def least_general(seen: Sequence[Shapes], numbers: set[Axis], names: Mapping[Axis, str]) -> Form:
    """The form that all of some shapes have, but for axes that are numbers: those of the last shapes."""
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
    used, found, count = {one.name for one in dimensions}, name, 1
    while found in used:
        count += 1
        found = f"{name}_{count}"
    return found


@dataclass(frozen=True, slots=True)
class _Open:
    """A program with dimensions, and the calls that it is right for."""

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
    late     names of what decides only when a program runs
    seen     the last shapes that a program was made for
    numbers  axes that are no dimensions
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
        """What runs for arrays of these shapes. Where it isn't there one thread makes it, and those that need one that
        isn't there either wait."""
        found = self._found(shapes)
        if found is not None:
            return found
        with self.making.taken() as is_alone:
            return self._found(shapes) or self._made(shapes, is_alone)

    def programs(self) -> list[Imported]:
        return [*self.exact.values(), *(one.imported for one in [*self.open])]

    def _found(self, shapes: Shapes) -> Imported | None:
        found = self.exact.get(shapes)
        if found is not None:
            return keep(self.exact, shapes, found, _MOST_EXACT)
        found = self.served.get(shapes)
        if found is None:
            found = next((one.imported for one in [*self.open] if one.serves(shapes)), None)
        return found and keep(self.served, shapes, found, _MOST_SERVED)

    def _made(self, shapes: Shapes, is_alone: bool) -> Imported:
        opened = self._opened(shapes) if is_alone else None
        if opened is not None:
            self.open.append(opened)
            return opened.imported
        kinds = {
            name: dtype[shape]
            for (name, dtype), shape in zip(self.dtypes.items(), shapes, strict=True)
        }
        made = import_graph(self.graph, kinds, self.known, late=self.late)
        return keep(self.exact, shapes, made, _MOST_EXACT)

    def _opened(self, shapes: Shapes) -> _Open | None:
        """A program with dimensions for shapes that no other serves; None where they are to have one of their own."""
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
                made = self._compiled(form, shapes, assumptions)
            except SizeError as error:
                self._without({*error.dimensions} & {*form.dimensions} or {*form.dimensions}, form)
                continue
            except CompileError as error:
                # A program without dimensions may be right; if the model is wrong, that one says so.
                text = "%s: each set of shapes gets a program of its own, which compiles at its first call: %s"
                logger.warning(text, self.graph.name or "model", error)
                self._without({*form.dimensions}, form)
                continue
            return _Open(form, assumptions, made)

    def _without(self, dimensions: set[Dimension], form: Form) -> None:
        """Has the axes that were these be numbers from now on."""
        self.numbers |= {at for at, extent in form.extents.items() if extent in dimensions}

    def _compiled(self, form: Form, shapes: Shapes, assumptions: Assumptions) -> Imported:
        kinds = {
            name: TensorType(dtype, form.shape(number, len(shapes[number])))
            for number, (name, dtype) in enumerate(self.dtypes.items())
        }
        made = import_graph(self.graph, kinds, self.known, assumptions, self.late)
        if made.program.ir.parameters:
            whole_program(made.program)
        return made

    def _names(self) -> dict[Axis, str]:
        """What an axis is called if it is a dimension: as the model calls it, or by its input."""
        values = {value.name: value for value in self.graph.inputs}
        found: dict[Axis, str] = {}
        for number, name in enumerate(self.dtypes):
            for axis in range(len(self.seen[-1][number])):
                said = (values[name].shape or {axis: None})[axis]
                is_name = isinstance(said, str) and said.isidentifier()
                found[number, axis] = str(said) if is_name else identifier(f"{name}_{axis}")
        return found


# --- A graph as two: first what a tensor depends on, and the rest once it is known what that tensor is
#     x -> NonZero -> n -> Gather -> y        x -> NonZero -> n        x, n -> Gather -> y
#
# Where something is compiled by the elements of a tensor, or by how many it has, it must be known what they are. So a
# graph is cut there, each part runs as a model does, and the second takes as inputs what the first has made.
#
# Within the body of a Loop it is another tensor each turn. So the graph is cut around the Loop, whose body is a model
# of its own that is called for each turn; branches of an If likewise.


def cut_at(graph: Graph, name: str) -> tuple[Graph, ...]:
    """What makes a tensor, and what is left; nothing where no node of the graph itself makes it."""
    before = _behind(graph, [name])
    return _halves(graph, before) if before else ()


def cut_around(graph: Graph, name: str) -> tuple[Graph, ...]:
    """What an If or a Loop needs in whose graphs a tensor is made, that node alone, and what is left; or nothing."""
    for node in graph.nodes:
        if node.operator in ("If", "Loop") and name in _within(node):
            before, rest = _halves(graph, _behind(graph, node.reads))
            return before, *_halves(rest, {node})
    return ()


def _halves(graph: Graph, before: set[Node]) -> tuple[Graph, Graph]:
    ahead = tuple([node for node in graph.nodes if node not in before])
    made = {output for node in before for output in node.outputs}
    wanted = {*graph.outputs}.union(*(node.reads for node in ahead))
    handed = tuple([output for output in sorted(made & wanted) if output])
    inputs = tuple([value for value in graph.inputs if value.name in wanted])
    values = tuple([graph.values.get(output) or Value(output) for output in handed])
    first = replace(graph, outputs=handed, nodes=tuple([n for n in graph.nodes if n in before]))
    return first, replace(graph, inputs=(*inputs, *values), nodes=ahead)


def _behind(graph: Graph, names: Iterable[str]) -> set[Node]:
    """The nodes that tensors depend on."""
    makers = {output: node for node in graph.nodes for output in node.outputs if output}
    found: set[Node] = set()
    waiting = [*names]
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and node not in found:
            found.add(node)
            waiting += node.reads
    return found


def _within(node: Node) -> Iterator[str]:
    """The names of what the graphs in a node's attributes are given and make, at any depth."""
    for graph in node.graphs:
        yield from (value.name for value in graph.inputs)
        for inner in graph.nodes:
            yield from inner.outputs
            yield from _within(inner)


# --- The programs that a graph is traced as, while a model is called ----------------------------


_MOST_KEPT = 32  # sets of types, and of decisive values


@dataclass(slots=True)
class _Programs:
    """What has been made for inputs of one set of types and ranks.

    The elements of some inputs decide what is compiled: shapes, numbers of repeats, conditions. There are programs for
    each set of them, and `decisive` says which inputs they are. What else decides, under the names `late`, does so
    when the program runs.
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
        """Has one more thing decide what is compiled, or what is run; another thread may have found it out."""
        for name in error.names:
            behind = inputs_behind(graph, name) - {*decisive}
            if error.can_wait and not (behind and all(_is_option(feeds[one]) for one in behind)):
                if name not in self.late:
                    self.late |= {name}
                    self.made.clear()
                return
            # A tensor that is computed of floats is another one each time: the graph is cut there.
            few = [
                one
                for one in sorted(behind)
                if feeds[one].size <= MOST_DECISIVE
                and (one == name or feeds[one].dtype.kind in "biu")
            ]
            if few:
                found = [one for one in few if one not in self.decisive]
                self.decisive = tuple(dict.fromkeys((*self.decisive, *found)))
                if found:
                    self.made.clear()
                return
        raise error

    def programs(self) -> list[Imported]:
        return [one for versions in [*self.made.values()] for one in versions.programs()]

    def _versions(
        self, graph: Graph, feeds: Mapping[str, Array]
    ) -> tuple[tuple[str, ...], Versions, Shapes]:
        """The decisive inputs, the programs for these values of them, and the shapes of the others."""
        decisive = tuple([it for it in self.decisive if feeds[it].size <= MOST_DECISIVE])
        late = self.late
        rest = {name: array for name, array in feeds.items() if name not in decisive}
        known = {name: on_host(feeds[name]) for name in decisive}
        values = [(array.shape, array.tobytes()) for array in known.values()]
        key = decisive, late, *values
        versions = self.made.get(key)
        if versions is None:
            known = {name: array.copy() for name, array in known.items()}
            dtypes = {name: from_numpy(array.dtype) for name, array in rest.items()}
            versions = Versions(graph, dtypes, known, late)
        versions = keep(self.made, key, versions, _MOST_KEPT)
        return decisive, versions, tuple([array.shape for array in rest.values()])


def _is_option(array: Array) -> bool:
    """Whether it is rather a choice among programs than data: a sample rate, a flag."""
    return array.size == 1 and array.dtype.kind in "biu"


class Traced:
    """A graph's programs.

    Where what is compiled depends on what a part of the graph has computed, that part runs as a graph of its own, and
    then the rest, for what it has made.

    There are programs for the shapes that the inputs have had (versions.py), and for values where what is compiled
    depends on them; the latest ones are kept.
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
        """All outputs, by the programs of its parts."""
        known, made = {**arrays}, []
        for part in self._parts:
            made = part.outputs({value.name: known[value.name] for value in part.graph.inputs})
            known.update(zip(part.graph.outputs, made, strict=True))
        return made

    def outputs(self, arrays: Mapping[str, Array]) -> list[Array]:
        found = self.whole(arrays)
        return self.run(arrays) if found is None else outputs_for(found, arrays, self._place)

    def prepare(self, arrays: Mapping[str, Array]) -> None:
        found = self.whole(arrays)
        if found is not None and found.program.ir.parameters:
            whole_program(found.program, None if self._place.machine is None else self._place.name)

    def whole(self, arrays: Mapping[str, Array]) -> Imported | None:
        """What runs all of the graph for arrays like these; None where it runs in parts."""
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
        programs = keep(self._programs, key, self._programs.get(key) or _Programs(), _MOST_KEPT)
        with built_for(self._place.machine):
            return programs.program(self._rewritten, arrays)

    def kept(self) -> tuple[Imported, ...]:
        own = [one for kind in [*self._programs.values()] for one in kind.programs()]
        return (*own, *[one for part in self._parts for one in part.kept()])


class _Control:
    """A graph of one If or Loop, whose graphs are models of their own: Python chooses a branch, and counts turns.

    So what a branch and each turn make may be of any shape and rank, and turns may be as many as they are.
    """

    def __init__(self, graph: Graph, place: Place) -> None:
        self.graph = graph
        (self._node,) = graph.nodes
        self._bodies: dict[str, Traced] = {}
        for name, inner in self._node.attributes.items():
            if isinstance(inner, Graph):
                names = [*(value.name for value in inner.inputs), *inner.captured]
                constants = {one: graph.constants[one] for one in names if one in graph.constants}
                inputs = tuple([Value(one) for one in names if one not in constants])
                body = replace(inner, inputs=inputs, constants=inner.constants | constants)
                self._bodies[name] = Traced(body, is_part=True, place=place)

    def outputs(self, arrays: Mapping[str, Array]) -> list[Array]:
        known = {**self.graph.constants, **arrays}
        given = [known[name] if name else None for name in self._node.inputs]
        if self._node.operator == "If":
            made = self._run("then_branch" if _element(given[0]) else "else_branch", known)
        else:
            made = self._turns(known, *given)
        named = dict(zip(self._node.outputs, made, strict=False))
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
