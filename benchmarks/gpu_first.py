"""What the first rungs of the ladder do that is no kernel's check: the device, its streams, its neighbours."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from gpu_kernels import add
from gpu_work import took, torch_here

import taskc as tc
from taskc import device, driver, f32, spatial

Job = dict[str, Any]
_COUNT = 100_000


def described_device(job: Job) -> Job:
    """The device, the driver, versions, and how long torch takes to be imported for the first time."""
    from report import described

    context = device.context()
    said = [
        f"{context.name} ({context.target}): {described(context)}",
        f"Python {sys.version.split()[0]}",
    ]
    for package in ("cuda-bindings", "nvidia-cuda-nvrtc", "numpy", "torch"):
        try:
            said.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            said.append(f"no {package}")
    if torch_here() is not None:
        said.append(f"torch was imported in {took['torch']:.1f} s")
    return {"said": ", ".join(said)}


def carried(job: Job) -> Job:
    """Whether its code lay in the cache. It doesn't where another version of taskc or NVRTC made it."""
    folder = Path(os.environ.get("TASKC_CACHE", "")) / "cuda"
    before = sorted(folder.glob("*"))
    driver.compile_ahead(add(None, 1000), device.context().target)
    was_there = bool(before) and sorted(folder.glob("*")) == before
    return {"said": "was there" if was_there else "was compiled only now"}


def _added() -> tuple[Any, Any, Any]:
    values = np.arange(_COUNT, dtype=np.float32)
    return add(None, _COUNT), values, device.array(values)


def streams(job: Job) -> Job:
    plus, values, x = _added()
    with device.Stream() as stream:
        start = stream.record()
        y = plus(plus(x, x), x)
        end = stream.record()
        found = y.numpy()
    _same(found, 3 * values)
    second = device.Stream()
    with second:
        second.wait(stream)
        _same(plus(y, x).numpy(), 4 * values)
    return {"said": f"in {end.since(start):.3f} ms"}


def graphs(job: Job) -> Job:
    plus, values, x = _added()
    graph = device.Graph(lambda: plus(plus(x, x), x))
    for more in (1, 2, 3):
        x.set(values + more)
        graph.replay()
        _same(graph.result.numpy(), 3 * (values + more))
    return {"said": "replayed"}


def programs(job: Job) -> Job:
    """One graph, replayed on other arrays each time, in two streams."""
    plus, values, _ = _added()

    @tc.program(fuse=False)
    def program(a: f32[_COUNT], b: f32[_COUNT], y: tc.out[f32[_COUNT]], z: tc.out[f32[_COUNT]]):
        plus(plus(plus(a, b), b), b, out=y)
        plus(plus(plus(b, a), a), a, out=z)

    second = device.Stream()
    for more in range(4):
        a, b = device.array(values + more), device.array(values * more)
        device.synchronize()
        for stream in (device.current_stream(), second):
            with stream:
                y, z = program(a, b)
                _same(y.numpy(), values + more + 3 * values * more)
                _same(z.numpy(), 3 * (values + more) + values * more)
    return {"said": "replayed"}


def assertions(job: Job) -> Job:
    @tc.kernel(workers=32)
    def checked(x: f32[32], y: tc.out[f32[32]]):
        for i in spatial(32):
            assert x[i] < 31, "too large"
            y[i] = x[i]

    x = device.array(np.arange(32, dtype=np.float32))
    y = checked(x)
    try:
        y.numpy()
    except tc.CheckError as error:
        if "too large" not in str(error):
            return {"error": f"an assertion fails with other words: {error}"}
    else:
        return {"error": "an assertion that doesn't hold raises nothing"}
    x.set(np.zeros(32, np.float32))
    _same(checked(x).numpy(), np.zeros(32, np.float32))
    return {"said": "raised"}


def dlpack(job: Job) -> Job:
    torch = torch_here()
    if torch is None:
        return {"said": "torch isn't installed"}
    plus, values, ours = _added()
    x = torch.arange(_COUNT, device="cuda", dtype=torch.float32)
    if device.from_dlpack(x).pointer != x.data_ptr():
        return {"error": "torch's memory was copied"}
    back = torch.from_dlpack(ours)
    if back.data_ptr() != ours.pointer:
        return {"error": "torch has copied memory of ours"}
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        total = x * 1
        for _ in range(20):
            total = torch.from_dlpack(plus(total, x)) * 1
    side.synchronize()
    _same(total.cpu().numpy(), 21 * values)
    return {"said": "shared"}


def _same(found: Any, expected: Any) -> None:
    count = int((found != expected).sum())
    if count:
        raise ValueError(f"{count} of {expected.size} are wrong")


WORKS = {
    "device": described_device, "carried": carried, "streams": streams, "assertions": assertions, "DLPack": dlpack,
    "graphs": graphs, "programs": programs,
}  # fmt: skip
