"""The CPU target against NumPy, ONNX Runtime and PyTorch, on one and two threads.

Each number of threads is a process of its own, since the peers' pools are sized when they start. A peer
that isn't installed is named. `--quick` takes fewer shapes and pairs.

Convolutions are a section of their own (convolution_cases.py, and of bf16 and bytes convolution_types.py):
`--convolutions` measures them alone, with the processor time that each takes to compile; `--networks` those
of two networks. `--untuned` measures, instead of anything else, their plans as they are chosen against random ones,
which takes long. `--tune` tunes each problem before. `--f64` measures what is asked of f64, against half of the peak.
`--avx2` and `--sse2` run our code for these targets on this processor, and keep the peers to the same instructions,
except ONNX Runtime, which nothing limits. With `--f64 --products` there are no others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING

from processes import LESSER, is_measuring, rows_of, stand_in, write_rows
from report import Row, finish, parse_options, summary

if TYPE_CHECKING:
    from cpu_cases import Case

PEERS = ("onnx", "onnxruntime", "torch")
FLAGS = {
    "avx2": "on code for AVX2, and with peers that use no more",
    "convolutions": "these alone",
    "f64": "products, norms, softmax, reductions and convolutions of f64 alone",
    "networks": "those of ResNet-50 and MobileNetV2 alone, in f32 and in a chain",
    "products": "these alone",
    "sse2": "on code for SSE2, and with peers that use no more",
    "tune": "first tunes each problem on the CPU, and says what that gained",
    "untuned": "the plans of convolutions alone, against random ones: takes long",
}
MATMULS = (
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (2039, 2039, 2039),
    (128, 768, 768), (128, 3072, 768), (128, 768, 3072), (1, 768, 768), (1, 3072, 768),
)  # fmt: skip
QUICK = ((512, 512, 512), (128, 768, 768), (1, 768, 768))
# Square, ragged, of primes, tall and wide, of a vector, and small.
MATMULS_F64 = (
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (1021, 1021, 1021), (500, 700, 900),
    (4096, 64, 256), (64, 4096, 256), (128, 3072, 768), (1, 768, 768), (1, 3072, 768), (1, 4096, 4096),
    (8, 768, 768), (97, 101, 103), (64, 64, 64), (31, 37, 41),
)  # fmt: skip
QUICK_F64 = ((512, 512, 512), (499, 503, 509), (1, 768, 768), (64, 64, 64))


def main() -> None:
    if is_measuring():
        write_rows(measure)
        return
    options = parse_options(__doc__ or "", **FLAGS)
    flags = [f"--{name}" for name in ("quick", *FLAGS) if getattr(options, name)]
    for peer in PEERS:
        if find_spec(peer) is None:
            print(f"{peer} is not installed")
    rows = rows_of(__file__, flags)
    finish(rows, options.json)
    summary(rows)


def measure(threads: int, flags: list[str]) -> Iterator[Row]:
    for target in LESSER:
        if f"--{target}" in flags:
            stand_in(target)

    from taskc.tune.timing import Probe, pairs

    quick = "--quick" in flags
    if "--tune" in flags:
        tune(threads, quick, flags)
    probe = Probe(threads)
    peak = probe.gflops()
    print(f"{threads} thread(s): {peak:.0f} GFLOP/s in a loop of fused multiply-adds", flush=True)
    settings = {"budget": 0.5 if quick else 2.0, "calm": 0.05 if threads > 1 else 0.0}
    for case in sections(threads, quick, flags):
        if case.compiled_ms is not None:
            yield Row(f"compile: {case.benchmark}", case.case, threads, case.compiled_ms)
        of_copy = case.copy and pairs(case.ours, case.copy, probe, **settings).ratio
        for peer, call in case.peers.items():
            found = pairs(case.ours, call, probe, **settings)
            of_peak = case.operations and case.operations / (found.ours * 1e-3) / 1e9 / peak
            of_peak = of_peak and of_peak * case.slower
            row = Row.paired(case.benchmark, case.case, threads, peer, found)
            yield replace(row, fraction_of_peak=of_peak, fraction_of_copy=of_copy)
            print(f"  {case.benchmark} {case.case} {peer}: {found.ratio:.2f}", flush=True)


def tune(threads: int, quick: bool, flags: list[str]) -> None:
    """Tunes what the cases choose from: what they are made of then is what was best."""
    from statistics import geometric_mean
    from time import perf_counter

    from taskc.tune.bench import tuned
    from taskc.tune.choose import recorded
    from taskc.tune.rows import said

    with recorded() as spaces:
        for _ in sections(threads, quick, flags):
            pass
    start, gains = perf_counter(), []
    for space in spaces.values():
        found = tuned(space, most=16)
        gain = found.default.ratio if found.default else 1.0
        gains.append(gain)
        print(f"  {gain:.3f} {space.operator.name} {said(space.problem_text)}", flush=True)
    mean, seconds = geometric_mean(gains), perf_counter() - start
    print(
        f"tuned: {len(gains)} problems in {seconds:.0f} s, gain {mean:.3f} in the mean", flush=True
    )


def sections(threads: int, quick: bool, flags: list[str]) -> Iterator[Case]:
    from convolution_cases import convolution_cases, network_cases, untuned_cases
    from convolution_types import typed_cases
    from cpu_cases import attention_cases, f64_cases, memory_cases

    if "--f64" in flags:
        shapes = QUICK_F64 if quick else MATMULS_F64
        others = () if "--products" in flags else f64_cases(threads, quick)
        return chain(products(threads, shapes, "float64"), others)
    if "--untuned" in flags:
        return untuned_cases(threads, quick)
    if "--networks" in flags:
        return network_cases(threads, quick)
    if "--convolutions" in flags:
        return chain(convolution_cases(threads, quick), typed_cases(threads, quick))
    if "--products" in flags:
        return products(threads, QUICK if quick else MATMULS)
    return chain(
        products(threads, QUICK if quick else MATMULS),
        heights(threads, quick),
        memory_cases(threads, quick),
        attention_cases(threads, quick),
        convolution_cases(threads, quick),
        typed_cases(threads, quick),
    )


def products(
    threads: int, shapes: tuple[tuple[int, int, int], ...], name: str = "float32"
) -> Iterator[Case]:
    import numpy as np
    from cpu_cases import Case, session_of, torch_on

    from taskc.ir.types import from_numpy
    from taskc.kernels.matmul import matmul

    numbers = np.dtype(name)
    options, of_type = {"dtype": from_numpy(numbers)}, "" if name == "float32" else " f64"
    tolerance = 1e-3 if name == "float32" else 1e-11
    for m, n, k in shapes:
        a = np.random.default_rng(0).standard_normal((m, k)).astype(numbers)
        b = np.random.default_rng(1).standard_normal((k, n)).astype(numbers)
        c, d = np.empty((m, n), numbers), np.empty((m, n), numbers)
        case, work = f"{m}x{n}x{k}", 2.0 * m * n * k
        plain = matmul(m, n, k, **options)
        constant = matmul(m, n, k, packed=True, **options)
        panels = constant.pack(b)
        np.testing.assert_allclose(constant(a, panels), a @ b, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(plain(a, b), a @ b, rtol=tolerance, atol=tolerance)
        per_call = {"numpy": lambda a=a, b=b, d=d: np.matmul(a, b, out=d)}
        ahead = dict(per_call)
        if torch := torch_on(threads):
            x, y, z = (torch.from_numpy(array) for array in (a, b, np.empty_like(c)))
            per_call["torch"] = lambda x=x, y=y, z=z: torch.matmul(x, y, out=z)
            ahead["torch"] = per_call["torch"]
        if run := session_of("MatMul", [a, b], (m, n), threads, result=numbers):
            ahead["onnxruntime"] = run
        ours = {
            f"matmul{of_type}": lambda a=a, b=b, c=c, f=plain: f(a, b, out=c),
            f"matmul{of_type}, constant b": lambda a=a, b=panels, c=c, f=constant: f(a, b, out=c),
        }
        for (benchmark, call), peers in zip(ours.items(), (per_call, ahead), strict=True):
            yield Case(benchmark, case, call, peers, operations=work, slower=numbers.itemsize / 4)


def heights(threads: int, quick: bool) -> Iterator[Case]:
    """One kernel for all heights, against ours for each one."""
    import numpy as np
    from cpu_cases import Case

    import taskc as tc
    from taskc.kernels.matmul import matmul

    n = k = 768
    b = np.random.default_rng(1).standard_normal((k, n)).astype(np.float32)
    plain, packed = (matmul(tc.dim("m"), n, k, packed=packed) for packed in (False, True))
    panels = packed.pack(b)
    for m in (1, 127) if quick else (1, 2, 8, 16, 127, 128, 1000):
        a = np.random.default_rng(0).standard_normal((m, k)).astype(np.float32)
        c, d = np.empty((m, n), np.float32), np.empty((m, n), np.float32)
        constant = matmul(m, n, k, packed=True)
        case, work = f"{m}x{n}x{k}", 2.0 * m * n * k
        for benchmark, kernel, own, given, own_given in (
            ("matmul, m unknown", plain, matmul(m, n, k), b, b),
            ("matmul, m unknown, constant b", packed, constant, panels, constant.pack(b)),
        ):  # fmt: skip
            peers = {"m known": partial(own, a, own_given, out=d)}
            yield Case(benchmark, case, partial(kernel, a, given, out=c), peers, operations=work)


if __name__ == "__main__":
    main()
