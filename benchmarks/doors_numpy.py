"""NumPy's door: what noting costs, chains of operations, hits of tc.jit, lengths; and programs with the import changed.

    python benchmarks/doors_numpy.py [--json FILE]
    python benchmarks/doors_numpy.py --npbench FOLDER [--size S] [--only jacobi_2d,adi] [--numba]

The programs are NPBench's (github.com/spcl/npbench); FOLDER is a checkout of it.

Each program runs in a process of its own: NumPy's source as it is, and with `import taskc.numpy as np`. Results are
compared as NPBench does (relative error of the norm under 1e-5 for f64). Times are medians of interleaved calls: of the
clock, or with --processor-time of the processor, which a busy machine disturbs less; use it with one thread for all:

    TASKC_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import subprocess
import sys
import time
import types
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

clock = time.perf_counter


def program(folder: Path, info: dict[str, Any], kind: str) -> Any:
    """The function of a program's source: NumPy's, ours with the import changed, or Numba's."""
    name = info["module_name"]
    place = folder / "npbench/benchmarks" / info["relative_path"]
    path = place / f"{name}_{'numba_n' if kind == 'numba' else 'numpy'}.py"
    text = path.read_text()
    if kind == "ours":
        text = text.replace("import numpy as np", "import taskc.numpy as np")
    module = types.ModuleType(f"{name}_{kind}")
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return getattr(module, info["func_name"])


def data_of(folder: Path, info: dict[str, Any], size: str) -> dict[str, Any]:
    """The arguments by name."""
    data: dict[str, Any] = dict(info["parameters"][size])
    if info.get("init"):
        place = folder / "npbench/benchmarks" / info["relative_path"] / f"{info['module_name']}.py"
        module = types.ModuleType("data")
        exec(compile(place.read_text(), str(place), "exec"), module.__dict__)
        init = info["init"]
        made = getattr(module, init["func_name"])(*[data[name] for name in init["input_args"]])
        made = made if isinstance(made, tuple) else (made,)
        data |= dict(zip(init["output_args"], made, strict=True))
    return data


def once(
    kind: str, function: Any, data: dict[str, Any], info: dict[str, Any]
) -> tuple[float, list[Any]]:
    """Seconds of a call on fresh arguments, and the results: what it returns, and the arrays that it writes."""
    given = {name: copy.deepcopy(data[name]) for name in info["input_args"]}
    if kind == "ours":
        import taskc.numpy as tnp

        given = {n: tnp.array(x) if isinstance(x, np.ndarray) else x for n, x in given.items()}
    begin = clock()
    returned = function(*given.values())
    results = [] if returned is None else [*returned] if isinstance(returned, tuple) else [returned]
    results += [
        given[name] for name in info["array_args"] if name in given
    ]  # whatever it has written
    if kind == "ours":
        results = [np.asarray(x) for x in results]  # the values are needed
    return clock() - begin, results


def is_right(expected: list[Any], results: list[Any]) -> bool:
    if len(expected) != len(results):
        return False
    for one, other in zip(expected, results, strict=True):
        one, other = np.asarray(one), np.asarray(other)
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        bound = 1e-5 if one.dtype.itemsize > 4 or one.dtype.kind not in "fc" else 1e-3
        norm = float(np.linalg.norm(one.astype(complex).ravel())) or 1.0
        error = float(np.linalg.norm((one.astype(complex) - other.astype(complex)).ravel()))
        if not np.allclose(one, other, equal_nan=True) and not error / norm < bound:
            return False
    return True


def measure(folder: Path, name: str, size: str, seconds: float, numba: bool) -> dict[str, Any]:
    info = json.loads((folder / "bench_info" / f"{name}.json").read_text())["benchmark"]
    data = data_of(folder, info, size)
    from taskc import finish_compiling
    from taskc.numpy.forms import counts

    row: dict[str, Any] = {"benchmark": "npbench", "case": name, "size": size}
    theirs, ours = program(folder, info, "numpy"), program(folder, info, "ours")
    numpy_s, expected = once("numpy", theirs, data, info)
    row["first_s"], results = once("ours", ours, data, info)
    row["right"] = is_right(expected, results)
    once("ours", ours, data, info)  # sizes that vary are compiled for again
    finish_compiling()
    times: dict[str, list[float]] = {"numpy": [numpy_s], "ours": []}
    kinds = {"numpy": theirs, "ours": ours}
    if numba:
        try:
            kinds["numba"] = program(folder, info, "numba")
            _, other = once("numba", kinds["numba"], data, info)
            row["numba_right"], times["numba"] = is_right(expected, other), []
        except Exception as error:
            kinds.pop("numba", None)
            row["numba_error"] = f"{type(error).__name__}: {error}"[:200]
    begin = time.perf_counter()
    while len(times["ours"]) < 2 or (
        time.perf_counter() - begin < seconds and len(times["ours"]) < 25
    ):
        for kind, function in kinds.items():
            elapsed, results = once(kind, function, data, info)
            times[kind].append(elapsed)
    row |= {f"{kind}_ms": statistics.median(values) * 1e3 for kind, values in times.items()}
    row["ratio"] = row["numpy_ms"] / row["ours_ms"]
    row["compiled"] = counts["compiled"]
    return row


def chain(x: Any, y: Any) -> Any:
    """Eight operations."""
    return ((((((x + y) * x) - y) * y + x) * 0.5) * x) - y


def own_rows() -> list[dict[str, Any]]:
    """Noting, chains against NumPy's, hits of `tc.jit`, compilations for 100 lengths, and memory after 10,000 calls."""
    import resource

    import taskc as tc
    from taskc.numpy.forms import counts
    from taskc.numpy.segment import Segment, here

    def seconds(*calls: Any, repeat: int) -> list[float]:
        """The median of each call's seconds, interleaved."""
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(15):
            for own, call in zip(times, calls, strict=True):
                begin = clock()
                for _ in range(repeat):
                    call()
                own.append((clock() - begin) / repeat)
        return [statistics.median(own) for own in times]

    def noted() -> None:
        here.segment = Segment()
        chain(one, one)

    one = tc.array(np.ones(1))
    (note,) = seconds(noted, repeat=1000)
    rows: list[dict[str, Any]] = [
        {"case": "noting an operation", "ours_us": round(note / 8 * 1e6, 2)}
    ]
    here.segment = Segment()
    for size in (1 << 12, 1 << 16, 1 << 20, 1 << 22):
        x, y = np.random.default_rng(0).random((2, size))
        ours_x, ours_y = tc.array(x), tc.array(y)
        assert np.array_equal(chain(x, y), np.asarray(chain(ours_x, ours_y)))
        ours, theirs = partial(chain, ours_x, ours_y), partial(chain, x, y)
        pair = seconds(lambda own=ours: np.asarray(own()), theirs, repeat=max(1, (1 << 21) // size))
        rows.append({
            "case": f"eight operations of {size}", "ours_ms": round(pair[0] * 1e3, 4), "peer": "numpy",
            "peer_ms": round(pair[1] * 1e3, 4), "ratio": round(pair[1] / pair[0], 2),
        })  # fmt: skip
    jitted = tc.jit(lambda x, y: (x + y) * 2)
    jitted(one, one)
    (hit,) = seconds(lambda: jitted(one, one), repeat=2000)
    rows.append({"case": "a hit of tc.jit, with its program", "ours_us": round(hit * 1e6, 2)})
    before = counts["compiled"]
    for size in range(5000, 5100):
        x = tc.array(np.arange(float(size)))
        float((x[1:] * 2 + x[:-1]).sum())
    rows.append({"case": "100 lengths", "compilations": counts["compiled"] - before})
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for size in range(10_000):
        x = tc.array(np.full(10_000, float(size)))
        float((x * 2 + 1)[5])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident
    rows.append({"case": "10,000 calls", "kib_more_at_the_peak": grown})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--npbench", type=Path)
    parser.add_argument("--size", default="S")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--limit", type=float, default=120, help="seconds of a program's process")
    parser.add_argument("--numba", action="store_true")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.processor_time:
        global clock
        clock = time.process_time
    if options.one:
        row = measure(options.npbench, options.one, options.size, options.seconds, options.numba)
        print("ROW " + json.dumps(row))
        return
    if options.npbench is None:
        rows = own_rows()
        for row in rows:
            print("  ".join(f"{name} {value}" for name, value in row.items()))
        if options.json:
            options.json.write_text(json.dumps({"rows": rows}, indent=1))
        return
    names = sorted(path.stem for path in (options.npbench / "bench_info").glob("*.json"))
    names = [name for name in names if not options.only or name in options.only.split(",")]
    rows = []
    for name in names:
        command = [
            sys.executable,
            __file__,
            "--npbench",
            str(options.npbench),
            "--size",
            options.size,
        ]
        command += ["--seconds", str(options.seconds), "--one", name] + ["--numba"] * options.numba
        command += ["--processor-time"] * options.processor_time
        row = {"benchmark": "npbench", "case": name, "size": options.size, "right": False}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=options.limit)
            found = [line for line in done.stdout.splitlines() if line.startswith("ROW ")]
            row |= json.loads(found[0][4:]) if found else {"error": done.stderr[-1500:]}
        except subprocess.TimeoutExpired:
            row["error"] = f"took more than {options.limit:.0f} s"
        rows.append(row)
        print(text_of(row), flush=True)
        if options.json:
            options.json.write_text(json.dumps({"rows": rows}, indent=1))
    right = [row for row in rows if row["right"]]
    print(f"right: {len(right)} of {len(rows)}")
    for peer in ("numpy", "numba"):
        ratios = [row[f"{peer}_ms"] / row["ours_ms"] for row in right if f"{peer}_ms" in row]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            losses = sum(ratio < 1 for ratio in ratios)
            print(
                f"{peer}: x{mean:.2f} by geometric mean, least x{min(ratios):.2f}, {losses} losses"
            )


def text_of(row: dict[str, Any]) -> str:
    if "error" in row:
        last = row["error"].strip().splitlines()[-1][:160] if row["error"].strip() else "died"
        return f"{row['case']:28} error: {last}"
    peers = "  ".join(
        f"{peer} {row[f'{peer}_ms']:9.2f}" for peer in ("numpy", "numba") if f"{peer}_ms" in row
    )
    return (
        f"{row['case']:28} {'right' if row['right'] else 'WRONG'}  ours {row['ours_ms']:9.2f} ms  {peers}"
        f"  x{row['ratio']:.2f}  first {row['first_s']:.1f} s  {row['compiled']} programs"
    )


if __name__ == "__main__":
    main()
