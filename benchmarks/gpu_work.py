"""What a process of `gpu.py` does: it compiles, checks or measures one kernel of one size."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from math import ceil, prod
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import gpu_failures
import gpu_variants
import numpy as np
from gpu_cases import FAMILIES, SINGLES, Family
from gpu_jobs import OFF_DEVICE
from gpu_variants import VARIANTS

import taskc as tc
from taskc import DType, device
from taskc.backend.cuda import watchdog
from taskc.ir.arithmetic import convert
from taskc.ir.signature import inputs_of, outputs_of
from taskc.ir.types import f32, tf32
from taskc.runtime import driver

PREPARES_TORCH = ("measure", "timing", "device", "DLPack")  # kinds of jobs that use it
took: dict[str, float] = {}  # seconds
FAMILY = {family.name: family for family in (*FAMILIES, *VARIANTS, *SINGLES)}
PAIRS = 15
_FILLED = 2  # times the L2 that buffers rotate through
_LONG = 2e-3  # seconds that a sample takes at least
_GUARD = 4096  # bytes
FILLERS = {True: 0x6B, False: 0xFF}  # of integers, of floats: what a result begins as
WATCHED = 10.0  # seconds after which a rung's kernel waits in vain
_DIFFERENT = 4_194_301  # random numbers, a prime: larger arrays repeat them

# Floating-point operations of a multiprocessor in a clock, in dense products of these types, by NVIDIA's papers
# on its architectures.
_RATES = {
    (8, 0): {"f16": 2048, "bf16": 2048, "tf32": 1024, "i8": 4096, "f32": 128},
    (8, 9): {"f16": 1024, "bf16": 1024, "tf32": 512, "i8": 2048, "f32": 256},
    (9, 0): {"f16": 4096, "bf16": 4096, "tf32": 2048, "i8": 8192, "f32": 256},
}


def prepare(jobs: list[dict[str, Any]]) -> None:
    """What counts against no job: imports, and the device's start."""
    kinds = {job["kind"] for job in jobs}
    if any("rung" in job for job in jobs):
        watchdog.watch(WATCHED)
    if not kinds <= set(OFF_DEVICE):
        device.context()
    if kinds & set(PREPARES_TORCH):
        start = time.monotonic()
        torch_here()
        took["torch"] = time.monotonic() - start


def family_of(job: dict[str, Any]) -> Family:
    return FAMILY[job["family"]]


def compile_ahead(job: dict[str, Any]) -> dict[str, Any]:
    """Into the cache, for a target that need not be here; what the assembler finds bad about it."""
    target = job["target"]
    kernel = family_of(job).build(tc.machine(target), *job["size"])
    remarks: list[str] = []
    for made in driver.compile_ahead(kernel, target):
        taken = made.resources
        spilled = taken.spill_stores + taken.spill_loads
        remarks += [f"{spilled} bytes are spilled"] if spilled else []
        remarks += taken.remarks
    return {"remarks": remarks} if remarks else {}


def check(job: dict[str, Any]) -> dict[str, Any]:
    """A kernel's result against the reference in float64, by NumPy.

    The result begins as something else, and so does the memory around it, which has to stay. A job that wants
    `repeats` gets the same bits each time.
    """
    family, kernel, size = _built(job)
    arrays = (family.inputs or inputs)(kernel)
    given = on_device(kernel, arrays)
    out = Guarded(kernel)
    first = found = out.called(kernel, given)
    for number in range(1, job.get("repeats", 1)):
        again = out.called(kernel, given)
        if again.tobytes() != first.tobytes():
            count = int((again.view(np.uint8) != first.view(np.uint8)).sum())
            return {"error": f"call {number + 1} gives other bits than the first, in {count} bytes"}
    expected = family.reference(*[array.astype(np.float64) for array in arrays])
    row = compared(found.astype(np.float64), np.asarray(expected), family.bound(size))
    if "error" in row:
        row["error"] += _explained(
            job, kernel, arrays, found, np.asarray(expected), family.bound(size)
        )
    return {"error": "it writes before or behind its result"} if not out.is_whole() else row


def _explained(
    job: dict[str, Any], kernel: Any, arrays: Any, found: Any, expected: Any, bound: Any
) -> str:
    """What kind of wrong a result is, and the folder with all that is known of it."""
    if found.shape != expected.shape:
        return ""
    wide, (relative, absolute) = found.astype(np.float64), bound
    wrong = ~(np.abs(wide - expected) <= relative * np.abs(expected) + absolute)
    filler = np.full(1, FILLERS[np.issubdtype(found.dtype, np.integer)], np.uint8)
    filler = np.resize(filler, found.dtype.itemsize).view(found.dtype).astype(np.float64)[0]
    inputs = [array.astype(np.float64) for array in arrays]
    kind = gpu_failures.classified(wide, expected, wrong, filler, inputs)
    if not job.get("folder"):
        return f"; {kind}"
    given = {f"input_{number}": array for number, array in enumerate(inputs)}
    place = gpu_failures.left_behind(
        Path(job["folder"]), job, kernel, device.context().target, kind, wrong,
        {**given, "found": wide, "expected": expected},
    )  # fmt: skip
    return f"; {kind}; {place}"


class Guarded:
    """The memory of a kernel's result, with bytes on either side that nobody may touch."""

    def __init__(self, kernel: Any) -> None:
        (output,) = outputs_of(kernel.ir.parameters)
        shape = tuple([int(extent) for extent in output.argument_shape])
        dtype = output.dtype.numpy
        # No number at all, or one that isn't met by chance.
        self.filler = np.uint8(FILLERS[np.issubdtype(dtype, np.integer)])
        self.fresh = np.full(prod(shape) * dtype.itemsize + 2 * _GUARD, self.filler)
        self.memory = device.array(self.fresh)
        start = self.memory.pointer + _GUARD
        self.result = device.Array(start, shape, dtype, self.memory.memory)

    def called(self, kernel: Any, given: list[Any]) -> Any:
        self.memory.set(self.fresh)
        kernel(*given, out=self.result)
        return self.result.numpy()

    def is_whole(self) -> bool:
        """Whether what is around the last result is as it was."""
        found = self.memory.numpy()
        return bool(
            (found[:_GUARD] == self.filler).all() and (found[-_GUARD:] == self.filler).all()
        )


def compared(found: Any, expected: Any, bound: tuple[float, float]) -> dict[str, Any]:
    """The largest error as a part of what is allowed; a wrong or missing number is an error."""
    relative, absolute = bound
    error, allowed = np.abs(found - expected), relative * np.abs(expected) + absolute
    if found.shape != expected.shape:
        return {"error": f"the result has the shape {found.shape}, and not {expected.shape}"}
    wrong = ~(error <= allowed)
    if wrong.any():
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
        count = int(wrong.sum())
        return {"error": f"{count} are wrong; at {at} it is {found[at]} and not {expected[at]}"}
    worst = error / np.where(allowed > 0, allowed, 1)
    return {"error_of_bound": float(worst.max(initial=0.0))}


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Times of ours and of torch's, in turns, after the results have been compared."""
    family, kernel, size = _built(job)
    arrays = on_device(kernel, (family.inputs or inputs)(kernel))
    (output,) = outputs_of(kernel.ir.parameters)
    shape = tuple([int(extent) for extent in output.argument_shape])
    bytes_moved = sum(array.nbytes for array in arrays) + prod(shape) * output.dtype.nbytes
    copies = min(64, max(1, ceil(_FILLED * device.context().cache_bytes / max(1, bytes_moved))))
    sets = [arrays, *[[array.copy() for array in arrays] for _ in range(copies - 1)]]
    results = [device.empty(shape, output.dtype) for _ in sets]
    calls = [
        lambda given=given, out=out: kernel(*given, out=out)
        for given, out in zip(sets, results, strict=True)
    ]
    results[0].set(np.full(shape, np.nan, output.dtype.numpy))  # whatever isn't written is wrong
    times = _times(calls)
    torch = torch_here()
    theirs: Callable[[], None] | None = None
    found: dict[str, Any] = {}
    if torch is not None and family.peer is not None:
        tensors = [[torch.from_dlpack(array) for array in given] for given in sets]
        # Whoever looks for the reason wants to know the time, too.
        found |= _differs(family, size, torch, tensors[0], results[0]) or {}
        peers = [lambda given=given: family.peer(torch, *given) for given in tensors]
        theirs = _of_torch(torch, peers, times)
        found["peer"] = "torch"
    else:
        found["peer"] = None
    ours = device.Graph(lambda: [call() for _ in range(times) for call in calls])
    first, second = _samples(ours.replay, theirs, times * len(calls))
    found |= summary(first, second)
    seconds = found["ours_ms"] * 1e-3
    if family.work is not None:
        rate = family.work(size) / seconds
        found |= {"tflops": rate / 1e12, "fraction_of_peak": _part(rate, peak_rate(family.dtype))}
    if family.is_bound_by_memory:
        found["fraction_of_copy"] = bytes_moved / seconds / copy_rate()
    return found


def _built(job: dict[str, Any]) -> tuple[Any, Any, tuple[Any, ...]]:
    family, size = family_of(job), tuple(job["size"])
    machine = tc.machine(device.context().target)
    if "switch" in job:
        plan = gpu_failures.planned(job, device.context().target)
        return family, gpu_variants.build(plan, machine, *size), size
    return family, family.build(machine, *size), size


def inputs(kernel: Any) -> list[np.ndarray]:
    """Random numbers: zeros would take less power, and so less time."""
    random = np.random.default_rng(gpu_failures.SEED)
    made = []
    for item in inputs_of(kernel.ir.parameters):
        shape = tuple([int(extent) for extent in item.argument_shape])
        values = random.standard_normal(min(prod(shape), _DIFFERENT), np.float32)
        made.append(np.resize(np.asarray(convert(values, f32, item.dtype)), shape))
    return made


def on_device(kernel: Any, arrays: list[np.ndarray]) -> list[Any]:
    """Copies; elements of less than a byte are packed."""
    items = inputs_of(kernel.ir.parameters)
    return [
        device.array(
            tc.pack(array, item.dtype[item.argument_shape]) if item.dtype.is_sub_byte else array
        )
        for item, array in zip(items, arrays, strict=True)
    ]


@cache
def torch_here() -> Any:
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.set_grad_enabled(False)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    return torch


def _differs(
    family: Family, size: tuple[Any, ...], torch: Any, tensors: list[Any], result: Any
) -> dict[str, Any] | None:
    """What is wrong with a result of full size, compared with torch's in a wider type."""
    assert family.peer is not None
    torch.set_float32_matmul_precision("highest")
    is_narrow = all(tensor.element_size() < 4 for tensor in tensors)
    wide = [tensor.float() if is_narrow else tensor.double() for tensor in tensors]
    expected = family.peer(torch, *wide)
    relative, absolute = family.bound(size)
    found = torch.from_dlpack(result).to(expected.dtype).reshape(expected.shape)
    # Not `error > allowed`: what is no number is wrong.
    wrong = ~((found - expected).abs() <= relative * expected.abs() + absolute)
    count = int(wrong.sum())
    torch.set_float32_matmul_precision("high" if family.dtype is tf32 else "highest")
    return {"error": f"{count} of {wrong.numel()} are wrong"} if count else None


def _times(calls: list[Any]) -> int:
    """How often all buffers are gone through, for a sample that is long enough to be measured."""
    for call in calls:
        call()
    stream = device.current_stream()
    start = stream.record()
    for call in calls:
        call()
    end = stream.record()
    end.synchronize()
    return min(200, max(1, ceil(_LONG * 1e3 / max(1e-3, end.since(start)))))


def _of_torch(torch: Any, peers: list[Any], times: int) -> Callable[[], None]:
    """Their calls as a graph; one after another where torch can't capture them."""

    def calls() -> None:
        for _ in range(times):
            for peer in peers:
                peer()

    try:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for peer in peers[:3]:
                peer()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            calls()
    except RuntimeError:
        torch.cuda.synchronize()
        return calls
    return lambda: graph.replay()


def _samples(
    ours: Callable[[], None], theirs: Callable[[], None] | None, count: int
) -> tuple[list[float], list[float]]:
    """The milliseconds of one call, of ours and theirs in turns."""
    first: list[float] = []
    second: list[float] = []
    both = [(ours, first)] if theirs is None else [(ours, first), (theirs, second)]
    stream = device.current_stream()
    for run, _ in both:
        run()
    for number in range(PAIRS):
        for run, times in both if number % 2 else both[::-1]:
            start = stream.record()
            run()
            end = stream.record()
            end.synchronize()
            times.append(end.since(start) / count)
    return first, second


def summary(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Medians in ms, and the ratios of pairs, above 1 a win."""
    found: dict[str, Any] = {"ours_ms": median(ours), "threads": 0, "kept": len(ours)}
    if theirs:
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        low, _, high = quantiles(ratios, n=4)
        found |= {"peer_ms": median(theirs), "ratio": median(ratios), "quartiles": (low, high)}
    return found


def _part(rate: float, whole: float | None) -> float | None:
    return None if whole is None else rate / whole


@cache
def peak_rate(dtype: DType) -> float | None:
    """Operations in a second in dense products of a type, at the highest clock; None where that isn't known."""
    owner = device.context()
    rate = _RATES.get(owner.capability, {}).get(dtype.name)
    clock = owner.api.driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLOCK_RATE  # kHz
    hertz = 1e3 * int(owner.api.cuDeviceGetAttribute(clock, owner.device))
    return None if rate is None else owner.processors * rate * hertz


@cache
def copy_rate() -> float:
    """Bytes that a copy on the device reads and writes in a second."""
    size = 1 << 30
    source, target = device.empty(size, np.uint8), device.empty(size, np.uint8)
    stream = device.current_stream()
    times = []
    for _ in range(PAIRS):
        start = stream.record()
        target.set(source)
        end = stream.record()
        end.synchronize()
        times.append(end.since(start))
    return 2 * size / (sorted(times)[len(times) // 2] * 1e-3)
