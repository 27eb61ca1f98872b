"""Kernels as text, taken through passes, and held to what they computed before."""

from __future__ import annotations

from textwrap import dedent, indent
from typing import Any

import numpy as np
import pytest

from taskc.backend.sim import run
from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.ir.verify import verify
from taskc.passes.pipeline import Pass, lower_steps
from tests.stages import same_after_every_pass


def kernel(
    body: str,
    parameters: str = "x: f32[64], c: out f32[64]",
    *,
    workers: int = 32,
    target: str = "generic",
    stage: str = "parsed",
    dimensions: str = "",
) -> ir.Kernel:
    names = f"[{dimensions}]" if dimensions else ""
    head = f"kernel k{names}({parameters}) workers={workers} stage={stage} target={target}:\n"
    return parse(head + indent(dedent(body).strip("\n"), "    ") + "\n")


def through(start: ir.Kernel, *passes: Pass) -> ir.Kernel:
    for one in passes:
        start = one(start)
        verify(start)
    return start


def after(start: ir.Kernel, name: str) -> ir.Kernel:
    """The kernel after a pass, the first time that it runs."""
    return next(step.kernel for step in lower_steps(start) if step.name == name)


def before_and_after(before: ir.Kernel, now: ir.Kernel) -> str:
    return f"# before\n{to_text(before)}\n# after\n{to_text(now)}"


def arguments_for(start: ir.Kernel, sizes: dict[str, int] | None = None) -> list[Any]:
    """Numbers whose sums depend on their order, and nothing sensible for outputs."""
    made: list[Any] = []
    for parameter in start.parameters:
        assert isinstance(parameter, ir.Tensor)
        shape = [n if isinstance(n, int) else (sizes or {})[str(n)] for n in parameter.shape]
        number = np.arange(int(np.prod(shape)))
        value = (number * 37 % 101) / 8 + 1 / (number % 7 + 3)
        if parameter.dtype.is_integer:
            value = number * 37 % 101
        if parameter.role == "out":
            value = np.full(number.size, 77)
        made.append(value.astype(parameter.dtype.numpy).reshape(shape))
    return made


def result(start: ir.Kernel, sizes: dict[str, int] | None = None, **options: Any) -> list[Any]:
    """The arguments after a run that shows nothing wrong."""
    arguments = arguments_for(start, sizes)
    report = run(start, arguments, **options)
    assert report.ok, f"{report}\n{to_text(start)}"
    return arguments


def keeps_its_result(start: ir.Kernel, sizes: dict[str, int] | None = None) -> ir.Kernel:
    """Holds the kernel after every pass to what it computes as it is; returns the last one."""
    return same_after_every_pass(start, arguments_for(start, sizes))[-1]


def refused(start: ir.Kernel, *passes: Pass) -> CompileError:
    with pytest.raises(CompileError) as caught:
        through(start, *passes)
    return caught.value


def nodes(start: ir.Kernel, kind: type) -> list[Any]:
    return [node for node in walk(start.body) if isinstance(node, kind)]


def messages(start: ir.Kernel) -> list[str]:
    return [message for message, _ in start.notes]
