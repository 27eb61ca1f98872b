"""The accesses of a program come in its order, each with the loops and conditions that it is under."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskc.analysis.touches import Loop, Touch, visit_touches
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Statement
from taskc.ir.parser import parse
from taskc.ir.printer import expression_text


@dataclass(frozen=True)
class Words:
    """What is known, spelled out."""

    around: tuple[str, ...] = ()

    def add(self, word: str) -> Words:
        return replace(self, around=(*self.around, word))

    def assume(self, condition: Expression, holds: bool) -> Words:
        return self.add(f"{'' if holds else 'not '}{expression_text(condition)}")

    def repeated(self, loop: Loop) -> Words:
        return self.add("again")

    def under(self, loop: Loop) -> Words:
        return self.add(type(loop).__name__)

    def within(self, role: ir.Role) -> Words:
        return self.add(role.name)

    def behind(self, statement: Statement) -> Words:
        match statement:
            case ir.Let():
                return self.add(f"behind {statement.variable.name}")
            case _:
                return self


KERNEL = """
kernel k(a: f32[8], n: i64, b: inout f32[8]) workers=4 stage=parsed:
    let c = a[0] < 1.0
    if n > 1 and a[1] < 1.0:
        let d = a[2]
        each i in spatial(4):
            b[i] = select(c, a[3], 0.0)
    else:
        while b[4] < 1.0:
            b[5] = 1.0
    for j in range(n):
        b[j] = 1.0
    move b[p] = a[p] for p in 8 if p < n
"""


def test_all_accesses_of_a_program() -> None:
    touches: list[Touch[Words]] = []
    visit_touches(parse(KERNEL).body, Words(), touches.append)
    found = [
        f"{expression_text(ir.Read(touch.node.tensor, touch.node.indices))}: "
        + ", ".join(touch.known.around)
        for touch in touches
        if not isinstance(touch.node, ir.Operand)
    ]
    both = "n > 1 and a[1] < 1.0"
    assert found == [
        "a[0]: ",
        "a[1]: behind c, n > 1",
        f"a[2]: behind c, {both}",
        f"a[3]: behind c, {both}, behind d, again, Each, c",
        f"b[i]: behind c, {both}, behind d, again, Each",
        f"b[4]: behind c, not {both}, again",
        f"b[5]: behind c, not {both}, again, While",
        "b[j]: behind c, again, For",
        "a[p]: behind c, Move, p < n",
        "b[p]: behind c, Move, p < n",
    ]
