"""Random programs, compiled for this processor, give the bits of an independent oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from taskc.backend.cpu.compile import Loaded, compile_kernel
from taskc.backend.cpu.processor import host
from taskc.ir import nodes as ir
from taskc.passes.pipeline import lower
from tests.programs.generator import program
from tests.programs.oracle import Oracle
from tests.programs.runner import differences, parsed

SEED = 11
BLOCK = 25


@pytest.mark.parametrize("block", range(12))
def test_random_programs(block: int) -> None:
    for number in range(block * BLOCK, block * BLOCK + BLOCK):
        made = program(SEED, number)
        expected = Oracle(made).results()
        kernel = parsed(made)
        arguments: dict[str, Any] = {
            p.name: p.data if p.shape is None or p.role == "in" else p.data.copy()
            for p in made.parameters
        }
        loaded = loaded_for_host(kernel)
        loaded.run(list(arguments.values()), sizes_of(kernel, arguments))
        for name, wanted in expected.items():
            assert differences(name, arguments[name], wanted) is None, number


def loaded_for_host(kernel: ir.Kernel) -> Loaded:
    processor = host()
    lean = lower(replace(kernel, target=processor.target))
    return Loaded(kernel, compile_kernel(lean, processor))


def sizes_of(kernel: ir.Kernel, arguments: dict[str, Any]) -> dict[ir.Variable, int]:
    return {
        extent: size
        for parameter in kernel.parameters
        if isinstance(parameter, ir.Tensor)
        for extent, size in zip(parameter.shape, arguments[parameter.name].shape, strict=True)
        if isinstance(extent, ir.Variable)
    }
