"""LSTM and GRU alone, as ONNX models against ONNX Runtime, with all of its optimizations and as many threads.

    python benchmarks/recurrent.py [--quick] [--json FILE]

One direction and one layer, 64 steps, as many inputs as hidden units. Each number of threads is a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import geometric_mean
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from processes import THREADS, is_measuring, rows_of, write_rows
from report import Row, finish, parse_options

STEPS = 64
HIDDEN = (16, 64, 128, 256, 512)
BATCHES = (1, 8, 32)
GATES = {"LSTM": 4, "GRU": 3}
CALM = 0.05  # seconds, in which the other side's threads stop waiting for work

Array = np.ndarray[Any, Any]


def cases(quick: bool) -> Iterator[tuple[str, str, bytes, Array]]:
    """Names, a model, and its input."""
    for operator in GATES:
        for hidden in HIDDEN[1::2] if quick else HIDDEN:
            for batch in BATCHES[::2] if quick else BATCHES:
                random = np.random.default_rng(0)
                x = random.standard_normal((STEPS, batch, hidden), np.float32)
                yield operator, f"{hidden} units, batch {batch}", layer(operator, hidden, batch), x


def layer(operator: str, hidden: int, batch: int) -> bytes:
    random, gates = np.random.default_rng(1), GATES[operator]
    shapes: dict[str, tuple[int, ...]] = {
        "w": (1, gates * hidden, hidden),
        "r": (1, gates * hidden, hidden),
    }
    shapes["b"] = (1, 2 * gates * hidden)
    constants = [
        numpy_helper.from_array(
            random.standard_normal(shape, np.float32) * np.float32(hidden**-0.5), name
        )
        for name, shape in shapes.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w", "r", "b"], ["y", "h"], hidden_size=hidden)],
        "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, batch, hidden])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yh"],
        constants,
    )
    opsets = [helper.make_opsetid("", 20)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return made


def measure(threads: int, flags: list[str]) -> Iterator[Row]:
    import taskc as tc
    from taskc.commands.verify import error_of
    from taskc.onnx.partitions import RuntimeSession
    from taskc.tune.timing import Probe, pairs

    probe = Probe(threads)
    for operator, case, serialized, x in cases("--quick" in flags):
        model, session = tc.compile(serialized), RuntimeSession(serialized, threads)
        feeds = {"x": x}
        off = max(map(error_of, model.run(None, feeds), session.run(feeds)))
        assert off < 1e-3, f"{operator}, {case}: off by {off}"
        found = pairs(
            lambda model=model, feeds=feeds: model.run(None, feeds),  # type: ignore[misc]
            lambda session=session, feeds=feeds: session.run(feeds),  # type: ignore[misc]
            probe,
            budget=0.3 if "--quick" in flags else 1.0,
            calm=CALM if threads > 1 else 0.0,
        )
        yield Row.paired(operator, case, threads, "onnxruntime", found)


def main() -> None:
    if is_measuring():
        write_rows(measure)
        return
    options = parse_options(__doc__ or "")
    rows = rows_of(__file__, ["--quick"] * options.quick)
    for operator in GATES:
        for threads in THREADS:
            ratios = [it.ratio for it in rows if (it.benchmark, it.threads) == (operator, threads)]
            if ratios:
                mean = geometric_mean([ratio for ratio in ratios if ratio])
                print(f"{operator}, {threads} thread(s): {mean:.2f} in the geometric mean")
    finish(rows, options.json)


if __name__ == "__main__":
    main()
