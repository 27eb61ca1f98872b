"""Powers of integers."""

from __future__ import annotations

from dataclasses import replace

from taskc.backend.cpu.math.notation import Term


def integer_power(x: Term, y: Term) -> Term:
    """x**y modulo 2**bits, by repeated squaring.

    A negative power is the inverse of the positive one, truncated: 0, except for 1 and -1.
    """
    if y.value.number is not None and y.value.number >= 0:
        return _known_power(x, int(y.value.number))
    if not y.dtype.is_signed:
        return _power(x, y)
    is_inverse = y < 0
    result = _power(x, is_inverse.select(y & 1, y))
    is_whole = x.equals(1) | x.equals(-1)
    return (is_inverse & is_whole.unary("not")).select(0, result)


def _known_power(x: Term, n: int) -> Term:
    result = x.of(1)
    while n:
        if n & 1:
            result = result * x
        n >>= 1
        if n:
            x = x * x
    return result


def _power(x: Term, y: Term) -> Term:
    """Powers with exponents that aren't negative, by a loop that ends where no lane has digits left.

    What it changes passes through memory.
    """
    elementwise, builder, kind = x.elementwise, x.elementwise.builder, x.value.type
    result, square, left = (builder.allocate(kind, "power") for _ in range(3))

    def load(place: str) -> Term:
        text = builder.impure(f"load {kind}, ptr {place}")
        return replace(x, value=replace(x.value, text=text, number=None))

    def store(term: Term, place: str) -> None:
        builder.emit(f"store {term.value.typed}, ptr {place}")

    for term, place in ((x.of(1), result), (x, square), (y, left)):
        store(term, place)
    head, body, end = (builder.label(hint) for hint in ("digits", "digit", "end"))
    builder.jump(head)
    builder.start(head)
    with builder.nested():
        builder.branch(elementwise.any(load(left).differs(0).value), body, end)
        builder.start(body)
        factor, digits, product = load(square), load(left), load(result)
        store((digits & 1).differs(0).select(product * factor, product), result)
        store(factor * factor, square)
        store(digits >> 1, left)
        builder.jump(head)
    builder.start(end)
    return load(result)
