"""The bytes that `taskc explain` says a model's calls move, beside those of what the simulator sees touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.backend.sim.accesses import AccessCompiler
from taskc.backend.sim.recording import legal
from taskc.commands.explain import traffic_of
from taskc.ir import nodes as ir
from taskc.runtime import driver

from .bert import INPUTS, bert

LENGTH = 16


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[Any, ir.Tensor], Any]:
    """For each run of a kernel, and each of its parameters, which elements it has read or written."""
    found: dict[tuple[Any, ir.Tensor], Any] = {}

    def note(tensor: ir.Tensor, further: Any) -> Any:
        def noted(frame: Any, memory: Any, at: Any, illegal: Any, is_store: bool) -> None:
            if further is not None:
                further(frame, memory, at, illegal, is_store)
            seen = found.setdefault((frame.run, tensor), np.zeros(memory.size, np.bool_))
            where = legal(frame.mask, illegal)
            places, lanes = np.broadcast_arrays(at, True if where is None else where)
            seen[places[lanes]] = True

        return noted if tensor.scope == ir.GLOBAL else further

    def watch(self: AccessCompiler) -> Any:
        return lambda tensor, node: note(tensor, vars(self)["watch"](tensor, node))

    def set_watch(self: AccessCompiler, value: Any) -> None:
        vars(self)["watch"] = value

    monkeypatch.setattr(AccessCompiler, "watch", property(watch, set_watch), raising=False)
    return found


def test_a_small_encoder_layer(touched: Any) -> None:
    """Embeddings gather some rows of their tables, and count whole: they are left out here."""
    proto = bert(layers=1, hidden=64, heads=2, inner=256, longest=LENGTH)
    feeds = {name: np.ones((1, LENGTH), np.int64) for name in INPUTS}
    program = tc.compile(proto).program(feeds)
    traffic = traffic_of(program.program)
    driver.call(program.program, tuple([feeds[name] for name in program.inputs]), {}, "sim")
    counted = sum(
        int(elements.sum()) * tensor.dtype.nbytes for (_, tensor), elements in touched.items()
    )
    assert traffic.after == pytest.approx(counted, rel=0.1)
    assert traffic.after < 0.8 * traffic.before
