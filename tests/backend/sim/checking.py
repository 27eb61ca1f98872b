"""Programs in text form, and what the simulator is to say of them."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from taskc.backend.sim import Report, run
from taskc.ir import nodes as ir
from taskc.ir.parser import parse


def simulate(text: str, *arguments: Any, **options: Any) -> Report:
    return run(parse(textwrap.dedent(text)), arguments, **options)


def arguments_for(kernel: ir.Kernel) -> list[Any]:
    """Small distinct numbers for inputs, nothing sensible for outputs."""
    arguments: list[Any] = []
    for parameter in kernel.parameters:
        assert isinstance(parameter, ir.Tensor)
        shape = tuple(n for n in parameter.shape if isinstance(n, int))
        count = int(np.prod(shape))
        value = np.arange(1, count + 1) % 13 if parameter.role != "out" else np.full(count, 77)
        arguments.append(value.astype(parameter.dtype.numpy).reshape(shape))
    return arguments


def expect(text: str, kind: str | None = None, **options: Any) -> Report:
    """Holds a program to one kind of finding, at the line with `# here`; None: to no finding.

    A note must point at the line with `# other`, if there is one.
    """
    text = textwrap.dedent(text)
    kernel = parse(text)
    report = run(kernel, arguments_for(kernel), **options)
    if kind is None:
        assert report.findings == (), report
        return report
    lines = text.splitlines()
    here = [i + 1 for i, line in enumerate(lines) if "# here" in line]
    other = [i + 1 for i, line in enumerate(lines) if "# other" in line]
    assert report.findings, "nothing was reported"
    assert {finding.kind for finding in report.findings} == {kind}, report
    assert [finding.location.line for finding in report.findings] == here, report
    if other:
        assert other[0] in [loc.line for f in report.findings for _, loc in f.notes], report
    return report
