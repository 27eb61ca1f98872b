"""Programs for the proofs, as text, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from textwrap import dedent, indent

import pytest

from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.parser import parse
from taskc.passes.proofs.accesses import KernelAccesses, collect

Prover = Callable[[KernelAccesses], Iterable[CompileError]]


@dataclass(frozen=True, slots=True)
class Case:
    """A program; with a `message`, the error that it gets, and where: at the `mark`ed text."""

    name: str
    parameters: str
    body: str
    message: str | None = None
    mark: str = ""
    hint: str = ""
    workers: int = 4
    dimensions: str = ""

    def kernel(self) -> ir.Kernel:
        return parse(self.text)

    @property
    def text(self) -> str:
        dimensions = f"[{self.dimensions}]" if self.dimensions else ""
        head = f"kernel k{dimensions}({self.parameters}) workers={self.workers} stage=parsed:\n"
        return head + indent(dedent(self.body).strip("\n"), "    ") + "\n"

    @property
    def place(self) -> tuple[int, int]:
        """Line and column of the last occurrence of the marked text."""
        before = self.text[: self.text.rindex(self.mark)]
        return before.count("\n") + 1, len(before) - before.rfind("\n")


def check(case: Case, prover: Prover) -> None:
    errors = list(prover(collect(case.kernel())))
    if case.message is None:
        assert not errors, "\n".join(map(str, errors))
        return
    assert len(errors) == 1, [str(error) for error in errors]
    error = errors[0]
    assert error.message == case.message
    assert (error.location.line, error.location.column) == case.place
    assert case.hint in (error.hint or "")


def cases(*items: Case) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", items, ids=lambda case: case.name)
