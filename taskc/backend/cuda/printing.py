"""`tc.print` as CUDA's printf."""

from __future__ import annotations

import json

from taskc.backend.cuda.expressions import Expressions
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression
from taskc.ir.types import boolean, f64


def print_text(node: ir.Print, expressions: Expressions) -> str:
    first, *pieces = node.text.replace("%", "%%").split("{}")
    shown = [_shown(value, expressions) for value in node.values]
    text = first + "".join(
        [form + piece for (form, _), piece in zip(shown, pieces, strict=True)] + ["\n"]
    )
    return f"printf({', '.join([json.dumps(text, ensure_ascii=False), *(v for _, v in shown)])});"


def _shown(value: Expression, expressions: Expressions) -> tuple[str, str]:
    """A value's printf format, and the argument to pass."""
    dtype = value.dtype
    if dtype is boolean:
        return "%s", f'({expressions(value)}) ? "True" : "False"'
    if dtype.is_integer:
        sign = "d" if dtype.is_signed else "u"
        return ("%ll" if dtype.bits == 64 else "%") + sign, expressions(value)
    if dtype is f64:
        return "%.17g", expressions(value)
    return "%.9g", expressions(ir.Cast(value, f64))
