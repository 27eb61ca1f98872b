"""The examples, compiled, give what the simulator gives, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from taskc.backend.cpu.compile import compile_kernel
from taskc.backend.cpu.pool import pool, thread_count
from taskc.backend.cpu.processor import typical
from taskc.backend.sim import run
from taskc.lang.definition import Definition, KernelDefinition
from taskc.passes.pipeline import lower
from taskc.runtime.checking import comparison_across_targets
from tests.backend.cpu.processors import NAMES, loaded_for, sizes_of
from tests.test_examples import CASES, FILES, arguments_of, example, kernels_of

THREADS = (1, 2, 5)


# All shapes on this processor, and those of the files on a lesser one, too, in turn.
ALL = [
    (make, NAMES[:1] if "(" in name else (NAMES[0], *NAMES[1:][place % 2 :][:1]))
    for place, (name, make) in enumerate(CASES)
]


@pytest.mark.parametrize(("make", "processors"), ALL, ids=[name for name, _ in CASES])
def test_an_example_gives_what_the_simulator_gives(
    make: Callable[[], Definition], processors: tuple[str, ...]
) -> None:
    for definition in make().kernels:
        if definition.ir.stage != "parsed":  # a GPU's own, which runs in the simulator
            continue
        given = arguments_of(definition)
        expected = copied(given)
        run(definition.ir, expected)
        how = comparison_across_targets(definition)
        assert how in ("exact", "close")
        for name in processors:
            results = results_of(definition, given, name)
            first = results[0]
            for other in results[1:]:
                for a, b in zip(first, other, strict=True):
                    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
            for a, b in zip(first, expected, strict=True):
                if how == "exact":
                    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
                else:
                    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def results_of(definition: KernelDefinition, given: list[Any], processor: str) -> list[list[Any]]:
    """What the arguments are after runs on several numbers of threads."""
    kernel = definition.ir
    loaded = loaded_for(kernel, processor)
    worth = loaded._count
    loaded._count = lambda words: abs(worth(words))  # type: ignore[assignment]
    names = {
        parameter.name: value for parameter, value in zip(kernel.parameters, given, strict=True)
    }
    results = []
    try:
        for threads in THREADS:
            pool().limit(threads)
            arguments = copied(given)
            assert loaded.run(arguments, sizes_of(kernel, names)) == 0
            results.append(arguments)
    finally:
        pool().limit(thread_count())
    return results


def copied(arguments: list[Any]) -> list[Any]:
    return [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_an_object_for_arm(path: Any) -> None:
    arm = typical("neon")
    assert (arm.target, arm.lanes) == ("neon", 4)
    for definition in kernels_of(example(path.stem.partition("_")[2])).values():
        if definition.ir.stage != "parsed":  # a GPU's own
            continue
        compiled = compile_kernel(lower(replace(definition.ir, target=arm.target)), arm)
        machine = int.from_bytes(compiled.code[18:20], "little")
        assert (compiled.code[:4], machine) == (b"\x7fELF", 183)  # EM_AARCH64


def test_the_examples_are_spread_over_threads() -> None:
    """Otherwise the comparison above would say nothing about threads."""
    before = jobs_so_far()
    definition = example("matmul").mapped
    results_of(definition, arguments_of(definition), "host")
    assert jobs_so_far() == before + len(THREADS) - 1  # one thread has no use for the pool


def jobs_so_far() -> int:
    """That several threads had a part in."""
    pool()
    return int(pool()._memory.state) >> 32
