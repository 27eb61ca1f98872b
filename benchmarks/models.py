"""ONNX models against ONNX Runtime and OpenVINO: the time of a call, of compiling, and the memory at its peak.

    python benchmarks/models.py --models FOLDER [--list public.json] [--quick] [--json FILE]

Every model of the folder is run, and of a list those that are below the folder, with the extents that the list says.
`NAME.npz` beside `NAME.onnx` has its inputs; without it they are random. Each number of threads, and each model, is a
process of its own. Peers have all of their optimizations and as many threads, and compute in f32; the line of a model
says which peer isn't installed or refuses it. Compiling is measured with an empty cache, and again with what is kept
there then. Models of less than half a millisecond are listed, and not averaged: there it is mostly calling that is
measured. random_networks.py writes models of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from report import Row, finish, record, summary

THREADS = (1, 2)
SHORT_MS = 0.5
CALM = 0.05  # seconds, in which the other side's threads stop waiting for work
Extents = dict[str, list[int]]

# What the exported models are run on: batch 1, and 128 tokens of text.
VOCABULARY, TOKENS = 30_000, 128


def cases(folder: Path, listed: Path | None) -> Iterator[tuple[str, Path, Extents]]:
    """A name, a file, and what the list says of the inputs' shapes."""
    known = json.loads(listed.read_text()) if listed is not None else []
    files = {(folder / one["file"]).resolve(): one for one in known}
    for path in sorted(folder.rglob("*.onnx")):
        one = files.pop(path.resolve(), None)
        if one is not None:
            yield one["file"], path, one["ort_inputs"]
        elif listed is None:
            yield path.stem, path, {}
    for one in files.values():
        print(f"{one['file']} isn't below {folder}: left out", file=sys.stderr)


def inputs_of(path: Path, model: Any, extents: Extents) -> dict[str, np.ndarray]:
    """The inputs beside the model, or random ones."""
    if not (beside := path.with_suffix(".npz")).exists():
        return feeds_of(model, extents)
    with np.load(beside) as arrays:
        return dict(arrays)


def feeds_of(model: Any, extents: Extents, seed: int = 0) -> dict[str, np.ndarray]:
    """Noise, bytes, ids of tokens, masks of ones, and for a scalar a rate of samples."""
    random = np.random.default_rng(seed)
    feeds = {}
    for value in model.inputs:
        shape = extents.get(value.name)
        if shape is None:
            open_extents = iter((1, TOKENS))
            shape = [n if isinstance(n, int) else next(open_extents, TOKENS) for n in value.shape]
        if value.dtype.is_float:
            array = random.standard_normal(shape)
        elif "mask" in value.name or "type" in value.name:
            array = np.full(shape, "mask" in value.name)
        elif shape:
            array = random.integers(0, 256 if "bytes" in value.name else VOCABULARY, shape)
        else:
            array = np.array(16_000)
        feeds[value.name] = array.astype(value.dtype.numpy)
    return feeds


def measure(path: Path, extents: Extents, threads: int, budget: float) -> dict[str, Any]:
    """One model's measurements, or its `error`."""
    import taskc as tc
    from taskc.commands.verify import error_of
    from taskc.tune.timing import Probe, pairs

    start = time.perf_counter()
    model = tc.compile(str(path))
    feeds = inputs_of(path, model, extents)
    made = model.run(None, feeds)
    found: dict[str, Any] = {"compile_s": time.perf_counter() - start}
    # In KiB on Linux; before there is a peer, which takes its own.
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if budget:
        found["drift"] = drift(str(path), feeds)
        found["off"], found["pairs"], found["refused"] = {}, {}, {}
        for name, load in PEERS.items():
            try:
                peer = load(str(path), threads)
                answer = peer(feeds)
            except (ImportError, RuntimeError) as error:
                found["refused"][name] = str(error).strip().splitlines()[-1]
                continue
            found["off"][name] = max(map(error_of, made, answer))
            timed = pairs(
                lambda: model.run(None, feeds),
                lambda peer=peer: peer(feeds),  # type: ignore[misc]
                Probe(threads),
                budget=budget,
                calm=CALM if threads > 1 else 0.0,
            )
            found["pairs"][name] = asdict(timed)
    return found


def drift(path: str, feeds: dict[str, np.ndarray]) -> float:
    """How far ONNX Runtime is off from itself without optimizations: quantizing enlarges differences in rounding."""
    runtime = import_module("onnxruntime")
    levels, results = runtime.GraphOptimizationLevel, []
    for level in (levels.ORT_ENABLE_ALL, levels.ORT_DISABLE_ALL):
        options = runtime.SessionOptions()
        options.graph_optimization_level, options.log_severity_level = level, 4
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        results.append(session.run(None, feeds))
    from taskc.commands.verify import error_of

    return max(map(error_of, *results))


Run = Callable[[dict[str, np.ndarray]], list[np.ndarray]]


def onnxruntime_of(path: str, threads: int) -> Run:
    from taskc.onnx.partitions import RuntimeSession

    return RuntimeSession(path, threads).run


def openvino_of(path: str, threads: int) -> Run:
    loads = "import openvino, sys; openvino.Core().compile_model(sys.argv[1], 'CPU')"
    command = [sys.executable, "-c", loads, path]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:  # it may crash
        raise RuntimeError(tried.stderr.strip() or f"it ends with {tried.returncode}")
    openvino = import_module("openvino")
    limits = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    limits["INFERENCE_PRECISION_HINT"] = "f32"
    request = openvino.Core().compile_model(path, "CPU", limits).create_infer_request()
    return lambda feeds: [*request.infer(feeds).values()]


PEERS = {"onnxruntime": onnxruntime_of, "openvino": openvino_of}


def measured(path: Path, extents: Extents, threads: int, quick: bool) -> dict[str, Any]:
    """In processes of their own: first with an empty cache, then with what is in it."""
    found: dict[str, Any] = {}
    with TemporaryDirectory() as cache:
        for name, budget in (("cold", 0.0), ("warm", 0.5 if quick else 5.0)):
            job = {"path": str(path), "extents": extents, "threads": threads, "budget": budget}
            environment = os.environ | {"TASKC_THREADS": str(threads), "TASKC_CACHE": cache}
            command = [sys.executable, __file__, "--job", json.dumps(job)]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                last = done.stderr.strip().splitlines()[-1:] or ["no word"]
                return {"error": last[0]}
            print(done.stderr, end="", file=sys.stderr)
            found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def rows_of(name: str, threads: int, found: dict[str, Any]) -> list[Row]:
    """A row for each peer."""
    return [
        Row(
            "models", name, threads, timed["ours"], peer, timed["theirs"], timed["ratio"],
            quartiles=tuple(timed["quartiles"]), kept=timed["kept"], discarded=timed["discarded"],
        )
        for peer, timed in found["warm"]["pairs"].items()
    ]  # fmt: skip


def compile_rows(name: str, threads: int, found: dict[str, Any]) -> list[Row]:
    return [
        Row(f"compile {state}", name, threads, 1e3 * found[state]["compile_s"])
        for state in ("cold", "warm")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="where the models are")
    parser.add_argument("--list", type=Path, metavar="FILE", help="which, and their inputs")
    parser.add_argument("--only", metavar="TEXT", default="", help="models of such names")
    parser.add_argument("--quick", action="store_true", help="one thread, and fewer pairs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job = json.loads(options.job)
        path = Path(job.pop("path"))
        print(json.dumps(measure(path, **job)))
        return
    from taskc.format import bytes_text, ratio_text, time_text  # not in a process that measures

    if options.models is None:
        parser.error("say where the models are: --models FOLDER")
    long, short, compiled, failed = [], [], [], 0
    for threads in THREADS[: 1 if options.quick else None]:
        for name, path, extents in cases(options.models, options.list):
            if options.only not in name:
                continue
            found = measured(path, extents, threads, options.quick)
            if "error" not in found and not found["warm"]["pairs"]:
                found["error"] = f"no peer: {found['warm']['refused']}"
            if "error" in found:
                failed += 1
                print(f"{name}, {threads} thread(s): {found['error']}", flush=True)
                continue
            rows = rows_of(name, threads, found)
            is_short = min(min(row.ours_ms, row.peer_ms or 0) for row in rows) < SHORT_MS
            (short if is_short else long).extend(rows)
            compiled += compile_rows(name, threads, found)
            seconds = [found[state]["compile_s"] for state in ("cold", "warm")]
            beside = ", ".join(
                f"{row.peer} {time_text((row.peer_ms or 0) / 1e3)}, {ratio_text(row.ratio or 0)}"
                for row in rows
            )
            refused = found["warm"]["refused"]
            beside += "".join(f", {peer}: {reason}" for peer, reason in refused.items())
            off = max(found["warm"]["off"].values())
            print(
                f"{name}, {threads} thread(s): {time_text(rows[0].ours_ms / 1e3)}; {beside};"
                f" off by {off:.1e}, and ONNX Runtime without optimizations by"
                f" {found['warm']['drift']:.1e};"
                f" compiled in {time_text(seconds[0])}, from the cache in {time_text(seconds[1])};"
                f" at most {bytes_text(found['warm']['peak_mib'] * 2**20)}",
                flush=True,
            )
    print()
    finish(long, None)
    summary(long)
    if short:
        ratios = [row.ratio for row in short if row.ratio is not None]
        print(f"under {SHORT_MS} ms: {len(short)}, geometric mean {geometric_mean(ratios):.2f}")
    if failed:
        print(f"{failed} failed")
    record([*long, *short, *compiled], options.json)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
