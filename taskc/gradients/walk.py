"""Reverse mode over the calls of a program.

    y = f(x);  loss = h(y, x)
->
    grad_y = dh/dy;  grad_x = dh/dx;  grad_x = grad_x + df(x, grad_y)

The program is made straight first (straight.py). Then its calls are recorded once more, and after them, from the last
to the first, what each one's rule makes of the gradients of its outputs. What a rule reads is what is kept: there is no
list of it. A tensor's gradients are summed in this order, so the result is the same on any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from taskc.backward import Backward, check_backward
from taskc.errors import CompileError, Location
from taskc.gradients.computations import added, computation, embedded, filled, zero
from taskc.gradients.derivatives import Term, terms
from taskc.gradients.index_maps import Turned, turned
from taskc.gradients.rules import Pullback, equivalent_of, rule_of
from taskc.gradients.straight import Node, Straight, is_short, nodes_of, straightened
from taskc.ir import nodes as ir
from taskc.ir.build import conjunction, index, product
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.rewrite import walk
from taskc.ir.signature import inputs_of, named_type, outputs_of
from taskc.ir.types import i64
from taskc.kernels.indices import REDUCTIONS, scatter_slices
from taskc.lang.definition import Definition
from taskc.lang.functions import function
from taskc.lang.source import call_site, called_from
from taskc.operators.op import op
from taskc.programs.definition import ProgramDefinition
from taskc.programs.ir import Computation, Loop, Program, Step
from taskc.programs.trace_program import traced_with, value_of
from taskc.programs.tracing import TensorHandle, Trace, current_trace


class Path:
    """The memory that gradients go through: it depends on one of some inputs, and the output depends on it."""

    def __init__(self, program: Program, inputs: Iterable[Tensor], output: Tensor) -> None:
        self.memory = {view.tensor: view.of for view in program.views}
        flows = []
        for node in _inner_nodes(program.calls):
            reads, writes = self.floats(node.reads), self.floats(node.writes)
            flows.append((reads, writes))
        self.depends = _closure({*inputs}, flows)
        self.matters = _closure({output}, [(writes, reads) for reads, writes in flows])

    def floats(self, tensors: Iterable[Tensor]) -> set[Tensor]:
        return {self.memory.get(one, one) for one in tensors if one.dtype.is_float}

    def is_through(self, node: Node) -> bool:
        reads, writes = self.floats(node.reads), self.floats(node.writes)
        return bool(reads & self.depends and writes & self.matters)


def _inner_nodes(steps: Sequence[Step]) -> Iterable[Node]:
    """The nodes of steps; of a loop that will be unrolled, those of its body."""
    for node in nodes_of(steps):
        step = node.steps[0]
        if node.callee is None and isinstance(step, Loop) and is_short(step):
            yield from _inner_nodes(step.body)
        else:
            yield node


def _closure(reached: set[Tensor], flows: Sequence[tuple[set[Tensor], set[Tensor]]]) -> set[Tensor]:
    """The tensors that are reached from some, where a flow leads from each of its first to all of its second."""
    size = -1
    while size != len(reached):
        size = len(reached)
        for first, second in flows:
            if reached & first:
                reached |= second
    return reached


def differentiated(
    program: ProgramDefinition, of: str, wrt: Sequence[str], *, with_value: bool
) -> ProgramDefinition:
    """The program of the gradients of `of` with respect to the inputs `wrt`."""
    output = _parameter(program, of, outputs_of(program.ir.parameters), "output")
    inputs = inputs_of(program.ir.parameters)
    _check_wrt(program, wrt)
    path = Path(program.ir, [_parameter(program, name, inputs, "input") for name in wrt], output)
    check_rules(program, path)
    straight = straightened(program, of, path.is_through, equivalent_of)
    return _Walk(straight, of, wrt).program(with_value)


def _check_wrt(program: ProgramDefinition, wrt: Sequence[str]) -> None:
    if isinstance(wrt, str) or not wrt:
        raise CompileError(
            f"wrt lists the names of inputs, and this is {wrt!r}", call_site(), 'say wrt=["x"]'
        )


def _parameter(program: ProgramDefinition, name: str, among: Sequence[Any], role: str) -> Tensor:
    """The parameter of a name; an error where it can have no gradient."""
    item = next((item for item in among if item.name == name), None)
    named = [item.name for item in among if isinstance(item, Tensor) and item.dtype.is_float]
    hint = f"there is {', '.join(named) or 'none'}"
    if item is None:
        raise CompileError(f"'{program.name}' has no {role} '{name}'", call_site(), hint)
    if not isinstance(item, Tensor) or not item.dtype.is_float:
        kind = named_type(item.dtype, item.shape) if isinstance(item, Tensor) else item.dtype
        raise CompileError(f"'{name}' is {kind}, and has no gradient", call_site(), hint)
    if item.layout is not None:
        raise CompileError(
            f"'{name}' has a layout of its own: its gradient would be packed", call_site()
        )
    return item


def check_rules(program: ProgramDefinition, path: Path) -> None:
    """Raise one error for all calls that a gradient goes through, and that have no rule."""
    unknown = [
        node
        for node in _inner_nodes(program.ir.calls)
        if path.is_through(node) and not is_known(node.callee)
    ]
    if not unknown:
        return
    notes = [(f"{_described(node)} has none", node.loc) for node in unknown]
    count = f"{len(unknown)} calls" if len(unknown) > 1 else "a call"
    raise CompileError(
        f"there is no rule for the gradient of {count} of '{program.name}'",
        call_site(),
        "give a kernel of yours one: kernel.gradient = program, whose parameters are named after the kernel's",
        tuple(dict.fromkeys(notes)),
    )


def is_known(callee: Computation | Definition | None) -> bool:
    if callee is None or isinstance(callee, Computation):
        return callee is not None
    if any(isinstance(item, Tensor) and item.role == "inout" for item in callee.ir.parameters):
        return False
    if callee.gradient is not None:
        check_backward(callee, callee.gradient, callee.name, "taskc")
        return True
    return rule_of(callee.problem) is not None or equivalent_of(callee.problem) is not None


def _described(node: Node) -> str:
    if node.callee is None:
        kind = type(node.steps[0]).__name__
        return {"Loop": "a loop of many steps", "Branch": "a branch", "While": "a loop by a flag"}[
            kind
        ]
    return f"{node.callee.name}()"


class _Walk:
    """One derivation: the straight program's tensors by their handles, and their gradients.

    calls      of the straight program, in the new one, which computes its tensors again
    gradients  the sum so far, of each memory that a gradient has come to
    """

    trace: Trace
    calls: Straight

    def __init__(self, program: ProgramDefinition, of: str, wrt: Sequence[str]) -> None:
        self.definition = program
        self.source = program.ir
        self.wrt = wrt
        self.output = next(item for item in outputs_of(self.source.parameters) if item.name == of)
        self.inputs = inputs_of(self.source.parameters)
        self.views = {view.tensor: view for view in self.source.views}
        chosen = [item for item in self.inputs if isinstance(item, Tensor) and item.name in wrt]
        self.path = Path(self.source, chosen, self.output)
        self.gradients: dict[Tensor, TensorHandle] = {}

    def program(self, with_value: bool) -> ProgramDefinition:
        """The gradients, named grad_x, after the value; an output y of several elements adds an input grad_y."""
        of, loc = self.output, self.source.loc
        seed = Tensor(f"grad_{of.name}", of.dtype, of.shape, ir.GLOBAL, loc=loc)
        is_one = all(extent == 1 for extent in of.shape)
        parameters = [*self.inputs] if is_one else [*self.inputs, seed]

        def body(*_: object) -> dict[str, TensorHandle]:
            trace = current_trace()
            assert trace is not None
            self.trace = trace
            nodes = self.forward()
            first = filled(trace, of, 1.0, loc) if is_one else trace.handle(seed)
            self.gradients[of] = first
            self.backward(nodes)
            value = {of.name: self.calls.read(of)} if with_value else {}
            return value | {f"grad_{name}": self.gradient_of(name) for name in self.wrt}

        name = f"{self.source.name}_gradient"
        dimensions = dict(self.definition.dimensions)
        made, kernels = traced_with(name, parameters, dimensions, body, loc)
        return ProgramDefinition(made, self.definition.dimensions, kernels)

    def gradient_of(self, name: str) -> TensorHandle:
        """The gradient of an input; zeros if the output doesn't depend on it."""
        item = next(item for item in self.inputs if item.name == name)
        assert isinstance(item, Tensor)
        found = self.gradients.get(item)
        return filled(self.trace, item, 0.0, self.source.loc) if found is None else found

    # Forwards.

    def forward(self) -> list[Node]:
        """Record the calls again; returns those that a gradient goes through."""
        self.trace.kernels |= {id(kernel.ir): kernel for kernel in self.definition.kernels}
        self.calls = Straight(self.trace, self.source, lambda node: False, lambda problem: None)
        self.calls.run(self.source.calls)
        return [node for node in nodes_of(self.source.calls) if self.path.is_through(node)]

    def value(self, argument: Tensor | Expression) -> Any:
        if isinstance(argument, Tensor):
            return self.calls.read(argument)
        return value_of(self.trace, argument)

    # Backwards.

    def backward(self, nodes: Sequence[Node]) -> None:
        for node in reversed(nodes):
            outputs = [given for _, given in node.outputs]
            gradients = [self.gradients.get(given) for given in outputs]
            if all(one is None for one in gradients):
                continue
            with called_from(node.loc):
                if isinstance(node.callee, Computation):
                    assert gradients[0] is not None
                    self.through_computation(node, node.callee, gradients[0])
                else:
                    self.through_call(node, gradients)

    def wants(self, argument: object) -> bool:
        return isinstance(argument, Tensor) and bool(
            self.path.floats([argument]) & self.path.depends
        )

    def accumulate(self, tensor: Tensor, gradient: TensorHandle, loc: Location) -> None:
        """Add a gradient of a tensor, or of a part of one, to what its memory has."""
        view = self.views.get(tensor)
        if view is not None:
            gradient = embedded(self.trace, gradient, view, None, loc)
            tensor = view.of
        before = self.gradients.get(tensor)
        if before is not None:
            gradient = added(self.trace, before, gradient, loc)
        self.gradients[tensor] = gradient

    def through_call(self, node: Node, gradients: list[TensorHandle | None]) -> None:
        callee = node.callee
        assert isinstance(callee, Definition)
        given = [argument for _, argument in node.inputs]
        outputs = [argument for _, argument in node.outputs]
        handles = [self.value(one) for one in given]
        if callee.gradient is not None:
            backward = Backward(callee, callee.gradient)
            kept = backward.kept(handles, tuple(map(self.calls.read, outputs)))
            whole = [
                filled(self.trace, one, 0.0, node.loc) if gradient is None else gradient
                for one, gradient in zip(outputs, gradients, strict=True)
            ]
            found: Sequence[TensorHandle | None] = backward.gradients(callee.gradient, kept, whole)
        else:
            rule = rule_of(callee.problem)
            assert rule is not None
            assert gradients[0] is not None
            wanted = tuple(map(self.wants, given))
            found = rule(
                Pullback(callee, tuple(handles), self.calls.read(outputs[0]), gradients[0], wanted)
            )
        for argument, gradient in zip(given, found, strict=True):
            if gradient is not None and isinstance(argument, Tensor) and self.wants(argument):
                self.accumulate(argument, gradient, node.loc)

    def through_computation(self, node: Node, called: Computation, gradient: TensorHandle) -> None:
        own = called.output
        at = ir.Tensor("gradient", own.dtype, gradient.tensor.shape, ir.GLOBAL)
        given = dict(zip(called.parameters, node.arguments, strict=True))
        arguments: dict[Any, Any] = {item: self.value(one) for item, one in node.inputs}
        arguments[at] = gradient
        extents = dict(zip(called.variables, own.shape, strict=True))
        for term in terms(called.value, ir.Read(at, called.variables)):
            argument = given[term.read.tensor]
            if self.wants(argument):
                assert isinstance(argument, Tensor)
                made = self.turned(term, extents, arguments, node.loc)
                self.accumulate(argument, made, node.loc)

    def turned(
        self, term: Term, extents: dict[Variable, Any], arguments: dict[Any, Any], loc: Location
    ) -> TensorHandle:
        """The gradient of the tensor that a term's read is of."""
        read = term.read
        back: Turned = turned(read.indices, read.tensor.shape, extents)
        if any(node in back.summed for one in back.late for node in walk(one)):
            return self.scattered(term, extents, arguments, loc)
        conditions = [*back.conditions, *map(back.applied, term.conditions), *back.late]
        value = _where(conditions, back.applied(term.value))
        shape = [*read.tensor.shape, *back.summed.values()]
        variables = [*back.places, *back.summed]
        name = f"grad_{read.tensor.name}"
        made = computation(self.trace, shape, variables, value, arguments, name, loc)
        if not back.summed:
            return made
        axes = [*range(len(back.places), len(shape))]
        summed: TensorHandle = op.ReduceSum(made, axes, keepdims=0)
        return summed

    def scattered(
        self, term: Term, extents: dict[Variable, Any], arguments: dict[Any, Any], loc: Location
    ) -> TensorHandle:
        """The gradient of elements whose index is data: added to their places one after another, in order."""
        read, shape = term.read, term.read.tensor.shape
        trailing = _trailing(read, extents)
        depth = len(shape) - len(trailing)
        leading = [variable for variable in extents if variable not in trailing]
        rows, inner = [extents[one] for one in leading], [*shape[depth:]]
        value = _where(term.conditions, term.value)
        name = f"grad_{read.tensor.name}"
        updates = computation(
            self.trace, [*rows, *inner], [*leading, *trailing], value, arguments, name, loc
        )
        outer = [one for one in term.conditions if not any(node in trailing for node in walk(one))]
        digit = Variable("digit")
        place: Expression = index(0)
        for axis in reversed(range(depth)):
            at = _where(outer, _within(read.indices[axis], shape[axis]))
            place = (
                at
                if axis == depth - 1
                else ir.Select(ir.Binary("==", digit, index(axis)), at, place)
            )
        places = computation(
            self.trace, [*rows, depth], [*leading, digit], place, arguments, "places", loc
        )
        result = filled(self.trace, read.tensor, 0.0, loc)
        count, width = self.trace.number(product(rows)), self.trace.number(product(inner))
        lines = result.reshape(*result.shape[:depth], width)
        kernel = scatter_slices(lines, i64, (count, depth), function(REDUCTIONS["add"]), name)
        kernel(places.reshape(count, depth), updates.reshape(count, width), lines)
        return result


def _where(conditions: Sequence[Expression], value: Expression) -> Expression:
    """A value, and 0 where one of the conditions doesn't hold; they are evaluated first."""
    condition = conjunction(conditions)
    return value if condition is None else ir.Select(condition, value, zero(value.dtype))


def _trailing(read: ir.Read, extents: dict[Variable, Any]) -> list[Variable]:
    """The variables of the last axes that are read whole, each at its own place."""
    found: list[Variable] = []
    for axis in reversed(range(len(read.indices))):
        at = read.indices[axis]
        others = [one for n, one in enumerate(read.indices) if n != axis]
        if not isinstance(at, Variable) or at not in extents:
            break
        if any(at in walk(one) for one in others):
            break
        extent, own = read.tensor.shape[axis], extents[at]
        if extent != own:
            break
        found.insert(0, at)
    return found


def _within(at: Expression, extent: int | Expression) -> Expression:
    """An index that is data, in bounds also where nothing is read."""
    at = at if at.dtype is i64 else ir.Cast(at, i64)
    least = ir.Binary("max", at, index(0))
    return ir.Binary("min", least, ir.Binary("-", index(extent), index(1)))
