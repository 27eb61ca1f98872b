"""Divergence analysis: the form of a value across the lanes of a vector.

Neighbouring workers are the lanes of a SIMD vector, or the threads of a warp: worker w is lane w % n of
vector w // n. A form says how far each lane's value is from lane 0's:

    uniform      all offsets are 0            one scalar, one load for all
    contiguous   0, 1, 2, ...                 one vector load
    strided      0, s, 2 * s, ...             a gather of known places
    known        any other known offsets      likewise
    varying      offsets that aren't known    a gather

So an index is uniform arithmetic on lane 0's value plus a constant vector, whatever a mapping did with
the worker's number: `worker // 4` and `worker % 4` are known on 16 lanes, since 4 divides 16.

An index of taskc/analysis/accesses can't say this: it lists what each worker of a block has, where all that a
term names is known. Here one form holds for every vector of a block, of conditions and floats, too, through
names, private memory and loops that lanes enter apart; and of a number that is known by its remainder alone.

Integers wrap. Offsets and remainders by powers of two don't mind; quotients and wider types do, so they
are known only of i64, where it would take a value within a vector of 2**63.
"""

from __future__ import annotations

from math import gcd

from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.nodes import LOCAL, REGISTER, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import statements
from taskc.ir.types import i64

Offsets = tuple[int, ...]


# Comparisons as `difference < 0` or `difference < 1`, or their opposites.
_ORDERED = {"<": 0, ">=": 0, "<=": 1, ">": 1}


@dataclass(frozen=True, slots=True)
class LaneForm:
    """offsets: each lane's value minus lane 0's, or None.

    Lane 0's value is congruent to the remainder, modulo the divisor; divisor 0 means that it is the remainder.
    """

    offsets: Offsets | None
    divisor: int = 1
    remainder: int = 0

    @property
    def is_known(self) -> bool:
        return self.offsets is not None

    @property
    def is_uniform(self) -> bool:
        return self.offsets is not None and not any(self.offsets)

    @property
    def stride(self) -> int | None:
        """The distance of neighbouring lanes, where it is always the same."""
        if self.offsets is None or len(self.offsets) < 2:
            return None
        step = self.offsets[1]
        is_even = all(offset == step * lane for lane, offset in enumerate(self.offsets))
        return step if is_even else None

    @property
    def is_contiguous(self) -> bool:
        return self.stride == 1


VARYING = LaneForm(None)


class LaneForms:
    """The forms of a kernel's expressions, at stage scalar or lean, on vectors of `width` workers."""

    def __init__(self, kernel: ir.Kernel, width: int) -> None:
        self.width = width
        self._uniform = (0,) * width
        self._forms: dict[Variable, LaneForm] = {}
        self._memo: dict[int, tuple[Expression, LaneForm]] = {}
        # Private memory that holds one value for all lanes, until a store says otherwise.
        self._varying: set[Tensor] = set()
        count = -1
        while count != len(self._varying):
            count = len(self._varying)
            self._forms = {
                kernel.worker: LaneForm(
                    tuple(range(width)), 0 if kernel.workers <= width else width
                ),
            }
            self._memo = {}
            self._visit(kernel.body, True)

    def is_varying(self, tensor: Tensor) -> bool:
        """Whether private memory may hold different values on different lanes."""
        return tensor in self._varying

    def uniform(self, divisor: int = 1, remainder: int = 0) -> LaneForm:
        return LaneForm(self._uniform, divisor, remainder % divisor if divisor else remainder)

    def is_uniform(self, expression: Expression) -> bool:
        return self.form(expression).is_uniform

    def form(self, expression: Expression) -> LaneForm:
        if isinstance(expression, Variable):
            return self._forms.get(expression, LaneForm(self._uniform, expression.multiple))
        found = self._memo.get(id(expression))
        if found is None:
            found = expression, self._form(expression)
            self._memo[id(expression)] = found
        return found[1]

    def learn(self, variable: Variable, form: LaneForm) -> None:
        """Set the form of a name that the kernel doesn't bind."""
        self._forms[variable] = form

    # Expressions.

    def _form(self, expression: Expression) -> LaneForm:
        match expression:
            case ir.Constant(value=value):
                return (
                    self.uniform(0, int(value)) if expression.dtype.is_integer else self.uniform()
                )
            case ir.Binary() if expression.dtype.is_integer:
                form = self._binary(expression.operator, expression.left, expression.right)
                if expression.dtype is i64 or form.offsets is None:
                    return form
                # Only what workers are counted in has offsets: others are the same on all lanes.
                return self._wrapped(form) if form.is_uniform else VARYING
            case ir.Cast(operand=operand, dtype=dtype) if dtype.is_integer:
                form = self.form(operand)
                if dtype is operand.dtype:
                    return form
                if not form.is_uniform:
                    return VARYING
                is_wider = operand.dtype.is_integer and dtype.bits >= operand.dtype.bits
                return self._wrapped(form) if is_wider else self.uniform()
            case ir.Select(condition=condition, then=then, otherwise=otherwise):
                if not self.is_uniform(condition):
                    return VARYING
                a, b = self.form(then), self.form(otherwise)
                if a.offsets is None or a.offsets != b.offsets:
                    return VARYING
                return _of(
                    a.offsets, gcd(a.divisor, b.divisor, a.remainder - b.remainder), a.remainder
                )
            case ir.Read(tensor=tensor, indices=indices):
                is_private = tensor.scope in (LOCAL, REGISTER)
                if is_private and tensor in self._varying:
                    return VARYING
                return self._uniform_if(*map(self.form, indices))
            case ir.Lookup(index=index):
                return self._uniform_if(self.form(index))
            case ir.Unary(operand=operand):
                return self._uniform_if(self.form(operand))
            case ir.Binary(operator=operator, left=left, right=right):
                if (
                    operator in _ORDERED
                    and left.dtype is i64
                    and self._is_same(operator, left, right)
                ):
                    return self.uniform()
                return self._uniform_if(self.form(left), self.form(right))
            case ir.Fused(left=left, right=right, addend=addend):
                return self._uniform_if(*map(self.form, (left, right, addend)))
            case ir.Cast(operand=operand) | ir.Bitcast(operand=operand):
                return self._uniform_if(self.form(operand))
            case ir.Inline(operands=operands):
                return self._uniform_if(*map(self.form, operands))
        return VARYING

    def _is_same(self, operator: str, left: Expression, right: Expression) -> bool:
        """Whether a comparison has the same result on all lanes, as when its threshold lies between vectors.

        With lane 0's difference a multiple k of the divisor, and what is left, k alone decides then.
        """
        difference = self._binary("-", left, right)
        if difference.offsets is None or difference.divisor == 0:
            return False
        first = difference.remainder - _ORDERED[operator]
        return len({(first + offset) // difference.divisor for offset in difference.offsets}) == 1

    def _wrapped(self, form: LaneForm) -> LaneForm:
        """The part of a form that still holds where the number may have wrapped."""
        divisor = form.divisor or form.remainder
        power = divisor & -divisor
        return self.uniform(power, form.remainder if form.divisor else 0)

    def _uniform_if(self, *forms: LaneForm) -> LaneForm:
        return self.uniform() if all(form.is_uniform for form in forms) else VARYING

    def _binary(self, operator: str, left: Expression, right: Expression) -> LaneForm:
        a, b = self.form(left), self.form(right)
        if a.offsets is None or b.offsets is None:
            return VARYING
        if operator in "+-":
            sign = 1 if operator == "+" else -1
            offsets = a.offsets
            if b.offsets is not self._uniform:
                offsets = tuple([x + sign * y for x, y in zip(offsets, b.offsets, strict=True)])
            return _of(offsets, gcd(a.divisor, b.divisor), a.remainder + sign * b.remainder)
        if operator == "*" and isinstance(left, ir.Constant):
            a, b, right = b, a, left
        if isinstance(right, ir.Constant) and a.offsets is not None:
            number, first = int(right.value), a.remainder
            if operator == "*":
                offsets = tuple([x * number for x in a.offsets])
                return _of(offsets, a.divisor * abs(number), first * number)
            if operator in ("//", "%") and number != 0 and a.divisor % number == 0:
                if operator == "//":
                    offsets = tuple([(first + x) // number - first // number for x in a.offsets])
                    return _of(offsets, a.divisor // abs(number), first // number)
                offsets = tuple([(first + x) % number - first % number for x in a.offsets])
                return LaneForm(offsets, 0, first % number)
        if operator == "*" and a.is_uniform and b.is_uniform:
            cross = a.divisor * b.remainder, b.divisor * a.remainder
            return self.uniform(gcd(a.divisor * b.divisor, *cross), a.remainder * b.remainder)
        return self._uniform_if(a, b)

    # Statements.

    def _visit(self, statement: Statement, uniform: bool) -> None:
        """Record the forms of names; `uniform` says whether all lanes run the statement together."""
        match statement:
            case ir.Let(variable=variable, value=value):
                self._forms[variable] = self.form(value)
            case ir.Store(tensor=tensor, indices=indices, value=value):
                if tensor.scope in (LOCAL, REGISTER) and not (
                    uniform and all(map(self.is_uniform, (*indices, value)))
                ):
                    self._varying.add(tensor)
            case ir.Atomic(result=result) | ir.Do(result=result):
                if result is not None:
                    self._forms[result] = VARYING
                for part in statement.operands if isinstance(statement, ir.Do) else ():
                    if isinstance(part, ir.Address) and part.tensor.scope in (LOCAL, REGISTER):
                        self._varying.add(part.tensor)
            case ir.For(variable=variable, start=start, stop=stop, step=step):
                begin = self.form(start)
                self._forms[variable] = _of(
                    begin.offsets, gcd(begin.divisor, step), begin.remainder
                )
                uniform = uniform and begin.is_uniform and self.is_uniform(stop)
            case ir.If(condition=condition) | ir.While(condition=condition):
                uniform = uniform and self.is_uniform(condition)
            case _:
                pass  # it gives no name a value
        for below in statements(statement):
            self._visit(below, uniform)


def _of(offsets: Offsets | None, divisor: int, first: int) -> LaneForm:
    """The form whose value on lane 0 is congruent to `first`, modulo the divisor."""
    return LaneForm(offsets, divisor, first % divisor if divisor else first)
