"""If, where the condition is known."""

from __future__ import annotations

from taskc.onnx.operators import Call, Made, operator


@operator("If")
def if_(call: Call) -> Made:
    taken = "then_branch" if bool(call.known(0).reshape(-1)[0]) else "else_branch"
    return call.inline(call.attribute(taken), ())
