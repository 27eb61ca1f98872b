"""Vector loops: memory is accessed as vectors, and the computation is a loop over the lanes.

    for s: i32 in vector(4):                    f32 x_lanes[4];
        y[base + s] = x[base + s] * 2.0   ->    tc::load_vector(x_lanes, &x[base]);
                                                f32 y_lanes[4];
                                                #pragma unroll
                                                for (i32 s = 0; s < 4; ++s)
                                                    y_lanes[s] = x_lanes[s] * 2.0f;
                                                tc::store_vector(y, base, y_lanes);

All lanes agree on conditions, so a conditional read is loaded under the first lane's condition.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskc.analysis.reads import reads
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.affine import Affine, SymbolTable
from taskc.ir.nodes import GLOBAL, SHARED, Constant, Expression, Tensor, Variable
from taskc.ir.rewrite import map_children, substitute


@dataclass(slots=True, eq=False)
class Window:
    """Consecutive elements that the lanes access.

    place       index of the first lane's element
    share       how many consecutive lanes access the same element
    conditions  of each of its reads, for the first lane; () is always
    """

    tensor: Tensor
    offset: Affine
    place: Expression
    share: int = 1
    conditions: list[tuple[Expression, ...]] = field(default_factory=list)
    is_loaded: bool = False
    is_stored: bool = False

    @property
    def condition(self) -> Expression | None:
        """The condition under which it is loaded; None means always."""
        whole: Expression | None = None
        for parts in self.conditions:
            if not parts:
                return None
            one = parts[0]
            for part in parts[1:]:
                one = ir.Binary("and", one, part)
            whole = one if whole is None else ir.Binary("or", whole, one)
        return whole


class Windows:
    """The windows of a loop's body, in order."""

    def __init__(self, loop: ir.For, scope: SymbolTable) -> None:
        assert isinstance(loop.start, Constant)
        self.scope = scope
        self.first: dict[Variable, Expression] = {loop.variable: loop.start}
        assert isinstance(loop.stop, Constant)
        self.lanes = (int(loop.stop.value) - int(loop.start.value)) // loop.step
        self.last: dict[Variable, Expression] = {
            loop.variable: Constant(int(loop.stop.value) - loop.step, loop.variable.dtype)
        }
        self.found: list[Window] = []
        self.of: dict[int, Window] = {}  # by the identity of a Read or a Store
        body = loop.body
        for statement in body.statements if isinstance(body, ir.Sequence) else (body,):
            match statement:
                case ir.Let(variable=variable, value=value):
                    self._reads(value)
                    self.first[variable] = substitute(value, self.first)
                    self.last[variable] = substitute(value, self.last)
                case ir.Store(tensor=tensor, indices=indices, value=value):
                    self._reads(value)
                    window = self._window(tensor, indices)
                    if window is not None:
                        self.of[id(statement)] = window
                        window.is_stored = True
                case _:
                    raise InternalError(f"{type(statement).__name__} in a vector loop")

    def _reads(self, value: Expression) -> None:
        always: tuple[Expression, ...] = ()
        for read, conditions in reads(value, always, self._under):
            window = self._window(read.tensor, read.indices) if isinstance(read, ir.Read) else None
            if window is not None:
                self.of[id(read)] = window
                if window.is_loaded or not window.is_stored:
                    window.is_loaded = True
                    window.conditions.append(conditions)

    def _under(
        self, conditions: tuple[Expression, ...], condition: Expression, holds: bool
    ) -> tuple[Expression, ...]:
        first = substitute(condition, self.first)
        return *conditions, first if holds else ir.Unary("not", first)

    def _window(self, tensor: Tensor, indices: tuple[Expression, ...]) -> Window | None:
        """The window of an access; None where all lanes access one element, or registers."""
        if tensor.scope not in (GLOBAL, SHARED) or not indices:
            return None
        (index,) = indices
        place = _without_zeros(substitute(index, self.first))
        offset = self.scope.form(place)
        reach = self.scope.form(substitute(index, self.last)) - offset
        if reach == Affine(0, {}, 0):
            return None
        share = self.lanes // (int(reach.constant) + 1) if reach.is_constant else 1
        for window in self.found:
            if window.tensor is tensor and window.offset == offset:
                return window
        window = Window(tensor, offset, place, share)
        self.found.append(window)
        return window


def _without_zeros(node: Expression) -> Expression:
    """Simplify x + 0 to x."""
    node = map_children(node, _without_zeros)
    match node:
        case ir.Binary(operator="+", left=left, right=Constant(value=0)):
            return left
        case ir.Binary(operator="+", left=Constant(value=0), right=right):
            return right
    return node
