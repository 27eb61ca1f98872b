"""Products on sm_90a: wgmma from `tc.mma`, TMA loads and stores, a producer that hands over its registers.

Every kernel is run after every pass, by several schedules, and gives the bits of its phases. The machine has
two processors here, so that blocks have several tiles.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
import taskc.passes.await_products as module
from taskc import bf16, f8e4m3, f8e5m2, f16, f32, i8, i32, repeat, spatial, tf32
from taskc.backend import sim
from taskc.ir import nodes as ir
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.ir.target import SM_90A, TARGETS
from taskc.lang.definition import KernelDefinition
from taskc.mutation import mutate
from taskc.passes.pipeline import lower, lower_steps
from tests.stages import same_after_every_pass

Golden = Callable[[str, str], None]
DType = tc.DType


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "sm_90a", replace(SM_90A, processors=2))


def fragment(n: int) -> tc.Mapping:
    """Who has which element of 64 rows and n columns of an accumulator."""
    return spatial(4, 1).repeat(1, n // 8) * (repeat(2, 1) * spatial(8, 4) * repeat(1, 2))


def matmul(
    m: int,
    n: int,
    k: int,
    *,
    dtype: DType = bf16,
    into: DType = f32,
    out: DType | None = None,
    groups: int = 1,
    bn: int = 32,
    bk: int = 32,
    stages: int = 3,
    transposed: bool = False,
    specialize: bool = True,
    persistent: bool = True,
    transport: str | None = None,
    cluster: tuple[int, int] | None = None,
) -> KernelDefinition:
    own = spatial(groups, 1) * fragment(bn)
    bm = own.shape[0]
    result = out or into

    @tc.function
    def put(c, row, col, acc):  # type: ignore[no-untyped-def]
        if result is into:
            tc.store(c[row : row + bm, col : col + bn], acc)
        else:
            rounded = tc.tile(result, own)
            for i, j in own:
                rounded[i, j] = acc[i, j].to(result)
            tc.store(c[row : row + bm, col : col + bn], rounded)

    @tc.function
    def tile(a, b, c, row, col):  # type: ignore[no-untyped-def]
        acc = tc.tile(into, own, 0)
        for p in tc.pipeline(k, by=bk, stages=stages, specialize=specialize, transport=transport):
            sa = tc.load(a[row : row + bm, p : p + bk])
            if transposed:
                sb = tc.load(b[col : col + bn, p : p + bk])
                tc.mma(acc, sa, sb.T)
            else:
                sb = tc.load(b[p : p + bk, col : col + bn])
                tc.mma(acc, sa, sb)
        put(c, row, col, acc)

    @tc.kernel(workers=own.workers)
    def kernel(
        a: dtype[m, k],  # type: ignore[valid-type]
        b: dtype[n, k] if transposed else dtype[k, n],  # type: ignore[valid-type]
        c: tc.out[result[m, n]],  # type: ignore[valid-type]
    ):
        if cluster is None:
            for row, col in tc.tiles(
                (m, n), by=(bm, bn), order=("grouped", 8), persistent=persistent
            ):
                tile(a, b, c, row, col)
        else:
            for row, col in tc.tiles((m, n), by=(bm, bn), persistent=persistent, cluster=cluster):
                tile(a, b, c, row, col)

    return kernel


def operands(definition: KernelDefinition) -> list[Any]:
    random = np.random.default_rng(7)
    made = []
    for tensor in definition.ir.parameters[:-1]:
        assert isinstance(tensor, ir.Tensor)
        shape = tuple(map(int, tensor.shape))  # type: ignore[arg-type]
        values = (
            random.integers(-128, 128, shape) if tensor.dtype is i8 else random.normal(size=shape)
        )
        made.append(values.astype(tensor.dtype.numpy))
    return made


def on_hopper(definition: KernelDefinition) -> ir.Kernel:
    return replace(definition.ir, target="sm_90a")


def empty(definition: KernelDefinition) -> np.ndarray[Any, Any]:
    out = definition.ir.parameters[-1]
    assert isinstance(out, ir.Tensor)
    return np.zeros(tuple(map(int, out.shape)), out.dtype.numpy)  # type: ignore[arg-type]


def runs_everywhere(definition: KernelDefinition, seeds: tuple[int, ...] = (1,)) -> str:
    """The text of the last stage; after every pass it gives the bits of the phases, and no findings."""
    arguments = [*operands(definition), empty(definition)]
    return to_text(same_after_every_pass(on_hopper(definition), arguments, seeds=seeds)[-1])


def counts(text: str, *words: str) -> dict[str, int]:
    return {word: text.count(word) for word in words}


# --- the whole of it -------------------------------------------------------------------------


def test_golden(golden: Golden) -> None:
    """One warpgroup, two tiles a block; b has its columns as neighbours, in two panels."""
    kernel = parse(to_text(on_hopper(matmul(128, 256, 128, bn=128, bk=64))))
    texts = [
        f"# {step.name}\n{to_text(step.kernel)}"
        for step in lower_steps(kernel)
        if step.name in ("select", "lower_rings")
    ]
    golden("passes/select_products", "\n".join(texts))


def test_two_warpgroups_over_several_tiles() -> None:
    """Everything at once: more steps than slots, tiles that stick out, a ring that runs on."""
    text = runs_everywhere(matmul(136, 40, 104, groups=2, stages=2), seeds=(0, 1))
    assert counts(text, "tma.load(", "tma.store(", "mma.sync", "cp.async(") == {
        "tma.load(": 2, "tma.store(": 1, "mma.sync": 0, "cp.async(": 0,
    }  # fmt: skip
    assert "do wgmma.m64n32k16.bf16(" in text
    assert "do setmaxnreg(24)" in text
    assert "do setmaxnreg(240)" in text
    assert "mbarrier.init(&sa_sb_empty[slot], 2)" in text  # one arrival a warpgroup
    scopes = {b.scope for b in walk(parse(text).body) if isinstance(b, ir.Barrier)}
    assert scopes == {"block", "warpgroup"}, (
        "a result's rows are stored by the warpgroup that has them"
    )


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(64, 32, 32), (256, 32, 160), (8, 16, 16), (130, 40, 0)],
    ids=["one tile and step", "two tiles a block", "inside a tile", "no steps"],
)
def test_sizes(m: int, n: int, k: int) -> None:
    text = runs_everywhere(matmul(m, n, k))
    assert ("wgmma.m64n32k16" in text) == (k > 0)


@pytest.mark.parametrize(
    ("dtype", "into", "bk", "row"),
    [
        (f16, f32, 64, "m64n16k16.f16"),
        (tf32, f32, 32, "m64n16k8.tf32"),
        (tf32, f32, 64, "m64n16k8.tf32"),  # rows of 256 bytes: two panels
        (i8, i32, 64, "m64n16k32.i8"),
        (f8e4m3, f32, 64, "m64n16k32.f8e4m3"),
        (f8e5m2, f32, 128, "m64n16k32.f8e5m2"),
    ],
    ids=str,
)
def test_types(dtype: DType, into: DType, bk: int, row: str) -> None:
    text = runs_everywhere(
        matmul(64, 16, 2 * bk, dtype=dtype, into=into, bn=16, bk=bk, transposed=True)
    )
    assert f"do wgmma.{row}(" in text
    assert "tma.load(" in text


@pytest.mark.each_value
@pytest.mark.parametrize("out", [f32, bf16])
@pytest.mark.parametrize("bn", [8, 64, 128, 256])
def test_panels(bn: int, out: DType) -> None:
    """A panel of b has up to 64 columns, one of c 32 or 64: the store alternates between two slots."""
    text = runs_everywhere(matmul(64, 2 * bn, 32, bn=bn, out=out), seeds=(3,))
    line = min(bn, 128 // out.nbytes)
    assert "&acc_out[" in text or "&rounded_out[" in text
    assert f", 64, {line})" in text


@pytest.mark.parametrize("transport", ["tma", "cp.async", "registers"])
def test_without_a_producer(transport: str) -> None:
    """All workers load; what they store or copy themselves is fenced for the asynchronous proxy."""
    stages = 2 if transport == "registers" else 3
    text = runs_everywhere(
        matmul(64, 16, 128, bn=16, stages=stages, specialize=False, transport=transport)
    )
    assert ("do wgmma.m" in text, "do wgmma.wait(0)" in text) == (True, True)
    fences = text.count("do fence.proxy.async")
    assert fences == {"tma": 1, "cp.async": 2, "registers": 3}[transport]  # one is of the store


def test_rows_that_bulk_copies_do_not_take() -> None:
    """The producer loads by itself, and fences what it stored; results are stored from registers."""
    definition = matmul(64, 30, 36)
    text = runs_everywhere(definition)
    assert counts(text, "tma.", "fence.proxy.async") == {"tma.": 0, "fence.proxy.async": 1}
    assert "do wgmma.m64n32k16.bf16(" in text
    notes = [message for message, _ in lower(on_hopper(definition)).notes]
    assert (
        "this store does not travel by tma: it comes from rows that are not a multiple of 16 bytes"
        in notes
    )


# --- clusters --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "options", "common"),
    [
        ((256, 16, 160), {"cluster": (2, 1)}, "sb"),
        ((128, 32, 96), {"cluster": (2, 1), "persistent": False, "transposed": True}, "sb"),
        ((64, 32, 96), {"cluster": (1, 2), "persistent": False}, "sa"),
    ],
    ids=["two tiles a block", "rows", "columns"],
)
def test_blocks_of_a_cluster_load_for_each_other(
    sizes: tuple[int, int, int], options: dict[str, Any], common: str
) -> None:
    """What is the same in both blocks is loaded once, half by each; a slot is free when both released it."""
    text = runs_everywhere(matmul(*sizes, bn=16, **options))
    assert counts(text, "tma.load(", "tma.load.multicast(") == {
        "tma.load(": 1, "tma.load.multicast(": 1,
    }  # fmt: skip
    assert f"tma.load.multicast(&{common}[" in text
    assert "mbarrier.init(&sa_sb_empty[slot], 2)" in text
    assert text.rstrip().endswith("do cluster.wait()")


def test_a_cluster_with_nothing_in_common() -> None:
    text = runs_everywhere(matmul(128, 128, 32, cluster=(2, 2), bn=64, persistent=False))
    assert counts(text, "multicast", "cluster.") == {"multicast": 0, "cluster.": 0}


# --- what is chosen, and what isn't --------------------------------------------------------


def selected(definition: KernelDefinition) -> tuple[str, list[str]]:
    kernel = lower(on_hopper(definition), "selected")
    return to_text(kernel), [message for message, _ in kernel.notes]


def test_operands_of_8_bits_have_neighbours_along_k() -> None:
    text, notes = selected(matmul(64, 32, 64, dtype=i8, into=i32))
    assert "how=mma.sync.m16n8k32.i8" in text
    assert "tc.mma is not asynchronous: sb does not lie as wgmma.m64n32k32.i8 takes it" in notes


def test_mappings_that_are_not_a_warpgroups() -> None:
    """Four warps of 32 rows and 8 columns each are no warpgroup's fragment, but those of mma.sync."""
    own = spatial(2, 2) * repeat(2, 1) * (repeat(2, 1) * spatial(8, 4) * repeat(1, 2))

    @tc.kernel(workers=128)
    def kernel(a: bf16[64, 32], b: bf16[32, 16], c: tc.out[f32[64, 16]]):
        acc = tc.tile(f32, own, 0)
        tc.mma(acc, tc.load(a[:, :]), tc.load(b[:, :]))
        tc.store(c[:, :], acc)

    text, notes = selected(kernel)
    assert "how=mma.sync.m16n8k16.bf16" in text
    assert notes == [f"tc.mma is not asynchronous: no fragment of wgmma divides {own}"]


def test_a_left_operand_in_registers_as_the_instruction_takes_it() -> None:
    """Attention's P: the first product's accumulator, rounded, is the second one's left operand."""

    @tc.kernel(workers=128)
    def kernel(a: bf16[64, 32], b: bf16[32, 32], v: bf16[32, 16], c: tc.out[f32[64, 16]]):
        scores = tc.tile(f32, fragment(32), 0)
        sa = tc.load(a[:, :])
        sb = tc.load(b[:, :])
        sv = tc.load(v[:, :])
        tc.mma(scores, sa, sb.T)
        p = tc.tile(bf16, fragment(32))
        for i, j in fragment(32):
            p[i, j] = scores[i, j].to(bf16)
        acc = tc.tile(f32, fragment(16), 0)
        tc.mma(acc, p, sv)
        tc.store(c[:, :], acc)

    text = runs_everywhere(kernel)
    assert re.search(r"do wgmma\.m64n16k16\.bf16\(&acc\[.*?\], &p\[", text)
    assert "p_scratch" not in text


def test_an_accumulator_that_is_not_zero_at_first_is_filled() -> None:
    @tc.kernel(workers=128)
    def kernel(a: bf16[64, 32], b: bf16[32, 16], c: tc.out[f32[64, 16]]):
        acc = tc.tile(f32, fragment(16), 1)
        for p in tc.pipeline(32, by=16, stages=2):
            tc.mma(acc, tc.load(a[:, p : p + 16]), tc.load(b[p : p + 16, :]))
        tc.store(c[:, :], acc)

    text = runs_everywhere(kernel)
    assert "acc: f32[8] = 1.0" in text
    assert ", True, 0, 0)" in text


def test_other_targets_take_what_they_have() -> None:
    definition = matmul(64, 32, 64)
    text = to_text(lower(replace(definition.ir, target="sm_80")))
    assert "mma.sync.m16n8k16.bf16" in text
    assert "swizzled(3, 3, 6)" not in to_text(
        lower(replace(definition.ir, target="sm_80"), "selected")
    )


def test_results_for_which_no_memory_is_left() -> None:
    """Four stages of 48 KiB leave room for two panels of 16 KiB; nine of 24 KiB don't."""
    text, notes = selected(matmul(128, 256, 256, groups=2, bn=256, bk=64, stages=4, out=bf16))
    assert "shared rounded_out: bf16[2, 128, 64]" in text
    assert not notes
    text, notes = selected(matmul(128, 256, 256, groups=2, bn=256, bk=32, stages=9, out=bf16))
    assert "_out" not in text
    (why,) = notes
    assert why.endswith("the 32768 bytes of shared memory that it takes are not left")


# --- that it is needed ----------------------------------------------------------------------


def test_breaks_are_reported() -> None:
    definition = matmul(128, 32, 96, bn=16, bk=32, stages=2)
    given = operands(definition)
    kernel = on_hopper(definition)
    inputs = [[*given, np.zeros((128, 32), np.float32)]]
    found = list(mutate(kernel, inputs))
    missed = [m for m in found if not (m.reported or m.is_equivalent)]
    assert len(missed) <= len(found) // 20, "\n".join(f"{m.stage}: {m.description}" for m in missed)
    assert len(found) > 50


def _waits(most: int) -> Callable[[Any], Any]:
    def wrong(right: Any) -> Any:
        def do(operation: str, loc: Any, *operands: int) -> ir.Do:
            late = (most,) if operation == "wgmma.wait" else operands
            made = right(operation, loc, *late)
            assert isinstance(made, ir.Do)
            return made

        return do

    return wrong


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "kind"),
    [
        (module, "do", _waits(1), "unwaited-product"),
        (module, "do", _waits(2), "unwaited"),
        (module, "subtract", lambda right: lambda a, b: a, "deadlock"),
        (module, "add", lambda right: lambda a, b: a, "deadlock"),
        (module, "_begun", lambda right: list, "missing-fence"),
        (module._Placer, "fenced", lambda right: lambda self, s: list(s), "missing-fence"),
    ],
    ids=[
        "the last product",
        "all products",
        "a step is never released",
        "the first step is waited for twice",
        "no group",
        "stores not fenced",
    ],
)
def test_planted_bugs_are_reported(
    owner: Any, name: str, wrong: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = matmul(128, 16, 128, bn=16)
    given = operands(definition)
    monkeypatch.setattr(owner, name, wrong(getattr(owner, name)))
    out = np.zeros((128, 16), np.float32)
    found: set[str] = set()
    for step in lower_steps(on_hopper(definition)):
        found |= {f.kind for f in sim.run(step.kernel, [*given, out], seed=1).findings}
    assert any(kind in one for one in found), found


def test_stores_of_one_worker_each_have_their_group() -> None:
    """The wait of the one who stores is part of every role that stores, at its end."""
    kernel = lower(on_hopper(matmul(128, 32, 64)), "synchronized")
    roles = next(node for node in walk(kernel.body) if isinstance(node, ir.Roles))
    for role in roles.roles:
        waits = [n for n in walk(role.body) if isinstance(n, ir.Do) and n.operation == "tma.wait"]
        assert bool(waits) == (role.name == "consumer")
        if waits:
            assert isinstance(role.body, ir.Sequence)
            assert role.body.statements[-1] is waits[-1]
