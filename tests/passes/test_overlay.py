"""Tensors that are alive together have bytes of their own."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from taskc.ir import nodes as ir
from taskc.passes.overlap import overlap
from taskc.passes.overlay import ALIGNMENT, overlay
from taskc.passes.select import select
from tests.passes.kernels import (
    before_and_after,
    keeps_its_result,
    kernel,
    nodes,
    refused,
    result,
    through,
)

Golden = Callable[[str, str], None]

THREE = """
shared a: f32[64]
shared b: f32[32]
each i in spatial(32):
    a[i] = x[i]
    a[i + 32] = x[i]
each i in spatial(32):
    b[i] = a[63 - i]
shared d: f32[48]
each i in spatial(32):
    d[i] = b[31 - i]
each i in spatial(32):
    c[i] = d[31 - i]
"""


def places(start: ir.Kernel) -> dict[str, tuple[int, int]]:
    """The bytes [first, end) of each shared tensor."""
    found: dict[str, tuple[int, int]] = {}
    for node in nodes(overlay(start), ir.Allocate):
        tensor = node.tensor
        if tensor.scope == ir.SHARED:
            size = tensor.dtype.nbytes
            for extent in tensor.layout.shape if tensor.layout is not None else tensor.shape:
                size *= extent
            assert tensor.offset is not None
            found[tensor.name] = tensor.offset, tensor.offset + size
    return found


def share(found: dict[str, tuple[int, int]], one: str, other: str) -> bool:
    return found[one][0] < found[other][1] and found[other][0] < found[one][1]


def small(body: str, **options: object) -> ir.Kernel:
    return kernel(body, "x: f32[32], c: out f32[32]", **options)  # type: ignore[arg-type]


def test_golden(golden: Golden) -> None:
    start = overlap(select(small(THREE)))
    golden("passes/overlay", before_and_after(start, through(start, overlay)))


def test_lives_that_do_not_overlap_share_bytes() -> None:
    start = small(THREE)
    found = places(start)
    assert share(found, "a", "d")
    assert not share(found, "a", "b")
    assert not share(found, "b", "d")
    keeps_its_result(start)


def test_places_are_aligned() -> None:
    found = places(small(THREE.replace("f32[32]", "f32[33]").replace("f32[48]", "f32[49]")))
    assert all(first % ALIGNMENT == 0 for first, _ in found.values())


def test_a_loop_is_one_statement() -> None:
    """What is used in a loop from outside lives through all of it; what a turn allocates does not."""
    start = small(
        """
        shared a: f32[32]
        each i in spatial(32):
            a[i] = x[i]
        for t in range(3):
            shared b: f32[32]
            each i in spatial(32):
                b[i] = a[31 - i]
            shared d: f32[32]
            each i in spatial(32):
                d[i] = b[31 - i]
            shared e: f32[32]
            each i in spatial(32):
                e[i] = d[31 - i]
            each i in spatial(32):
                a[i] = e[31 - i]
        each i in spatial(32):
            c[i] = a[i]
        """
    )
    found = places(start)
    assert share(found, "b", "e")
    for one, other in ("ab", "ad", "ae", "bd", "de"):
        assert not share(found, one, other)
    keeps_its_result(start)


def test_roles_run_beside_each_other() -> None:
    start = kernel(
        """
        roles:
            role one first=0 workers=32:
                shared s: f32[32]
                each i in spatial(32):
                    s[i] = x[i]
                barrier warp
                each i in spatial(32):
                    c[i] = s[31 - i]
            role two first=32 workers=32:
                shared t: f32[32]
                each i in spatial(32):
                    t[i] = x[32 + i]
                barrier warp
                each i in spatial(32):
                    c[32 + i] = t[31 - i]
        shared u: f32[64]
        barrier block
        each i in spatial(64):
            u[i] = c[i]
        """,
        "x: f32[64], c: inout f32[64]",
        workers=64,
        stage="synchronized",
        target="sm_90a",
    )
    found = places(start)
    assert not share(found, "s", "t")
    assert share(found, "s", "u")
    result(overlay(start), seed=1)


def test_more_than_there_is() -> None:
    start = small(
        """
        shared a: f32[30000]
        shared b: f32[20000]
        each i in spatial(32):
            a[i] = x[i]
            b[i] = x[i]
        """,
        target="sm_80",
    )
    error = refused(select(start), overlay)
    assert error.message == "a block needs 200064 bytes of shared memory; sm_80 has 166912"
    assert error.hint == "`a` alone takes 120000"
    assert error.location.line == 2
    overlay(select(small("shared a: f32[41728]", target="sm_80")))  # all of it


def test_mbarriers_need_room_too() -> None:
    def ring(rows: int) -> ir.Kernel:
        return kernel(
            f"""
            shared rest: f32[{rows}, 64]
            each i in spatial(32):
                rest[0, i] = x[i, 0]
            pipeline p in 512 by 64 stages=2 transport=tma:
                constant shared s: f32[32, 64]
                move s[i, j] = x[i, p + j] for (i, j) in (32, 64)
                each i in spatial(32):
                    c[i, p // 64] = s[31 - i, 1] + rest[0, 31 - i]
            """,
            "x: f32[32, 512], c: out f32[32, 8]",
            target="sm_90a",
        )

    limit = 227 * 1024
    rows = (limit - 2 * 32 * 64 * 4) // 256
    overlay(overlap(select(ring(rows - 1))))
    error = refused(ring(rows), select, overlap, overlay)
    assert error.message == f"a block needs {limit + 16} bytes of shared memory; sm_90a has {limit}"
    assert error.hint == f"`rest` alone takes {rows * 256}, and the mbarriers 16"


def test_without_shared_memory_nothing_changes() -> None:
    start = select(small("move c[i] = x[i] for i in 32"))
    assert overlay(start) is start


@pytest.mark.parametrize("seed", range(20))
def test_random_lives(seed: int) -> None:
    """An independent reading of the program: one walk, counting every use of a tensor."""
    chosen = random.Random(seed)
    lines: list[str] = []
    names: list[str] = []

    def block(depth: int, visible: list[str], indent: str) -> None:
        visible = list(visible)
        for _ in range(chosen.randint(2, 5)):
            if chosen.random() < 0.5 or not visible:
                name = f"t{len(names)}"
                names.append(name)
                visible.append(name)
                lines.append(f"{indent}shared {name}: f32[{chosen.choice([8, 32, 50, 100])}] = 0.0")
            elif depth and chosen.random() < 0.4:
                lines.append(f"{indent}for v{len(lines)} in range(2):")
                block(depth - 1, visible, indent + "    ")
            else:
                one, other = chosen.choice(visible), chosen.choice(visible)
                lines.append(f"{indent}each i in spatial(8):")
                lines.append(f"{indent}    {one}[i] = {other}[7 - i] + 1.0")

    block(3, [], "")
    found = places(small("\n".join(lines), workers=8))
    alive = lives(lines, names)
    assert set(found) == set(names)
    for one in names:
        for other in names:
            if one < other and alive[one] & alive[other]:
                assert not share(found, one, other), "\n".join(lines)


def lives(lines: list[str], names: list[str]) -> dict[str, set[int]]:
    """The lines at which each tensor is alive: from its first to its last, and, where a loop that
    it is allocated outside of uses it, through all of that loop."""
    indents = [len(line) - len(line.lstrip()) for line in lines]
    alive: dict[str, set[int]] = {}
    for name in names:
        uses = [
            at for at, line in enumerate(lines) if f"{name}[" in line or f"shared {name}:" in line
        ]
        born = uses[0]
        assert f"shared {name}:" in lines[born]
        last = uses[-1]
        around = last
        while around >= born and indents[around] > indents[born]:
            around -= 1  # the statement of its own block that the last use is in
        end = last
        if lines[around].lstrip().startswith("for "):
            end = around
            while end + 1 < len(lines) and indents[end + 1] > indents[around]:
                end += 1
        alive[name] = set(range(born, end + 1))
    return alive
