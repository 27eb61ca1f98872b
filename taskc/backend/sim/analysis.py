"""What the simulator wants to know of a program before it runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from taskc.ir import nodes as ir
from taskc.ir.rewrite import statements, walk

_SIMPLE = frozenset((ir.Let, ir.Allocate, ir.Store, ir.Atomic, ir.Move, ir.Print, ir.Assert, ir.Do))
_ONE_BY_ONE = (
    ir.Print,
    ir.Do,
    ir.Barrier,
    ir.RingStep,
    ir.Move,
    ir.Mma,
    ir.Reduce,
    ir.Scan,
    ir.Roles,
)


def statements_in(body: ir.Statement) -> Iterator[ir.Statement]:
    """`body` and the statements in it, in program order."""
    stack = [body]
    while stack:
        current = stack.pop()
        yield current
        if type(current) not in _SIMPLE:
            stack.extend(reversed(list(statements(current))))


def writes(body: ir.Statement) -> Iterator[ir.Tensor]:
    """The tensors that `body` stores to or updates, once for each place that does."""
    return writes_among(statements_in(body))


def writes_among(nodes: Iterable[object]) -> Iterator[ir.Tensor]:
    for node in nodes:
        match node:
            case ir.Store(tensor=tensor) | ir.Atomic(tensor=tensor) | ir.Move(tensor=tensor):
                yield tensor
            case ir.Mma(accumulator=tensor):
                yield tensor
            case ir.Reduce(target=tensor) | ir.Scan(target=tensor):
                yield tensor
            case ir.Do(operation="cp.async" | "tma.load" | "tma.store", operands=operands):
                place = operands[0]
                if isinstance(place, ir.Address):
                    yield place.tensor


def divergent_locals(body: ir.Statement) -> frozenset[ir.Tensor]:
    """LOCAL tensors that are stored to in a mapping loop: they may differ among workers."""
    return frozenset(
        tensor
        for node in statements_in(body)
        if isinstance(node, ir.Each)
        for tensor in writes(node.body)
        if tensor.scope == ir.LOCAL
    )


def tasks_are_independent(each: ir.Each) -> bool:
    """A worker's tasks may run at once, side by side, with the same effect as one after another.

    That is so where what one task writes no other task touches: every access to a tensor that is
    written has, for each variable of the loop, an index that is one-to-one in the variable and the
    same in all accesses. A tensor that is only stored to, at one place outside inner loops, may
    have any indices, since stores take effect in the order of the tasks.
    """
    private: set[ir.Tensor] = set()
    bound: set[ir.Variable] = set(each.variables)
    accesses: dict[ir.Tensor, list[tuple[ir.Expression, ...]]] = {}
    stores: Counter[ir.Tensor] = Counter()
    reads: set[ir.Tensor] = set()
    inner: set[ir.Tensor] = set()
    for node in walk(each.body):
        match node:
            case ir.Allocate(tensor=tensor):
                private.add(tensor)
            case ir.Read(tensor=tensor, indices=indices):
                reads.add(tensor)
                accesses.setdefault(tensor, []).append(indices)
            case ir.Store(tensor=tensor, indices=indices):
                stores[tensor] += 1
                accesses.setdefault(tensor, []).append(indices)
            case ir.Atomic(tensor=tensor, indices=indices, result=result, operator=operator):
                if result is not None or operator == "exchange" or tensor.dtype.is_float:
                    return False
                stores[tensor] += 1
                reads.add(tensor)
                accesses.setdefault(tensor, []).append(indices)
            case ir.Let(variable=variable):
                bound.add(variable)
            case ir.For(variable=variable, body=body):
                bound.add(variable)
                inner.update(writes(body))
            case ir.Each(variables=variables, body=body):
                bound.update(variables)
                inner.update(writes(body))
            case ir.While(body=body):
                inner.update(writes(body))
            case _ if isinstance(node, _ONE_BY_ONE):
                return False
    written = [tensor for tensor in stores if tensor not in private]
    if any(_overlaid(tensor, other) for tensor in written for other in accesses):
        return False
    varying = [
        variable
        for variable, extent in zip(each.variables, each.mapping.shape, strict=True)
        if extent > 1
    ]
    distinct = each.mapping.is_composed or not each.mapping.is_replicated
    for tensor in written:
        if stores[tensor] == 1 and tensor not in reads and tensor not in inner:
            continue
        if not distinct:
            return False
        first, *rest = accesses[tensor]
        for variable in varying:
            if not any(
                _is_injective(index, variable, bound) and all(other[i] == index for other in rest)
                for i, index in enumerate(first)
            ):
                return False
    return True


def _overlaid(tensor: ir.Tensor, other: ir.Tensor) -> bool:
    """Both have been given places in shared memory: they may overlap."""
    return tensor is not other and tensor.offset is not None and other.offset is not None


def _is_injective(index: ir.Expression, variable: ir.Variable, bound: set[ir.Variable]) -> bool:
    match index:
        case ir.Variable():
            return index is variable
        case ir.Binary(operator="+" | "-", left=left, right=right):
            return (_is_injective(left, variable, bound) and _is_fixed(right, bound)) or (
                _is_injective(right, variable, bound) and _is_fixed(left, bound)
            )
        case ir.Binary(operator="*", left=left, right=ir.Constant(value=value)):
            return value != 0 and _is_injective(left, variable, bound)
    return False


def _is_fixed(expression: ir.Expression, bound: set[ir.Variable]) -> bool:
    """The same for all tasks: it names nothing that the loop binds and reads nothing."""
    return not any(
        isinstance(n, (ir.Read, ir.Lookup)) or n in bound
        for n in walk(expression)
        if isinstance(n, (ir.Read, ir.Lookup, ir.Variable))
    )
