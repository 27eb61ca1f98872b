"""The rules of a stage for the verifier, and the error that names a broken rule."""

from __future__ import annotations

from typing import Any

from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Statement
from taskc.ir.printer import statement_text, to_text
from taskc.ir.specification import STAGES, attributes, permitted, stages_of
from taskc.ir.types import DType, boolean


class Rules:
    """The rules of a kernel's stage, for the statement that the verifier is at."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        if kernel.stage not in STAGES:
            raise InternalError(
                f"{kernel.name}: there is no stage {kernel.stage!r}", to_text(kernel)
            )
        self.stage = STAGES.index(kernel.stage)
        self.permitted = permitted(self.stage)
        self.attributes = attributes(self.stage)
        self.cluster = ir.cluster_of(kernel)
        self.current: Statement | None = None
        self.inside = 0  # number of enclosing mapping loops and moves

    def broken(self, rule: str) -> InternalError:
        message = f"{self.kernel.name} breaks a rule of stage {self.kernel.stage}: {rule}"
        if self.current is not None:
            message += f", in `{statement_text(self.current).partition(chr(10))[0]}`"
            place = str(getattr(self.current, "loc", ""))
            message += f" ({place})" if place else ""
        return InternalError(message, to_text(self.kernel))

    def need(self, holds: bool, rule: str) -> None:
        if not holds:
            raise self.broken(rule)

    def not_here(self, what: type | str) -> InternalError:
        first, last = stages_of(what)
        name = what if isinstance(what, str) else what.__name__
        return self.broken(f"{name} belongs in the stages {STAGES[first]} to {STAGES[last]}")

    def attributes_of(self, node: Any) -> None:
        for rule in self.attributes.get(type(node), ()):
            if not rule.holds(node):
                stages = f"in the stages {STAGES[rule.first]} to {STAGES[rule.last]}"
                raise self.broken(f"a {type(node).__name__} {rule.says} {stages}")

    def same_type(self, left: DType, right: DType, what: str) -> None:
        if left is not right:
            raise self.broken(f"{what} have one type, not {left} and {right}")

    def is_bool(self, condition: Expression) -> None:
        self.same_type(condition.dtype, boolean, "a condition and its meaning")
