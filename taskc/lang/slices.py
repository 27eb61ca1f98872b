"""Parts of a program's tensors along any axes: `x[:, 1:-1]`, `x[::2]`, `b[1:-1]` of an extent that may be short.

They are no memory of their own. In a computation `part[i, j]` reads `x[i, 1 + j]`; a kernel gets a temporary. A
computation into a part becomes one of the whole that leaves the rest as it was:

    tc.compute((n, m - 2), lambda i, j: f(i, j), out=y[:, 1:-1])
->
    tc.compute((n, m), lambda i, j: f(i, j - 1) if 1 <= j < m - 1 else y[i, j], out=y)

Where a part ends before it begins it has no elements, as NumPy's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import add, floor_divide, index, modulo, multiply, subtract
from taskc.ir.mapping import Mapping
from taskc.ir.nodes import Binary, Expression, Variable
from taskc.ir.program import Computation
from taskc.ir.rewrite import substitute, walk
from taskc.ir.signature import named_type
from taskc.lang.tracing import Handle, PartHandle, TensorHandle, Trace
from taskc.lang.values import TensorPart


def part_of(part: PartHandle, tensor: ir.Tensor) -> TensorPart:
    """The part as computations index it, relative to their parameter for the whole."""
    trace = part.trace
    starts = tuple([index(trace.expression(axis.start)) for axis in part.axes])
    shape = tuple([trace.extent(trace.expression(n)) for n in part.shape])
    return TensorPart(tensor, starts, tuple([axis.step for axis in part.axes]), shape)


def into_part(
    made: Computation, given: list[Handle], part: PartHandle
) -> tuple[Computation, list[Handle]]:
    """The computation of the whole that writes only a part, and what it is given."""
    trace, whole, output = part.trace, part.whole.tensor, made.output
    shape = part_of(part, whole).shape
    fits = len(shape) == len(output.shape) and all(map(trace.are_equal, shape, output.shape))
    if not fits or output.dtype is not whole.dtype:
        wanted, found = (
            named_type(t.dtype, n) for t, n in ((whole, shape), (output, output.shape))
        )
        raise CompileError(f"{made.name}(): output 'out' must be {wanted}, not {found}", made.loc)
    if whole.role == "out":
        raise CompileError(
            f"a part of the output '{whole.name}' is written here, and the rest of it would have to be there before",
            made.loc,
            f"declare it tc.inout[{named_type(whole.dtype, whole.shape)}], or compute all of it",
        )
    known = [
        own
        for own, it in zip(made.parameters, given, strict=False)
        if isinstance(it, TensorHandle) and it.tensor is whole
    ]
    own = known[0] if known else ir.Tensor("old", whole.dtype, whole.shape, ir.GLOBAL, whole.layout)
    assert isinstance(own, ir.Tensor)
    names = iter(made.variables)
    moved: dict[Variable, Expression] = {}
    places: list[Variable] = []
    conditions: list[Expression] = []
    for axis, extent in zip(part.axes, whole.shape, strict=True):
        old = next(names) if axis.step else Variable("at")
        place = Variable(old.name)
        places.append(place)
        start = index(trace.expression(axis.start))
        beyond = subtract(place, start)
        if not axis.step:
            conditions.append(Binary("==", place, start))
            continue
        moved[old] = floor_divide(beyond, axis.step)
        end = add(start, multiply(index(trace.expression(axis.count)), axis.step))
        if not trace.are_equal(start, 0):
            conditions.append(Binary(">=", place, start))
        if axis.step > 1:
            conditions.append(Binary("==", modulo(beyond, axis.step), ir.constant(0)))
        if not trace.is_natural(trace.form(subtract(end, index(extent)))):
            conditions.append(Binary("<", place, end))
    value = substitute(made.value, moved)
    if conditions:
        inside = reduce(lambda a, b: Binary("and", a, b), conditions)
        value = ir.Select(inside, value, ir.Read(own, tuple(places), loc=made.loc), loc=made.loc)
        if not known:
            given = [*given, part.whole]
    inputs = made.parameters[:-1] if known or not conditions else (*made.parameters[:-1], own)
    output = replace(output, shape=whole.shape, layout=whole.layout)
    changed = replace(
        made,
        parameters=(*inputs, output),
        dimensions=_dimensions(trace, value, (*inputs, output)),
        variables=tuple(places),
        value=value,
    )
    return changed, given


def copy_of(
    source: TensorHandle | PartHandle, name: str, site: Location, layout: Mapping | None = None
) -> Computation:
    """The computation of a tensor's or a part's own elements."""
    trace = source.trace
    whole = (source.whole if isinstance(source, PartHandle) else source).tensor
    own = ir.Tensor("x", whole.dtype, whole.shape, ir.GLOBAL, whole.layout)
    shape = trace.extents(source.shape, site)
    variables = tuple([Variable("ijklmnop"[k % 8]) for k in range(len(shape))])
    indices: tuple[Expression, ...] = variables
    if isinstance(source, PartHandle):
        indices = part_of(source, own).indices(variables)
    value = ir.Read(own, indices, loc=site)
    output = ir.Tensor("out", whole.dtype, shape, ir.GLOBAL, layout, role="out")
    dimensions = _dimensions(trace, value, (own, output))
    return Computation(name, (own, output), dimensions, variables, value, loc=site)


def _dimensions(
    trace: Trace, value: Expression, parameters: tuple[ir.Tensor | Variable, ...]
) -> tuple[Variable, ...]:
    """The sizes named by an expression and by its tensors' extents."""
    extents = [n for own in parameters if isinstance(own, ir.Tensor) for n in own.shape]
    used = {node for part in (value, *map(index, extents)) for node in walk(part)}
    return tuple([size for size in trace.variables.values() if size in used])
