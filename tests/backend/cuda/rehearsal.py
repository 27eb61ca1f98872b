"""benchmarks/gpu.py without a GPU: all of it but the times, on sizes that are small.

    python -m tests.backend.cuda.rehearsal [what benchmarks/gpu.py takes]

    REHEARSAL_BREAKS="hang:7 crash:12a wait:9 parity:10"
        rungs of --bring-up that hang, that kill their process, or whose kernels have a mistake: see `planted`

The driver is the fake one, and kernels are the emitted code, compiled for this machine's processor. torch, where it is
installed, computes on the CPU, and is told that this is a GPU.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Sizes of the ladder, and smaller ones that are lowered to the same features.
SMALL: dict[Any, Any] = {
    (64, 2048, 2048): (64, 1088, 2048),
    (1024, 2040, 1000): (1024, 2040, 40),
    (4056, 2280, 136): (3576, 1144, 40),
    (2040, 2040, 136): (2040, 2040, 40),
    (4056, 4088, 136): (2040, 3192, 40),
    (16, 64, 57, 57, 128, 3, 2): (2, 64, 57, 57, 128, 3, 2),  # but for setmaxnreg
    (12_800_000 - 37,): (128 * 40 - 37,),
    (1, 67, 67, 520, 520, 64): (1, 45, 45, 260, 260, 64),
}
ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from taskc.backend.cuda import api, target  # noqa: E402
from tests.backend.cuda import host  # noqa: E402
from tests.backend.cuda.fake_driver import FakeDriver  # noqa: E402
from tests.backend.cuda.hosting import compiler_of  # noqa: E402


def main() -> int:
    sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples")]
    import gpu
    import gpu_cases
    import gpu_jobs
    import gpu_variants

    fake = FakeDriver()
    api.load_driver = lambda: fake
    target.compiled = compiler_of(fake)
    gpu_cases.FAMILIES = tuple(map(small, gpu_cases.FAMILIES))
    import gpu_rungs  # which takes its sizes from the families

    if "--bring-up" not in sys.argv:  # they would take longer than all others
        gpu_cases.FAMILIES = tuple([replace(one, ladder=()) for one in gpu_cases.FAMILIES])
    gpu_variants.VARIANTS = tuple(map(small, gpu_variants.VARIANTS))
    gpu_variants.SIZES = (gpu_variants.CHECK,)
    # What the device only runs, is compiled here, and computed by one core.
    gpu_jobs.LIMITS.update(check=600.0, measure=600.0)
    gpu_rungs.SECONDS, gpu_rungs.LIMIT = 600.0, 6000.0
    if any(argument == "--child" for argument in sys.argv):
        import gpu_work

        gpu_work._LONG, gpu_work._FILLED, gpu_work.PAIRS = 1e-9, 0, 3
        gpu_work.copy_rate = lambda: 1e12
        gpu_work.torch_here = torch_on_cpu if find_spec("torch") is not None else lambda: None
        broken_check(gpu_work)
    elif host.COMPILER is not None:
        os.environ[host.HEADERS] = host.headers()
    return gpu.main(Path(__file__))


def small(family: Any) -> Any:
    """It is measured where it is checked."""
    checks, ladder = (
        tuple([SMALL.get(size, size) for size in sizes]) for sizes in (family.checks, family.ladder)
    )
    sizes = checks[:1] if family.sizes else ()
    quick = sizes if family.quick else ()
    return replace(family, checks=checks, sizes=sizes, quick=quick, ladder=ladder)


def broken_check(gpu_work: Any) -> None:
    """Rungs break as the environment says."""
    wanted = os.environ.get("REHEARSAL_BREAKS", "").split()
    how = {number: what for what, _, number in (one.partition(":") for one in wanted)}
    check = gpu_work.check

    def breaking(job: Any) -> Any:
        match how.get(job.get("rung", "")):
            case "hang":
                time.sleep(1000)
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "wait" | "parity" as what:
                host.emit = planted(what, host.emit)
        return check({**job, "repeats": 1})

    gpu_work.check = breaking


def planted(what: str, emit: Any) -> Any:
    """`emit` with a mistake in each kernel with mbarriers.

    "wait": the first one waits for one arrival more than come; "parity": the last wait is for the other phase
    """
    is_late = what == "wait"
    call, place = ("mbarrier_init(", 0) if is_late else ("mbarrier_wait(", -1)

    def changed(number: Any) -> str:
        return f", {int(number[1]) + 1 if is_late else 1 - int(number[1])}u"

    def emit_wrongly(kernel: Any) -> Any:
        source = emit(kernel)
        lines = list(source.lines)
        numbers = [number for number, line in enumerate(lines) if call in line.text]
        if numbers:
            line = lines[numbers[place]]
            text = re.sub(r", (\d+)u", changed, line.text, count=1)
            lines[numbers[place]] = replace(line, text=text)
        return replace(source, lines=tuple(lines))

    return emit_wrongly


# --- torch -----------------------------------------------------------------------------------


def torch_on_cpu() -> Any:
    """torch, with the calls that are for GPUs replaced."""
    import torch

    @contextmanager
    def chosen(thing: Any) -> Any:
        yield thing

    def graph() -> Any:
        return SimpleNamespace(replay=lambda: None)

    cuda = SimpleNamespace(
        Stream=object, stream=chosen, synchronize=lambda: None, CUDAGraph=graph, graph=chosen
    )
    names = ("nn", "softmax", "addcmul", "backends", "set_float32_matmul_precision")
    kept = {name: getattr(torch, name) for name in names}
    return SimpleNamespace(cuda=cuda, from_dlpack=shared_with_torch, **kept)


def shared_with_torch(array: Any) -> Any:
    """The fake device's memory as a tensor."""
    import torch

    size = prod(array.shape) * array.dtype.itemsize
    memory = (ctypes.c_char * max(size, 1)).from_address(array.pointer)
    dtype = getattr(torch, str(array.dtype))
    return torch.frombuffer(memory, dtype=dtype, count=prod(array.shape)).reshape(array.shape)


if __name__ == "__main__":
    sys.exit(main())
