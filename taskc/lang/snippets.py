"""`tc.cuda.ptx`: a value computed by PTX text, with its meaning."""

from __future__ import annotations

import ast

from taskc.ir import nodes as ir
from taskc.ir.ptx import fault_in_snippet, has_register
from taskc.ir.rewrite import walk
from taskc.ir.types import DType
from taskc.lang.callbacks import callback
from taskc.lang.calls import Handler
from taskc.lang.context import Context, Located
from taskc.lang.conversions import scalar, typed
from taskc.lang.expressions import element_type
from taskc.lang.values import Value, counted, describe

_WHAT = "tc.cuda.ptx"
_USAGE = 'tc.cuda.ptx(f32, "ex2.approx.f32 %0, %1;", x, meaning=lambda x: tc.exp2(x))'


def _ptx(context: Context, node: ast.Call) -> Value:
    """`tc.cuda.ptx(f32, "fma.rn.f32 %0, %1, %2, %3;", a, b, c, meaning=lambda a, b, c: ...)`"""
    for keyword in node.keywords:
        if keyword.arg != "meaning":
            raise context.error(f"{_WHAT} has no argument '{keyword.arg}'", keyword)
    if len(node.args) < 2:
        raise context.error(f"{_WHAT} needs a type and a text", node, _USAGE)
    if not node.keywords:
        raise context.error(
            f"{_WHAT} needs 'meaning': what the text computes, in the language",
            node,
            "the simulator evaluates it, and checks the kernel with it; so would any other target",
        )
    dtype_node, text_node, *written = node.args
    dtype = element_type(context, dtype_node, "the type of the result is an element type")
    _require_register(context, dtype, dtype_node)
    text = context.evaluate(text_node)
    if not isinstance(text, str):
        raise context.error(f"the text is a string, and this is {describe(text)}", text_node)
    operands = tuple([scalar(context, context.evaluate(part), part) for part in written])
    for operand, part in zip(operands, written, strict=True):
        _require_register(context, operand.dtype, part)
    meaning_node = node.keywords[0].value
    parameters, meaning = _meaning(context, meaning_node, operands, dtype)
    snippet = ir.Snippet("ptx", text, parameters, meaning)
    _require_closed(context, snippet, meaning_node)
    fault = fault_in_snippet(snippet)
    if fault is not None:
        place = meaning_node if fault.startswith("the meaning") else text_node
        raise context.error(f"in {_WHAT}, {fault}", place)
    return ir.Inline(snippet, operands, loc=context.locate(node))


def _require_register(context: Context, dtype: DType, node: Located) -> None:
    if not has_register(dtype):
        wider = "i32" if dtype.kind in ("bool", "int") else "u32" if dtype.is_integer else "f16"
        raise context.error(
            f"PTX has registers of 16, 32 and 64 bits, and none for {dtype}",
            node,
            f"convert it: .to({wider})",
        )


def _meaning(
    context: Context, node: ast.expr, operands: tuple[ir.Expression, ...], dtype: DType
) -> tuple[tuple[ir.Variable, ...], ir.Expression]:
    """The parameters of a lambda or a helper, typed as the operands, and its value."""
    written = callback(context, node, "the meaning")
    if not written.takes(len(operands)):
        given = counted(len(operands), "operand")
        raise context.error(f"the text has {given}, and the meaning {written.parameters}", node)
    loc = context.locate(node)
    pairs = zip(written.named(len(operands)), operands, strict=True)
    named = tuple([ir.Variable(name, operand.dtype, loc=loc) for name, operand in pairs])
    value = written.value(context, named, "the meaning of a text")
    return named, typed(context, value, dtype, node, f"the result is {dtype}")


def _require_closed(context: Context, snippet: ir.Snippet, node: ast.expr) -> None:
    for part in walk(snippet.meaning):
        name = part.tensor if isinstance(part, (ir.Read, ir.Address)) else part
        if isinstance(name, (ir.Variable, ir.Tensor)) and name not in snippet.parameters:
            raise context.error(
                f"a meaning is about its parameters alone, and this uses '{name}'",
                node,
                f"make '{name}' an operand" if isinstance(part, ir.Variable) else None,
            )


HANDLERS: dict[str, Handler] = {"cuda.ptx": _ptx}
