"""What templates are told of a machine: of the one at hand, and of others."""

from __future__ import annotations

import pytest

import taskc as tc
from taskc.backend.cpu import processor
from taskc.runtime.machine import _known

# By the manuals: only with AVX-512 do vector registers of x86-64 have numbers of five bits, as on ARM.
VECTORS = {
    "avx512": 32, "avx512_vnni": 32, "avx512_bf16": 32, "avx512_amx": 32,
    "avx2": 16, "avx2_vnni": 16, "sse2": 16, "neon": 32,
}  # fmt: skip


@pytest.mark.parametrize(("target", "vectors"), VECTORS.items())
def test_vector_registers(target: str, vectors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "host", lambda: processor.typical(target))
    made = _known.__wrapped__(None, None)
    assert made.registers == vectors
    assert made.is_processor


@pytest.mark.parametrize(("target", "vectors"), VECTORS.items())
def test_a_processor_that_is_not_here(target: str, vectors: int) -> None:
    made = tc.machine(target)
    assert made.is_processor
    assert (made.lanes, made.registers) == (processor.typical(target).lanes, vectors)
    assert made.name == target
    assert made.threads == 8


def test_its_threads_may_be_said() -> None:
    assert tc.machine("avx2", threads=64).threads == 64
    assert tc.machine("sm_90a", threads=114).threads == 114  # of a card with fewer multiprocessors
    with pytest.raises(ValueError, match="TASKC_THREADS says how many"):
        tc.machine(threads=1)


def test_a_machine_that_nobody_knows() -> None:
    with pytest.raises(
        ValueError, match=r"there is no machine 'avx3' .* sm_90a, sm_120a, avx512, .*sse2$"
    ):
        tc.machine("avx3")
