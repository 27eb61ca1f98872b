"""The library's programs as text: what is read back is the same text, and gives the same bits on a processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f16, f32, i8, i32
from taskc.ir import parse_program, to_text
from taskc.kernels.attention import Plan, attention
from taskc.kernels.convolution import convolution
from taskc.kernels.convolution.plan import Winograd
from taskc.kernels.matmul import matmul
from taskc.kernels.pooling import global_average_pool
from taskc.kernels.reductions import reduction
from taskc.lang.definition import Definition
from taskc.programs.ir import digest_of
from tests.example_files import FILES, definitions_of, example
from tests.kernels.problems import copied, gemm
from tests.kernels.test_tiles_matmul import tiling

SM_80 = tc.machine("sm_80")
NCHW: dict[str, Any] = {"padding": 1, "order": "NCHW", "dtype": f32}
n = tc.dim("n", example=3)

PROGRAMS: dict[str, Callable[[], Definition]] = {
    "reordered": lambda: convolution(n, 9, 9, 6, 12, groups=2, bias=True, residual=True, **NCHW),
    "filters packed": lambda: convolution(1, 9, 9, 6, 12, **NCHW),
    "Winograd": lambda: convolution(
        1, 9, 9, 16, 16, padding=1, exact=False, dtype=f32, schedule=Winograd(1, 1, 4, 1, 8)
    ),
    "pixels gathered": lambda: convolution(1, 5, 4, 3, 8, bias=True, machine=SM_80, **NCHW),
    "split-k": lambda: matmul(33, 40, 150, dtype=f16, machine=SM_80, tiling=tiling(f16, parts=3)),
    "copies": lambda: copied(gemm(33, 19, 70, (i8, i8, i32)), tiling(i8), SM_80),
    "keys in parts": lambda: attention(
        1, 2, 3, 40, 16, dtype=f16, machine=SM_80, plan=Plan(1, 1, 16, 3, part=16)
    ),
    "sums in parts": lambda: reduction("sum", (70_001, 3), (0,)),
    "pooled in parts": lambda: global_average_pool(1, 600, 600, 2),
}
for path in FILES:
    module = example(path.stem.partition("_")[2])
    for name, definition in definitions_of(module).items():
        if isinstance(definition, tc.ProgramDefinition):
            PROGRAMS[f"{path.stem}: {name}"] = lambda definition=definition: definition  # type: ignore[misc]


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_read_back_runs_to_the_same_bits(make: Callable[[], Definition]) -> None:
    program = make()
    assert isinstance(program, tc.ProgramDefinition)
    text = to_text(program.ir)
    constants = {digest_of(memory): memory for _, memory in program.ir.constants}
    read = tc.ProgramDefinition.of(parse_program(text, constants=constants))
    assert to_text(read.ir) == text
    arguments = program.example()
    assert np.asarray(program(*arguments)).tobytes() == np.asarray(read(*arguments)).tobytes()
