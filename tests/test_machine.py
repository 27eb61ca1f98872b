"""What templates are told of the machine at hand."""

from __future__ import annotations

import pytest

from taskc.backend.cpu import processor
from taskc.machine import machine

# By the manuals: only with AVX-512 do vector registers of x86-64 have numbers of five bits, as on ARM.
VECTORS = {
    "avx512": 32, "avx512_vnni": 32, "avx512_bf16": 32, "avx512_amx": 32,
    "avx2": 16, "avx2_vnni": 16, "sse2": 16, "neon": 32,
}  # fmt: skip


@pytest.mark.parametrize(("target", "vectors"), VECTORS.items())
def test_vector_registers(target: str, vectors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "host", lambda: processor.typical(target))
    made = machine.__wrapped__()
    assert made.registers == vectors
    assert made.is_processor
