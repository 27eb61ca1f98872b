"""The first rungs of the ladder that check no kernel: the device, its streams, its neighbours."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from gpu_kernels import add
from gpu_work import measure, took, torch_here

import taskc as tc
from taskc import device, f32, spatial
from taskc.runtime import driver

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


class _Lent:
    """An array that is another library's, written in a stream of its own."""

    def __init__(self, array: Any, stream: Any) -> None:
        self._array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "stream": stream.number}


def side_streams(job: Job) -> Job:
    """Each call reads what was put into another stream just before, and waits for that."""
    plus, values, x = _added()
    theirs, ours = device.Stream(), device.Stream()
    size = max(1, 2_000_000 // job.get("smaller", 1))
    slow = device.array(np.zeros(size, np.float32))
    for turn in range(6):
        with theirs:
            for _ in range(8):
                slow.copy()  # so that what follows isn't there at once
            x.set(device.array(values + turn))
        with ours:
            y = plus(_Lent(x, theirs), _Lent(x, theirs))
            _same(y.numpy(), 2 * (values + turn))
        theirs.wait(ours)
    torch = torch_here()
    if torch is None:
        return {"said": "waited for; torch isn't installed"}
    side = torch.cuda.Stream()
    for turn in range(6):
        with torch.cuda.stream(side):
            there = torch.zeros(_COUNT, device="cuda")
            for _ in range(50):
                there += 1 + turn
            with ours:
                y = plus(there, there)
            del there  # its allocator waits for our stream
            torch.full((_COUNT,), -1.0, device="cuda")
        ours.synchronize()
        _same(y.cpu().numpy(), np.full(_COUNT, 100.0 * (1 + turn), np.float32))
    return {"said": "waited for, torch's too"}


def foreign_capture(job: Job) -> Job:
    """A capture that isn't ours keeps the arrays between its calls."""
    plus, values, x = _added()
    plus(plus(x, x), x)
    owner, stream = device.context(), device.Stream()
    api, modes = owner.api, owner.api.driver.CUstreamCaptureMode
    with owner.current():
        api.cuStreamBeginCapture(stream.number, modes.CU_STREAM_CAPTURE_MODE_GLOBAL)
        with stream:
            y = plus(plus(x, x), x)
        graph = api.cuStreamEndCapture(stream.number)
        executable = api.cuGraphInstantiate(graph, 0)
        others = [device.array(np.full(_COUNT, -1, np.float32)) for _ in range(8)]
        for more in (1, 2, 3):
            x.set(values + more)
            stream.wait(device.current_stream())
            api.cuGraphLaunch(executable, stream.number)
            stream.synchronize()
            _same(y.numpy(), 3 * (values + more))
        api.cuGraphExecDestroy(executable)
        api.cuGraphDestroy(graph)
    _same(others[0].numpy(), np.full(_COUNT, -1, np.float32))
    return {"said": "captured and replayed"}


def maps_in_graphs(job: Job) -> Job:
    """Nodes whose tensor maps are changed to other arrays, replay after replay."""
    from gpu_parts import moved_by_bulk_copies, moved_reference

    m, n = 150, 100
    moved = moved_by_bulk_copies(None, m, n)

    @tc.program(fuse=False)
    def program(x: f32[m, n], y: tc.out[f32[m, n]]):
        moved(moved(x), out=y)

    for turn in range(6):
        values = np.full((m, n), turn, np.float32) + np.arange(n, dtype=np.float32)
        x = device.array(values)
        _same(program(x).numpy(), moved_reference(moved_reference(values)))
    return {"said": "replayed on 6 pairs of arrays"}


def four_bits(job: Job) -> Job:
    from importlib import import_module

    module = import_module("18_four_bits")
    kernel = module.four_bits
    a, b, scales = kernel.example()
    packed = device.array(kernel.pack(b))
    found = kernel(device.array(a), packed, device.array(scales)).numpy()
    _same(found, a @ (b.astype(np.float32) * np.repeat(scales, 16, axis=0)))
    return {"said": "right"}


def onnx_model(job: Job) -> Job:
    """Two layers, a ReLU between them, and a softmax."""
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        return {"said": "onnx isn't installed"}
    random = np.random.default_rng(0)
    first, second = (random.standard_normal(s).astype(np.float32) for s in ((40, 72), (72, 24)))
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "second"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 40])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 24])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    x = random.standard_normal((5, 40)).astype(np.float32)
    found = np.asarray(tc.compile(model, "cuda")(x))
    scores = np.maximum(x.astype(np.float64) @ first, 0) @ second
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    error = np.abs(found - powers / powers.sum(axis=-1, keepdims=True)).max()
    return {"said": f"largest error {error:.1e}"} if error < 1e-4 else {"error": f"off by {error}"}


def _same(found: Any, expected: Any) -> None:
    count = int((found != expected).sum())
    if count:
        raise ValueError(f"{count} of {expected.size} are wrong")


WORKS = {
    "device": described_device, "carried": carried, "streams": streams, "assertions": assertions, "DLPack": dlpack,
    "graphs": graphs, "programs": programs, "side streams": side_streams, "foreign capture": foreign_capture,
    "maps in graphs": maps_in_graphs, "four bits": four_bits, "ONNX": onnx_model, "timing": measure,
}  # fmt: skip
