"""The programs of a model: one for each of the first shapes, and then one with dimensions that serves many.

A program in which all extents are numbers is the fastest, and most models are called with one set of shapes or two. So
the first `_EXACT` sets get a program each. The next one gets a program with dimensions (`tc.dim`), which serves later
calls too: it is compiled once, and only its memory plan is made again for each set of sizes.

**Which extents are dimensions**: the ones that have changed, in the least general form of the shapes so far.

    ids [1, 17], mask [1, 17]
    ids [1, 40], mask [1, 40]
    ids [1, 25], mask [1, 25]        ids [1, n], mask [1, n]

An extent that never changed stays a number, and extents that were always equal are one dimension, so that shapes match
as they do in the model. A call that doesn't have this form gets a more general program. Extents of 0 and 1 are special
cases of most operators, so the form is that of the shapes with the same ones: a decoder's prompts, with an empty cache,
have a program, and its single tokens, with a cache, have another.

**Relations.** Extents that the model compares, and that were equal at all these calls, are written as sizes of each
other:

    ids [1, 1], past [1, 7], mask [1, 8]
    ids [1, 1], past [1, 8], mask [1, 9]        ids [1, 1], past [1, n], mask [1, n + 1]

The program is traced again with the relation, and serves the calls for which it holds.

**Decisions that depend on a size**: the program takes the decision of the call that it is compiled for, and records it
(`Assumptions`). It serves calls that lead to the same decisions.

**Sizes that have to be numbers**: where an operator or a kernel needs a number, the extents that it comes from are
numbers from then on (`SizeError`), with a program for each of their values, and the log names them. In the worst case
these are all extents.

At most `_MOST_OPEN` programs with dimensions are made for one set of decisive values. After that each set of shapes has
a program of its own. A dimension is at least 1: an axis without elements is a number. `taskc.runtime.served` keeps the
latest programs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeAlias

from taskc import CompileError, TensorType, dim
from taskc.arrays.device import AnyArray
from taskc.dataclass import dataclass
from taskc.ir.affine import affine
from taskc.ir.extents import python_text
from taskc.ir.nodes import Expression, Variable
from taskc.ir.reentry import Turn
from taskc.ir.rewrite import substitute, walk
from taskc.ir.text_rules import identifier, unused
from taskc.ir.types import DType, from_numpy
from taskc.lang.sizes import Dimension, Number, Size, number_of
from taskc.onnx.importer import Imported, import_graph, inputs_behind
from taskc.operators.call import DataError, SizeError
from taskc.operators.graph import Array, Graph
from taskc.programs.sizes import Assumptions, value_at
from taskc.runtime.driver import whole_program
from taskc.runtime.served import Arrays, Condition, Types, keep, on_host

if TYPE_CHECKING:
    from taskc.onnx.states import States

logger = logging.getLogger(__name__)

_EXACT = 2  # sets of shapes with a program each, before one with dimensions is compiled
_MOST_OPEN = 8

Shapes: TypeAlias = tuple[tuple[int, ...], ...]  # of the inputs, in their order
Axis: TypeAlias = tuple[int, int]  # the input's number, and the axis's


@dataclass(frozen=True, slots=True)
class Form:
    """Shapes in which some extents are dimensions, or sizes of those that are extents of other axes."""

    extents: Mapping[Axis, Number]

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        return tuple(dict.fromkeys(n for n in self.extents.values() if isinstance(n, Dimension)))

    def sizes(self, shapes: Shapes) -> dict[Dimension, int] | None:
        """The values of the dimensions at shapes of this form, each at least 1; None for other shapes."""
        values = self._values(shapes)
        return None if values is None or 0 in values.values() else values

    def _values(self, shapes: Shapes) -> dict[Dimension, int] | None:
        values: dict[Dimension, int] = {}
        for (number, axis), extent in self.extents.items():
            if isinstance(extent, Dimension):
                values.setdefault(extent, shapes[number][axis])
        for (number, axis), extent in self.extents.items():
            known = extent if isinstance(extent, int) else value_at(extent, values)
            if known != shapes[number][axis]:
                return None
        return values

    def shape(self, number: int, rank: int) -> tuple[Number, ...]:
        return tuple([self.extents[number, axis] for axis in range(rank)])

    def related(self, differences: Iterable[Size], seen: Sequence[Shapes]) -> Form | None:
        """The form with one dimension fewer, as one of the differences is 0 at all shapes of it; None if none is.

        The dimension is replaced by a sum: m by n + 1 where m - n - 1 is 0.
        """
        calls = [values for values in map(self._values, seen) if values is not None]
        for difference in differences:
            if any(value_at(difference, values) for values in calls):
                continue
            form, dimensions = affine(difference.expression), difference.dimensions
            for variable, dimension in dimensions.items():
                factor = form.coefficient(variable)
                if abs(factor) != 1:
                    continue
                total = form.without(variable).scaled(-factor)
                value, counts = total.to_expression(), total.terms.values()
                is_sum = total.constant >= 0 and all(count > 0 for count in counts)
                if is_sum and variable not in walk(value):
                    return self._replaced(dimension, value, dimensions)
        return None

    def _replaced(
        self, dimension: Dimension, value: Expression, known: Mapping[Variable, Dimension]
    ) -> Form:
        extents = {}
        for at, extent in self.extents.items():
            if isinstance(extent, Size) and dimension.variable in extent.dimensions:
                written = substitute(extent.expression, {dimension.variable: value})
                extent = number_of(written, {**extent.dimensions, **known})
            extents[at] = extent
        return Form(extents)


def least_general(seen: Sequence[Shapes], numbers: set[Axis], names: Mapping[Axis, str]) -> Form:
    """The least general form of some shapes; axes in `numbers` keep the last shapes' extents."""
    extents: dict[Axis, Number] = {}
    dimensions: dict[tuple[int, ...], Dimension] = {}
    for number, shape in enumerate(seen[-1]):
        for axis, size in enumerate(shape):
            at = number, axis
            sizes = tuple([shapes[number][axis] for shapes in seen])
            if at in numbers or len({*sizes}) == 1:
                extents[at] = size
                continue
            if sizes not in dimensions:
                taken = {dimension.name for dimension in dimensions.values()}
                dimensions[sizes] = dim(unused(names[at], taken))
            extents[at] = dimensions[sizes]
    return Form(extents)


def form_of_states(
    shapes: Shapes,
    numbers: set[Axis],
    names: Mapping[Axis, str],
    states: States,
    inputs: Sequence[str],
) -> Form:
    """The form of a session's calls, from one of them: all extents may change but 1, and those of the states' memory.

    An extent that is one more than the filled places stays so: a mask has the new token, too.
    """
    place = inputs.index(states.position.name), 0
    (filled,) = shapes[place[0]]
    extents: dict[Axis, Number] = {}
    known: dict[int, Number] = {}
    if filled and place not in numbers:
        filling = dim(names[place], most=states.capacity)
        extents[place] = known[filled] = filling
        known[filled + 1] = filling + 1
    fixed = {extent for value in states.memory.values() for extent in value.shape or ()}
    for number, shape in enumerate(shapes):
        for axis, size in enumerate(shape):
            at = number, axis
            if at in numbers or size < 2 or inputs[number] in states.memory or names[at] in fixed:
                extents.setdefault(at, size)
                continue
            if size not in known:
                known[size] = dim(unused(names[at], {*map(str, known.values())}))
            extents.setdefault(at, known[size])
    return Form(extents)


def condition(
    form: Form, assumptions: Assumptions, types: Types, names: Mapping[Axis, str]
) -> Condition:
    """Whether types of inputs have a form, equal extents for equal names, and sizes that fit the assumptions.

    types  of inputs that have the form
    """
    sizes = {dimension.variable: f"n{k}" for k, dimension in enumerate(form.dimensions)}
    unread, by_name = {*sizes}, dict[str, set[str]]()
    reads, tests = list[str](), list[str]()
    for number, (_, shape) in enumerate(types):
        texts = []
        for axis, extent in enumerate(form.shape(number, len(shape))):
            texts.append(_text(extent, sizes))
            if isinstance(extent, Dimension) and extent.variable in unread:
                unread.discard(extent.variable)
                reads.append(f"len(t[{number}][1]) == {len(shape)}")
                reads.append(f"({texts[-1]} := t[{number}][1][{axis}]) > 0")
            if (number, axis) in names:
                by_name.setdefault(names[number, axis], {texts[-1]}).add(texts[-1])
        tests.append(f"t[{number}] == (d{number}, ({''.join(f'{text},' for text in texts)}))")
    tests += [" == ".join(equal) for equal in by_name.values() if len(equal) > 1]
    for one in assumptions:
        text = f"{_text(one.difference, sizes)} {one.operator} 0"
        tests.append(text if one.holds else f"not {text}")
    return Condition(" and ".join(reads + tests), [dtype for dtype, _ in types])


def _text(size: Number, names: Mapping[Variable, str]) -> str:
    return python_text(size.expression if isinstance(size, Size) else size, names)


@dataclass(slots=True)
class Versions:
    """The programs of a graph for one set of values of its decisive inputs.

    dtypes   of the other inputs
    known    the decisive inputs
    late     names of tensors that decide only when a program runs
    open     the programs with dimensions
    seen     the last shapes that programs were compiled for
    numbers  axes that must not be dimensions
    states   of a session: then the first program has dimensions, too
    """

    graph: Graph
    dtypes: Mapping[str, DType]
    known: Mapping[str, Array]
    late: frozenset[str]
    open: list[Imported] = field(default_factory=list)
    seen: deque[Shapes] = field(default_factory=lambda: deque(maxlen=_EXACT + _MOST_OPEN))
    numbers: set[Axis] = field(default_factory=set)
    turn: Turn = field(default_factory=Turn)
    states: States | None = None

    def program(self, shapes: Shapes) -> Imported:
        """A program with dimensions that serves these shapes, or a new one."""
        types = self._types(shapes)
        for one in [*self.open]:
            if one.serves is not None and one.serves(types):
                return one
        with self.turn.taken() as is_alone:
            opened = self._opened(shapes) if is_alone else None
            if opened is not None:
                self.open.append(opened)
                return opened
            kinds = {
                name: dtype[shape]
                for (name, dtype), shape in zip(self.dtypes.items(), shapes, strict=True)
            }
            return import_graph(self.graph, kinds, self.known, None, self.late, self.states)

    def _types(self, shapes: Shapes) -> Types:
        dtypes = [dtype.numpy for dtype in self.dtypes.values()]
        return tuple(zip(dtypes, shapes, strict=True))

    def _opened(self, shapes: Shapes) -> Imported | None:
        """A program with dimensions for shapes that no other serves; None if they get a program of their own."""
        self.seen.append(shapes)
        exact = _EXACT if self.states is None else 0
        if len(self.seen) <= exact or len(self.open) == _MOST_OPEN:
            return None
        alike = [one for one in self.seen if _special_extents(one) == _special_extents(shapes)]
        seen = alike if len(alike) > 1 else [*self.seen]
        if self.states is not None:
            seen = [shapes]
        form = self._form(seen)
        while sizes := form.sizes(shapes):
            assumptions = Assumptions(sizes)
            error: CompileError | None = None
            try:
                imported = self._traced(form, shapes, assumptions)
            except CompileError as failure:
                error = failure
            related = form.related(reversed(assumptions.differences.values()), seen)
            if related is not None:
                form = related
                continue
            if error is None:
                error = _compiled(imported)
                if error is None:
                    serves = condition(form, assumptions, self._types(shapes), self._declared())
                    return replace(imported, serves=serves)
            if len(alike) == 1 and self.states is None:
                return None
            self._fix_as_numbers(error, form)
            form = self._form(seen)
        return None

    def _form(self, seen: Sequence[Shapes]) -> Form:
        if self.states is None:
            return least_general(seen, self.numbers, self._names())
        inputs, declared = [*self.dtypes], {v.name: v.shape or () for v in self.graph.inputs}
        numbers = {
            (number, axis)
            for number, name in enumerate(inputs)
            for axis, extent in enumerate(declared[name])
            if isinstance(extent, int)
        }
        return form_of_states(seen[-1], self.numbers | numbers, self._names(), self.states, inputs)

    def _fix_as_numbers(self, error: CompileError, form: Form) -> None:
        """Make the axes with the dimensions that an error names, or with any, numbers from now on.

        A program without dimensions may still compile; if the model is wrong, it reports the error.
        """
        dimensions = {*form.dimensions}
        if isinstance(error, SizeError):
            dimensions = {*error.dimensions} & dimensions or dimensions
        inputs, named = [*self.dtypes], dict[Dimension, str]()
        for (number, axis), extent in form.extents.items():
            if isinstance(extent, Dimension) and extent in dimensions:
                self.numbers.add((number, axis))
                named.setdefault(extent, f"{extent} (axis {axis} of '{inputs[number]}')")
        text = (
            "%s: each value of %s gets a program of its own, which compiles at its first call: %s"
        )
        logger.warning(text, self.graph.name or "model", ", ".join(named.values()), error)

    def _traced(self, form: Form, shapes: Shapes, assumptions: Assumptions) -> Imported:
        kinds = {
            name: TensorType(dtype, form.shape(number, len(shapes[number])))
            for number, (name, dtype) in enumerate(self.dtypes.items())
        }
        return import_graph(self.graph, kinds, self.known, assumptions, self.late, self.states)

    def _declared(self) -> dict[Axis, str]:
        """The names that the model gives axes, but for those of states' memory."""
        values = {value.name: value for value in self.graph.inputs}
        memory = () if self.states is None else self.states.memory
        return {
            (number, axis): extent
            for number, name in enumerate(self.dtypes)
            for axis, extent in enumerate(values[name].shape or ())
            if name not in memory and isinstance(extent, str) and extent.isidentifier()
        }

    def _names(self) -> dict[Axis, str]:
        """The name of each axis as a dimension: the model's, or one made from its input's."""
        own = {
            (number, axis): identifier(f"{name}_{axis}")
            for number, name in enumerate(self.dtypes)
            for axis in range(len(self.seen[-1][number]))
        }
        return own | self._declared()


def _special_extents(shapes: Shapes) -> list[tuple[int | None, ...]]:
    """The extents for which operators have special cases: axes without elements, and axes of one, which broadcast."""
    return [tuple([size if size < 2 else None for size in shape]) for shape in shapes]


def _compiled(imported: Imported) -> CompileError | None:
    """Compile a program; returns the error that prevents it."""
    try:
        if imported.program.ir.parameters:
            whole_program(imported.program)
    except CompileError as error:
        return error
    return None


# --- Tensors whose elements decide what is compiled ---------------------------------------------


MAX_SETS = 32  # sets of types, and sets of decisive values
_MAX_DECISIVE = 256  # elements of an input that decides what is compiled


@dataclass(slots=True)
class Kind:
    """A graph for inputs of one set of types and ranks.

    The elements of some inputs (`decisive`) decide what is compiled: shapes, numbers of repeats, conditions. There are
    programs for each set of their values. Tensors named in `late` decide only when the program runs.
    """

    graph: Graph
    decisive: tuple[str, ...] = ()
    late: frozenset[str] = frozenset()
    versions: dict[tuple[object, ...], Versions] = field(default_factory=dict)
    states: States | None = None

    def program(self, feeds: Arrays) -> Imported:
        while True:
            decisive = tuple([one for one in self.decisive if feeds[one].size <= _MAX_DECISIVE])
            shapes = tuple([array.shape for name, array in feeds.items() if name not in decisive])
            try:
                return self._versions(feeds, decisive).program(shapes)
            except DataError as error:
                self._decide(error, feeds, decisive)

    def _decide(self, error: DataError, feeds: Arrays, decisive: tuple[str, ...]) -> None:
        """Make one more tensor decide at compile time or at run time; another thread may have done so already."""
        for name in error.names:
            behind = inputs_behind(self.graph, name) - {*decisive}
            if error.can_wait and not (
                behind and all(_is_option(feeds[input_name]) for input_name in behind)
            ):
                if name not in self.late:
                    self.late |= {name}
                    self.versions.clear()
                return
            # A tensor computed from floats differs from call to call: the graph is cut there.
            few = [
                input_name
                for input_name in sorted(behind)
                if feeds[input_name].size <= _MAX_DECISIVE
                and (input_name == name or feeds[input_name].dtype.kind in "biu")
            ]
            if few:
                added = [input_name for input_name in few if input_name not in self.decisive]
                self.decisive = tuple(dict.fromkeys((*self.decisive, *added)))
                if added:
                    self.versions.clear()
                return
        raise error

    def _versions(self, feeds: Arrays, decisive: tuple[str, ...]) -> Versions:
        """The programs for these values of the decisive inputs."""
        known = {name: on_host(feeds[name]) for name in decisive}
        values = [(array.shape, array.tobytes()) for array in known.values()]
        late = self.late
        key = decisive, late, *values
        versions = self.versions.get(key)
        if versions is None:
            known = {name: array.copy() for name, array in known.items()}
            others = {name: array for name, array in feeds.items() if name not in decisive}
            dtypes = {name: from_numpy(array.dtype) for name, array in others.items()}
            versions = Versions(self.graph, dtypes, known, late, states=self.states)
        keep(self.versions, key, versions, MAX_SETS)
        return versions


def _is_option(array: AnyArray) -> bool:
    """Whether an input looks like an option, such as a sample rate or a flag, rather than data."""
    return array.size == 1 and array.dtype.kind in "biu"
