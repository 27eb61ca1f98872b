"""fuse_computations: substitute a computation's value where others read its elements.

    temporary t: f32[64, 48]
    scaled(x, out=t)            scaled: out[i, j] = x[i, j] * 2.0
    moved(t, b, out=y)          moved: out[i, j] = t[i, j] + b[j]
->
    scaled_moved(x, b, out=y)   scaled_moved: out[i, j] = x[i, j] * 2.0 + b[j]

The value is the same to the last bit: it is substituted unchanged, in the temporary's type, and a sum of a product
stays two operations. Only taskc's operators skip its rounding to a narrow float (taskc/programs/rounding.py). A reader
of a view reads the element under it. Where elements are computed more than once, by several readers or by one that
repeats them, the operations are weighed against the memory traffic saved. Either all readers take the value, or none.

The result needs no proof: of a computation only the indices of its reads can be wrong, and a schedule either proves
each of them in bounds, or puts its read under the condition that it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.rewrite import rewritten, substitute, walk
from taskc.programs.calls import Calls, Joined, computation_of, is_free_computation, name_of
from taskc.programs.indices import seen_in
from taskc.programs.ir import Call, Computation, Program
from taskc.programs.pairs import Pairs, UnfusedError, is_fusible_kernel
from taskc.programs.rounding import joint, without_rounding
from taskc.programs.traffic import elements_of, is_small, is_worth, operations_of

_MOST_INPUTS = 24
_BYTE = 8  # bits


def fuse_computations(program: Program, *, leaves_bytes: bool = False) -> Program:
    """Fuse until nothing changes: a reader that was fused has the readers, and the cost, of both.

    leaves_bytes  bytes that are made of a kernel's wider results stay what they are, so that the kernel stores them
    """
    pairs = Pairs()
    while True:
        calls = Calls(program)
        for position, call in calls.each():
            if is_free_computation(call) and not (leaves_bytes and _shortens(calls, call)):
                _Producer(calls, pairs, position, call).fuse()
        if (changed := calls.finished()) is program:
            return program
        program = changed


def _shortens(calls: Calls, call: Call) -> bool:
    """Whether a computation makes bytes of wider results of a kernel that nobody else reads."""
    output = call.arguments[-1]
    assert isinstance(output, Tensor)
    if output.dtype.bits != _BYTE or not output.dtype.is_integer:
        return False
    for memory in calls.reads(call):
        writers = [calls.call(position) for position in calls.writers.get(memory, ())]
        of_kernel = any(map(is_fusible_kernel, filter(None, writers)))
        is_alone = memory in calls.temporaries and len(calls.readers[memory]) == 1
        if of_kernel and is_alone and memory.dtype.bits > _BYTE:
            return True
    return False


class _Producer:
    """A computation that may be fused into all of its readers."""

    def __init__(self, calls: Calls, pairs: Pairs, position: int, call: Call) -> None:
        self.calls = calls
        self.pairs = pairs
        self.position = position
        self.call = call

    def fuse(self) -> None:
        output = self.call.arguments[-1]
        assert isinstance(output, Tensor)
        readers = sorted(self.calls.readers.get(output, ()))
        if (
            output not in self.calls.temporaries
            or not self.calls.written_once(output)
            or not readers
        ):
            return
        if not all(self.reaches(reader, output) for reader in readers) or not self.is_cheap(
            output, readers
        ):
            return
        fused = [self.into(reader, output) for reader in readers]
        if None in fused:
            return
        for reader, call in zip(readers, fused, strict=True):
            self.calls.put(reader, call)
        self.calls.put(self.position, None)

    def reaches(self, reader: int, made: Tensor) -> bool:
        """Whether a reader can compute the value itself: the inputs are unchanged there, and few."""
        call = self.calls.call(reader)
        return (
            call is not None
            and is_free_computation(call)
            and len(call.arguments) <= 2 * _MOST_INPUTS
            and reader > self.position
            and self.calls.may_move(self.position, reader, made)
            and not self.calls.disturbs(reader, self.position, made)
        )

    def is_cheap(self, made: Tensor, readers: list[int]) -> bool:
        value = computation_of(self.call).value
        evaluations = 0
        for reader in readers:
            call = self.calls.call(reader)
            assert call is not None
            consumer = computation_of(call)
            read = {item for item, _ in self.calls.reading(call, made)}
            places = {_place(node) for node in _reads(consumer.value) if node.tensor in read}
            evaluations += len(places) * elements_of(consumer.output.shape)
        repeated = max(0, evaluations - elements_of(made.shape))
        return is_worth(repeated, operations_of(value), made, 1 + len(readers))

    def into(self, position: int, made: Tensor) -> Call | None:
        """The reader with the value substituted for its reads, or None where that isn't possible."""
        call = self.calls.call(position)
        assert call is not None
        return self.pairs.call(self.calls, call, self.call, None, lambda: self.merged(call, made))

    def merged(self, call: Call, made: Tensor) -> tuple[Computation, Joined]:
        producer, consumer = computation_of(self.call), computation_of(call)
        read = dict(self.calls.reading(call, made))
        gone = frozenset(read), frozenset([producer.output])  # both may be the same computation
        joined = Joined(call, consumer.parameters, self.call, gone)
        elements = _Elements(producer, joined.value(producer))
        offsets = {item: self.calls.view(given).offset for item, given in read.items()}
        change = without_rounding if consumer.unrounded else None
        merged = elements.put_into(consumer.value, offsets, made, change)
        if not is_small(merged) or len(joined.parameters()) > _MOST_INPUTS:
            raise UnfusedError("one computation would be too large")
        fused = replace(
            consumer,
            name=name_of(producer.name, consumer.name),
            parameters=joined.parameters(),
            dimensions=tuple(dict.fromkeys([*consumer.dimensions, *producer.dimensions])),
            value=merged,
            unrounded=joint(consumer, producer, merged),
        )
        return fused, joined


class _Elements:
    """The value of a computation, substituted for reads of its elements."""

    def __init__(self, producer: Computation, value: Expression) -> None:
        self.producer = producer
        self.value = value
        self.made: dict[object, Expression] = {}

    def put_into(
        self,
        value: Expression,
        offsets: dict[Tensor, int | Expression],
        made: Tensor,
        change: Callable[[Expression], Expression] | None,
    ) -> Expression:
        """A value with the elements in it; `change` is applied to what contains them."""

        def put_in(node: Expression) -> Expression:
            if not isinstance(node, ir.Read) or node.tensor not in offsets:
                return node if change is None else change(node)
            at = seen_in(node.indices, node.tensor.shape, made.shape, offsets[node.tensor])
            if at is None:
                raise UnfusedError("its shape is another one, by more than constants")
            return self.at(at)

        return rewritten(value, put_in)

    def at(self, indices: tuple[Expression, ...]) -> Expression:
        """The value of one element; equal variables as indices give the same expression."""
        key = tuple([place if isinstance(place, Variable) else id(place) for place in indices])
        element = self.made.get(key)
        if element is None:
            values = dict(zip(self.producer.variables, indices, strict=True))
            # The value keeps the indices alive, so that their identities aren't reused.
            element = self.made[key] = substitute(self.value, values)
        return element


def _reads(value: Expression) -> list[ir.Read]:
    return [node for node in walk(value) if isinstance(node, ir.Read)]


def _place(read: ir.Read) -> tuple[object, ...]:
    return (read.tensor, *[at if isinstance(at, Variable) else id(at) for at in read.indices])
