"""The CPU target against NumPy, ONNX Runtime and PyTorch, on one and two threads.

Each number of threads is a process of its own, since the peers' pools are sized when they start. A peer
that isn't installed is named. `--quick` takes fewer shapes and pairs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

THREADS = (1, 2)
MATMULS = (
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (2039, 2039, 2039),
    (128, 768, 768), (128, 3072, 768), (128, 768, 3072), (1, 768, 768), (1, 3072, 768),
)  # fmt: skip
QUICK = ((512, 512, 512), (128, 768, 768), (1, 768, 768))


def main() -> None:
    if "--threads" in sys.argv:
        measure(int(sys.argv[sys.argv.index("--threads") + 1]), "--quick" in sys.argv)
        return
    from report import Row, finish, parse_options

    options = parse_options(__doc__ or "")
    rows: list[Row] = []
    for threads in THREADS:
        if threads > (os.cpu_count() or 1):
            continue
        with TemporaryDirectory() as folder:
            file = Path(folder) / "rows.json"
            names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TASKC_THREADS")
            environment = os.environ | dict.fromkeys(names, str(threads))
            environment["ROWS"] = str(file)
            command = [sys.executable, __file__, "--threads", str(threads)]
            subprocess.run(
                command + (["--quick"] if options.quick else []), env=environment, check=True
            )
            rows += [Row(**row) for row in json.loads(file.read_text())]
    finish(rows, options.json)


def measure(threads: int, quick: bool) -> None:
    """Writes the rows of one number of threads to the file that the environment names."""
    from pairs import Probe, pairs

    probe = Probe(threads)
    peak = probe.gflops()
    print(f"{threads} thread(s): {peak:.0f} GFLOP/s in a loop of fused multiply-adds", flush=True)
    rows: list[dict[str, Any]] = []
    for benchmark, case, ours, theirs, work in cases(threads, quick):
        for peer, call in theirs.items():
            found = pairs(ours, call, probe, budget=0.5 if quick else 2.0)
            rows.append(
                {
                    "benchmark": benchmark,
                    "case": case,
                    "threads": threads,
                    "ours_ms": found.ours,
                    "peer": peer,
                    "peer_ms": found.theirs,
                    "ratio": found.ratio,
                    "quartiles": found.quartiles,
                    "kept": found.kept,
                    "discarded": found.discarded,
                    "fraction_of_peak": work / (found.ours * 1e-3) / 1e9 / peak,
                }
            )
            print(f"  {benchmark} {case} {peer}: {found.ratio:.2f}", flush=True)
    Path(os.environ["ROWS"]).write_text(json.dumps(rows))


def cases(threads: int, quick: bool) -> Iterator[tuple[str, str, Any, dict[str, Any], float]]:
    """Benchmark, case, our call, the peers' calls, and operations."""
    import numpy as np

    from taskc.kernels.matmul import matmul, pack, packed_type

    for m, n, k in QUICK if quick else MATMULS:
        a = np.random.default_rng(0).standard_normal((m, k)).astype(np.float32)
        b = np.random.default_rng(1).standard_normal((k, n)).astype(np.float32)
        c, d = np.empty((m, n), np.float32), np.empty((m, n), np.float32)
        case, work = f"{m}x{n}x{k}", 2.0 * m * n * k
        plain = matmul(m, n, k)
        panels = pack(b, packed_type(n, k, m=m))
        constant = matmul(m, n, k, packed=True)
        np.testing.assert_allclose(constant(a, panels), a @ b, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(plain(a, b), a @ b, rtol=1e-3, atol=1e-3)
        per_call = {"numpy": lambda a=a, b=b, d=d: np.matmul(a, b, out=d)}
        ahead = dict(per_call)
        if torch := _torch(threads):
            x, y, z = torch.from_numpy(a), torch.from_numpy(b), torch.empty(m, n)
            per_call["torch"] = lambda x=x, y=y, z=z: torch.matmul(x, y, out=z)
            ahead["torch"] = per_call["torch"]
        if session := _session(a, b, threads):
            ahead["onnxruntime"] = session
        yield "matmul", case, (lambda a=a, b=b, c=c, f=plain: f(a, b, out=c)), per_call, work
        yield (
            "matmul, constant b", case,
            (lambda a=a, b=panels, c=c, f=constant: f(a, b, out=c)), ahead, work,
        )  # fmt: skip


def _torch(threads: int) -> Any:
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return torch


def _session(a: Any, b: Any, threads: int) -> Any:
    """A product by a constant in ONNX Runtime, with all optimizations and bound memory."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        return None
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"])],
        "product",
        [helper.make_tensor_value_info("a", kind, a.shape)],
        [helper.make_tensor_value_info("c", kind, [a.shape[0], b.shape[1]])],
        [onnx.numpy_helper.from_array(b, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    binding.bind_cpu_input("a", a)
    binding.bind_output("c")
    return lambda: session.run_with_iobinding(binding)


if __name__ == "__main__":
    main()
