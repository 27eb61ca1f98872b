"""The first result of a model or a kernel, with an empty cache and in a fresh process, beside that of other runtimes.

    python benchmarks/first_result.py [--models FOLDER] [--list public.json] [--quick] [--phases] [--json FILE]

From the import of the package and a file to the first result: seconds of wall time, of CPU time in the process and its
children, the number of compiled kernels, and the memory at its peak; and the same until all kernels have their full
code. ONNX Runtime and OpenVINO do the same on the same inputs: import, session, first run.

Every model of the folder is run, with the extents that a list gives its inputs, or those of models.py. Synthetic ones
are loops of known count, a chain of layers, and convolutions whose extents all differ. With --phases, each case is
followed by the CPU time of the compile's parts.

A kernel author's rows are `import taskc`, and the first calls of examples, from their source on, in a process that has
called another kernel before.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PEERS = ("onnxruntime", "openvino")
EXAMPLES = Path(__file__).parent.parent / "examples"
AUTHORS = (("03_matmul", "mapped"), ("03_matmul", "pipelined"), ("08_attention", "attention"))
QUICK_BYTES = 1 << 20  # of the largest model that --quick runs


@dataclass(frozen=True)
class Case:
    """`model` is a file, `extents` the shapes of its inputs where a list has them; a kernel is one of an example."""

    name: str
    model: Path | None = None
    extents: dict[str, list[int]] | None = None
    kernel: tuple[str, str] | None = None


# --- what a fresh process does ------------------------------------------------------------------


class Clock:
    """Wall and CPU seconds since it was made; `own_cpu_s` is without children."""

    def __init__(self) -> None:
        self.wall, self.cpu, self.own = time.perf_counter(), _cpu(), time.process_time()

    def read(self) -> dict[str, float]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # in KiB on Linux
        return {
            "wall_s": time.perf_counter() - self.wall,
            "cpu_s": _cpu() - self.cpu,
            "own_cpu_s": time.process_time() - self.own,
            "peak_mib": peak,
        }


def _cpu() -> float:
    """CPU seconds of this process and of its children."""
    spent = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    running = [_cpu_of(child) for child in _children() if child.exists()]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent) + sum(running)


def _children() -> list[Path]:
    """The folders of this process's children that run, where the system has such."""
    numbers = [
        number
        for path in Path("/proc/self/task").glob("*/children")
        for number in path.read_text().split()
    ]
    return [Path("/proc", number) for number in numbers]


def _cpu_of(process: Path) -> float:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def first_result(work: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
    """The measurements of `import taskc` and then `work`, by parts, and the value of `work`."""
    clock = Clock()
    import taskc  # noqa: F401
    from taskc.ir.spans import recorded

    imported = clock.read()
    with recorded() as spans:
        value = work()
        measured: dict[str, Any] = clock.read()
    emitted = spans.get("emission")
    measured["kernels"] = 0 if emitted is None else emitted.count
    measured["spans"] = {"import/taskc": (imported["cpu_s"], 1)}
    measured["spans"] |= {
        name: (total.seconds, total.count, total.elsewhere) for name, total in spans.items()
    }
    return measured, value


def of_taskc(model: str, extents: dict[str, list[int]], feeds: str, threads: int) -> dict[str, Any]:
    def work() -> dict[str, Any]:
        import taskc as tc

        compiled = tc.compile(model)
        from models import feeds_of

        os.environ.pop(
            "TASKC_TIER", None
        )  # other benchmarks set it: here, a user's call has both tiers
        inputs = feeds_of(compiled, extents)
        compiled.run(None, inputs)
        return inputs

    import numpy as np

    clock = Clock()
    measured, inputs = first_result(work)
    import taskc as tc

    tc.finish_compiling()
    last = clock.read()
    np.savez(feeds, **inputs)
    return measured | {f"last_{name}": last[name] for name in ("wall_s", "cpu_s", "peak_mib")}


def of_kernel(example: str, kernel: str) -> dict[str, Any]:
    """An example's first call, after that of the first example."""
    call_example("01_vector_add", "vector_add")
    return first_result(lambda: call_example(example, kernel))[0]


def call_example(example: str, kernel: str) -> None:
    specification = importlib.util.spec_from_file_location(example, EXAMPLES / f"{example}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    definition = getattr(module, kernel)
    definition(*definition.example())


def of_onnxruntime(model: str, feeds: str, threads: int) -> dict[str, Any]:
    clock = Clock()
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    session.run(None, dict(np.load(feeds)))
    return clock.read()


def of_openvino(model: str, feeds: str, threads: int) -> dict[str, Any]:
    clock = Clock()
    import numpy as np
    import openvino

    limits = {"INFERENCE_NUM_THREADS": threads}
    compiled = openvino.Core().compile_model(model, "CPU", limits)
    compiled(dict(np.load(feeds)))
    return clock.read()


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "taskc": of_taskc,
    "kernel": of_kernel,
    "import": lambda: first_result(lambda: None)[0],
    "onnxruntime": of_onnxruntime,
    "openvino": of_openvino,
}


# --- synthetic models ---------------------------------------------------------------------------

UNITS = 64


def synthetic(folder: Path, quick: bool) -> Iterator[Case]:
    """Models that grow in one way each."""
    if find_spec("onnx") is None:
        print("onnx isn't installed: no synthetic models", file=sys.stderr)
        return
    import onnx

    models: dict[str, Callable[[], Any]] = {}
    for steps in (10, 100) if quick else (10, 100, 1000):
        models[f"Loop of {steps} steps"] = lambda steps=steps: _loop(steps)
        models[f"Scan of {steps} steps"] = lambda steps=steps: _scan(steps)
    layers, convolutions = (50, 10) if quick else (500, 300)
    models[f"{layers} layers"] = lambda: _layers(layers)
    models[f"{convolutions} convolutions"] = lambda: _convolutions(convolutions)
    for name, make in models.items():
        path = folder / f"{name.replace(' ', '_')}.onnx"
        onnx.save(make(), path)
        yield Case(name, path, {})


def _model(
    nodes: list[Any], inputs: dict[str, list[int]], output: str, weights: dict[str, Any]
) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    kinds = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, it) for name, it in inputs.items()
    ]
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "synthetic", kinds, [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _noise(*shape: int) -> Any:
    import numpy as np

    return np.random.default_rng(shape).standard_normal(shape, np.float32) * 0.1


def _loop(steps: int) -> Any:
    """A recurrence whose step reads a row at the number of the turn."""
    import numpy as np
    from onnx import TensorProto, helper

    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["condition"], ["goes_on"]),
            helper.make_node("Gather", ["x", "turn"], ["row"], axis=0),
            helper.make_node("MatMul", ["state", "w"], ["product"]),
            helper.make_node("Add", ["product", "row"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["next"]),
            helper.make_node("Identity", ["next"], ["kept"]),
        ],
        "step",
        [
            info("turn", TensorProto.INT64, []),
            info("condition", TensorProto.BOOL, []),
            info("state", TensorProto.FLOAT, [1, UNITS]),
        ],
        [
            info("goes_on", TensorProto.BOOL, []),
            info("next", TensorProto.FLOAT, [1, UNITS]),
            info("kept", TensorProto.FLOAT, [1, UNITS]),
        ],
    )
    loop = helper.make_node("Loop", ["steps", "", "start"], ["last", "y"], body=body)
    weights = {
        "w": _noise(UNITS, UNITS), "start": _noise(1, UNITS), "steps": np.array(steps, np.int64)
    }  # fmt: skip
    return _model([loop], {"x": [steps, 1, UNITS]}, "y", weights)


def _scan(steps: int) -> Any:
    from onnx import TensorProto, helper

    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["product"]),
            helper.make_node("Add", ["product", "row"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["next"]),
            helper.make_node("Identity", ["next"], ["kept"]),
        ],
        "step",
        [info(name, TensorProto.FLOAT, [1, UNITS]) for name in ("state", "row")],
        [info(name, TensorProto.FLOAT, [1, UNITS]) for name in ("next", "kept")],
    )
    scan = helper.make_node("Scan", ["start", "x"], ["last", "y"], body=body, num_scan_inputs=1)
    weights = {"w": _noise(UNITS, UNITS), "start": _noise(1, UNITS)}
    return _model([scan], {"x": [steps, 1, UNITS]}, "y", weights)


def _layers(count: int) -> Any:
    """Layers of equal form, each with weights of its own."""
    from onnx import helper

    nodes, weights = [], {}
    for number in range(count):
        weights |= {f"w{number}": _noise(UNITS, UNITS), f"b{number}": _noise(UNITS)}
        nodes += [
            helper.make_node("MatMul", [f"x{number}", f"w{number}"], [f"product{number}"]),
            helper.make_node("Add", [f"product{number}", f"b{number}"], [f"sum{number}"]),
            helper.make_node("Relu", [f"sum{number}"], [f"x{number + 1}"]),
        ]
    return _model(nodes, {"x0": [16, UNITS]}, f"x{count}", weights)


def _convolutions(count: int) -> Any:
    """A chain of 3 x 3 and 1 x 1 convolutions, of which no two have the same numbers of channels."""
    from onnx import helper

    nodes, weights, channels = [], {}, 16
    for number in range(count):
        out, kernel = 16 + (number * 37 + number // 64) % 64, 1 + 2 * (number % 2)
        weights[f"w{number}"] = _noise(out, channels, kernel, kernel)
        nodes += [
            helper.make_node(
                "Conv", [f"x{number}", f"w{number}"], [f"sum{number}"], pads=[kernel // 2] * 4
            ),
            helper.make_node("Relu", [f"sum{number}"], [f"x{number + 1}"]),
        ]
        channels = out
    return _model(nodes, {"x0": [1, 16, 14, 14]}, f"x{count}", weights)


# --- the table ----------------------------------------------------------------------------------


def cases(options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    yield Case("import taskc")
    for kernel in AUTHORS:
        yield Case(f"examples/{kernel[0][:2]} {kernel[1]}", kernel=kernel)
    yield from synthetic(folder, options.quick)
    if options.models is not None:
        yield from _models(options.models, options.list, options.quick)


def _models(folder: Path, listed: Path | None, quick: bool) -> Iterator[Case]:
    known = json.loads(listed.read_text()) if listed is not None else []
    extents = {one["file"]: one["ort_inputs"] for one in known}
    for path in sorted(folder.rglob("*.onnx")):
        if not quick or path.stat().st_size <= QUICK_BYTES:
            file = "/".join(path.parts[-2:])
            yield Case(file, path, extents.get(file, {}))


def in_process(kind: str, job: dict[str, Any], threads: int, limit: int) -> dict[str, Any]:
    """The measurements of a job in a fresh process with an empty cache, or its `error`."""
    with TemporaryDirectory() as cache:
        environment = os.environ | {"TASKC_THREADS": str(threads), "TASKC_CACHE": cache}
        environment.pop("TASKC_TIER", None)
        command = [sys.executable, __file__, "--job", kind, json.dumps(job), str(limit)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGXCPU:
        return {"error": f"over {limit} s of CPU"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"ends with {done.returncode}"])[-1]}
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def measured_case(
    case: Case, options: argparse.Namespace, folder: Path
) -> dict[str, dict[str, Any]]:
    """The measurements by side, ours first."""
    threads, limit = options.threads, options.limit
    if case.kernel is not None:
        job = dict(zip(("example", "kernel"), case.kernel, strict=True))
        return {"taskc": in_process("kernel", job, threads, limit)}
    if case.model is None:
        return {"taskc": in_process("import", {}, threads, limit)}
    common = {"model": str(case.model), "feeds": str(folder / "feeds.npz"), "threads": threads}
    ours = in_process("taskc", common | {"extents": case.extents or {}}, threads, limit)
    if "error" in ours:
        return {"taskc": ours}
    present = [peer for peer in PEERS if find_spec(peer) is not None]
    return {"taskc": ours} | {peer: in_process(peer, common, threads, limit) for peer in present}


def rows_of(case: Case, measured: dict[str, dict[str, Any]], threads: int) -> Iterator[Any]:
    from report import Row

    ours = measured["taskc"]
    own_ms = 1e3 * ours["wall_s"]
    more = {
        "peak_bytes": int(ours["peak_mib"] * 2**20),
        "cpu_ms": 1e3 * ours["cpu_s"],
        "kernels": ours["kernels"],
        "spans": ours["spans"],
    }
    if "last_wall_s" in ours:
        more |= {
            "last_ms": 1e3 * ours["last_wall_s"],
            "last_cpu_ms": 1e3 * ours["last_cpu_s"],
            "last_peak_bytes": int(ours["last_peak_mib"] * 2**20),
        }
    peers = {name: found for name, found in measured.items() if "error" not in found}
    del peers["taskc"]
    if not peers:
        yield Row("first result", case.name, threads, own_ms, **more)
    for name, found in peers.items():
        peer_ms = 1e3 * found["wall_s"]
        yield Row(
            "first result", case.name, threads, own_ms, name, peer_ms, peer_ms / own_ms,
            peer_cpu_ms=1e3 * found["cpu_s"], **more,
        )  # fmt: skip


def line_of(measured: dict[str, dict[str, Any]]) -> str:
    from taskc.format import bytes_text, many, time_text

    parts = []
    for side, found in measured.items():
        if "error" in found:
            parts.append(f"{side}: {found['error']}")
            continue
        wall, cpu = (time_text(found[name], "s", ".2f") for name in ("wall_s", "cpu_s"))
        memory = bytes_text(found["peak_mib"] * 2**20, "MiB", ".0f")
        more = f", {many(found['kernels'], 'kernel')}" if side == "taskc" else ""
        if "last_wall_s" in found:
            more += f", full code after {time_text(found['last_wall_s'], 's', '.2f')}"
        parts.append(f"{side} {wall} ({cpu} CPU{more}, {memory})")
    return "; ".join(parts)


def phases_of(measured: dict[str, Any]) -> str:
    """The table of `taskc compile --profile`."""
    from taskc.commands.compile import profile_table
    from taskc.ir.spans import Total, grouped

    spans = {name: Total(*values) for name, values in measured["spans"].items()}
    return profile_table(grouped(spans, measured["own_cpu_s"]))


def main() -> None:
    if sys.argv[1:2] == ["--job"]:
        kind, job, limit = sys.argv[2:]
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), -1))
        print(json.dumps(JOBS[kind](**json.loads(job))))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="where the models are")
    parser.add_argument("--list", type=Path, metavar="FILE", help="which, and their inputs")
    parser.add_argument("--only", metavar="TEXT", default="", help="cases of such names")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="(default: all)")
    parser.add_argument(
        "--limit", type=int, default=600, help="CPU seconds of a case (default 600)"
    )
    parser.add_argument("--phases", action="store_true", help="where the time went, by case")
    parser.add_argument("--quick", action="store_true", help="small models, and few steps")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    options = parser.parse_args()
    from report import finish

    for peer in PEERS:
        if find_spec(peer) is None:
            print(f"{peer} isn't installed", file=sys.stderr)
    rows, failed = [], 0
    with TemporaryDirectory() as temporary:
        for case in cases(options, Path(temporary)):
            if options.only not in case.name:
                continue
            measured = measured_case(case, options, Path(temporary))
            print(f"{case.name}: {line_of(measured)}", flush=True)
            if "error" in measured["taskc"]:
                failed += 1
                continue
            rows += rows_of(case, measured, options.threads)
            if options.phases:
                print(f"{phases_of(measured['taskc'])}\n", flush=True)
    print()
    finish(rows, options.json)
    if failed:
        print(f"{failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
