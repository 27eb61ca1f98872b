"""Code for rare operands: a function that is called if any lane needs it. And lookup tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from taskc.backend.cpu.builder import SCALAR, Builder, Value, constant, type_of, vector_of
from taskc.backend.cpu.elementwise import Elementwise
from taskc.backend.cpu.instructions import suffix_of
from taskc.backend.cpu.math.notation import Number, Term
from taskc.ir.types import DType, f32

Terms = tuple[Term, ...]


def where_rare(
    condition: Term, name: str, compute: Callable[..., Terms], operands: Terms, usual: Terms
) -> Terms:
    """`compute` of the operands where a condition holds, `usual` elsewhere.

    The function is written once a module, under a name: inlined, it would be most of an unrolled loop.
    Operands pass through memory.
    """
    elementwise, x = operands[0].elementwise, operands[0]
    builder = elementwise.builder
    function = f"{name}.{x.dtype}.{x.value.lanes}"
    if function not in builder.declared:
        builder.declared[function] = _definition(function, compute, operands, builder)
    start, rare, end = builder.block, builder.label("rare"), builder.label("end")
    builder.branch(elementwise.any(condition.value), rare, end)
    builder.start(rare)
    places = [builder.allocate(term.value.type, "rare") for term in (*operands, *usual)]
    for term, place in zip(operands, places, strict=False):
        builder.emit(f"store {term.value.typed}, ptr {place}")
    builder.emit(f"call void @{function}({', '.join(f'ptr {place}' for place in places)})")
    with builder.nested():
        chosen = []
        for term, place in zip(usual, places[len(operands) :], strict=True):
            result = builder.impure(f"load {term.value.type}, ptr {place}")
            chosen.append(
                condition.select(
                    replace(term, value=replace(term.value, text=result, number=None)), term
                )
            )
    builder.jump(end)
    builder.start(end)
    joined = []
    for term, other in zip(usual, chosen, strict=True):
        ways = f"[ {term.value.text}, %{start} ], [ {other.value.text}, %{rare} ]"
        text = builder.impure(f"phi {term.value.type} {ways}")
        joined.append(replace(term, value=replace(term.value, text=text, number=None)))
    return tuple(joined)


def _definition(
    function: str, compute: Callable[..., Terms], operands: Terms, around: Builder
) -> str:
    builder = Builder(declared=around.declared)
    loaded = [
        builder.impure(f"load {term.value.type}, ptr %x{number}")
        for number, term in enumerate(operands)
    ]
    results = compute(
        *(
            Term(Elementwise(builder), replace(term.value, text=text, number=None))
            for term, text in zip(operands, loaded, strict=True)
        )
    )
    for number, result in enumerate(results):
        builder.emit(f"store {result.value.typed}, ptr %r{number}")
    places = [f"ptr noalias %x{number}" for number in range(len(operands))]
    places += [f"ptr noalias %r{number}" for number in range(len(results))]
    return "\n".join(
        [
            f"define internal void @{function}({', '.join(places)}) noinline cold nounwind {{",
            *builder.lines,
            "  ret void",
            "}",
        ]
    )


def lookup(name: str, numbers: Sequence[Number], dtype: DType, index: Term) -> Term:
    """numbers[index], from a table named `name`."""
    builder, lanes, element = index.elementwise.builder, index.value.lanes, type_of(dtype)
    listed = ", ".join(constant(number, dtype).typed for number in numbers)
    table = f"@{name} = private constant [{len(numbers)} x {element}] [{listed}]"
    builder.declared.setdefault(name, table)
    address = builder.pure(f"getelementptr {element}, ptr @{name}, {index.value.typed}")
    if not lanes:
        text = builder.pure(f"load {element}, ptr {address}")
        return Term(index.elementwise, Value(text, dtype))
    kind, pointers, mask = (vector_of(each, lanes) for each in (element, "ptr", "i1"))
    function = f"llvm.masked.gather.v{lanes}{suffix_of(dtype, SCALAR)}.v{lanes}p0"
    builder.declare(kind, function, pointers, mask, kind)
    operands = f"{pointers} align {dtype.nbytes} {address}, {mask} splat (i1 true), {kind} poison"
    text = builder.pure(f"call {kind} @{function}({operands})")
    return Term(index.elementwise, Value(text, dtype, lanes))


def lookup_of_32(name: str, numbers: Sequence[float], index: Term) -> Term:
    """numbers[index % 32] of 32 f32; from registers where the processor has an instruction for it."""
    picked = index.elementwise.pick(numbers, index.value)
    if picked is None:
        return lookup(name, numbers, f32, index & 31)
    return Term(index.elementwise, picked)
