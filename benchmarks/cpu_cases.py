"""The cases of the CPU benchmark besides products: softmax, layer norm, gelu, transposition, attention; and
the peers.

Each function gives the same work for us and for every peer that is installed, on the same arrays. Peers
write into memory that they are given, where they can. Results are compared before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

import taskc as tc
from taskc import DType, f32, f64
from taskc.ir.types import from_numpy
from taskc.kernels.attention import attention
from taskc.kernels.convolution import convolution
from taskc.kernels.reductions import reduction
from taskc.kernels.rows import layer_norm, softmax
from taskc.kernels.transpose import transpose

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """operations: of floats, where their rate is the limit; copy: moves as many bytes, where memory is;
    compiled_ms: of processor time that our kernel took to compile; slower: the peak of f32 over that of its type."""

    benchmark: str
    case: str
    ours: Call
    peers: dict[str, Call]
    operations: float | None = None
    copy: Call | None = None
    compiled_ms: float | None = None
    slower: float = 1.0


def memory_cases(threads: int, quick: bool) -> Iterator[Case]:
    for m, n in ((4096, 1024),) if quick else ((4096, 1024), (4096, 768), (512, 4099)):
        yield softmax_case(threads, m, n)
        yield layer_norm_case(threads, m, n)
    for size in (1 << 20,) if quick else (1 << 20, 1 << 24):
        yield gelu_case(threads, size)
    for m, n in ((1024, 1024),) if quick else ((1024, 1024), (4096, 4096), (4095, 4097)):
        yield transpose_case(threads, m, n)


def softmax_case(threads: int, m: int, n: int, dtype: DType = f32) -> Case:
    x, y = _arrays(m, n, dtype=dtype)
    kernel = softmax(m, n, dtype=dtype)
    kernel(x, out=y)
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(y, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)
    peers: dict[str, Call] = {}
    if torch := torch_on(threads):
        a, b = torch.from_numpy(x), torch.from_numpy(np.empty_like(x))
        peers["torch"] = lambda: torch.softmax(a, 1, out=b)
    if run := session_of("Softmax", [x], x.shape, threads, result=x.dtype, axis=-1):
        peers["onnxruntime"] = run
    return _case(f"softmax{_of(dtype)}", f"{m}x{n}", lambda: kernel(x, out=y), peers, x)


def layer_norm_case(threads: int, m: int, n: int, dtype: DType = f32) -> Case:
    x, y = _arrays(m, n, dtype=dtype)
    scale, shift = _arrays(2, n, dtype=dtype)[0]
    kernel = layer_norm(m, n, dtype=dtype)
    kernel(x, scale, shift, out=y)
    normal = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, normal * scale + shift, rtol=1e-4, atol=1e-4)
    peers: dict[str, Call] = {}
    if torch := torch_on(threads):
        a, w, b = (torch.from_numpy(array) for array in (x, scale, shift))
        run_torch = torch.ops.aten.native_layer_norm.out
        made = zip(("out0", "out1", "out2"), ((m, n), (m, 1), (m, 1)), strict=True)
        results = {name: torch.empty(shape, dtype=a.dtype) for name, shape in made}
        peers["torch"] = lambda: run_torch(a, (n,), w, b, 1e-5, **results)
    operands, settings = [x, scale, shift], {"axis": -1, "epsilon": 1e-5}
    if run := session_of(
        "LayerNormalization", operands, x.shape, threads, result=x.dtype, **settings
    ):
        peers["onnxruntime"] = run
    return _case(
        f"layer_norm{_of(dtype)}", f"{m}x{n}", lambda: kernel(x, scale, shift, out=y), peers, x
    )


def gelu_case(threads: int, size: int) -> Case:
    x, y = _arrays(size)
    kernel = _computed(x, tc.gelu)
    kernel(x, out=y)
    peers: dict[str, Call] = {}
    if torch := torch_on(threads):
        a, b = torch.from_numpy(x), torch.empty(size)
        peers["torch"] = lambda: torch._C._nn.gelu(a, out=b)
        peers["torch"]()
        np.testing.assert_allclose(y, b.numpy(), rtol=1e-4, atol=1e-5)
    if run := session_of("Gelu", [x], x.shape, threads):
        peers["onnxruntime"] = run
    return _case("gelu", f"{size}", lambda: kernel(x, out=y), peers, x)


def transpose_case(threads: int, m: int, n: int) -> Case:
    x = _arrays(m, n)[0]
    y, z = np.empty((n, m), np.float32), np.empty((n, m), np.float32)
    kernel = transpose((m, n))
    kernel(x, out=y)
    turned = x.T
    np.testing.assert_array_equal(y, turned)
    peers: dict[str, Call] = {"numpy": lambda: np.copyto(z, turned)}
    if torch := torch_on(threads):
        a, b = torch.from_numpy(x).t(), torch.empty(n, m)
        peers["torch"] = lambda: b.copy_(a)
    if run := session_of("Transpose", [x], (n, m), threads, perm=[1, 0]):
        peers["onnxruntime"] = run
    return _case("transpose", f"{m}x{n}", lambda: kernel(x, out=y), peers, x)


def attention_cases(threads: int, quick: bool) -> Iterator[Case]:
    few = ((1, 12, 128, 128, 64, False), (1, 12, 1, 1024, 64, True))
    more = (
        (1, 12, 512, 512, 64, False),
        (1, 12, 1024, 1024, 64, True),
        (1, 12, 64, 4096, 64, False),
    )
    for shape in few if quick else few + more:
        yield attention_case(threads, *shape)


def attention_case(
    threads: int, batch: int, heads: int, length: int, keys: int, features: int, causal: bool
) -> Case:
    """Causal, or decoding with a cache, where one query sees all keys."""
    random = np.random.default_rng(0)
    shape = batch, heads, length, features
    q = random.standard_normal(shape, np.float32)
    k, v = random.standard_normal((2, batch, heads, keys, features), np.float32)
    y = np.empty(shape, np.float32)
    kernel = attention(batch, heads, length, keys, features, causal=causal)
    kernel(q, k, v, out=y)
    peers: dict[str, Call] = {}
    masked = causal and length > 1
    if torch := torch_on(threads):
        a, b, c = (torch.from_numpy(x) for x in (q, k, v))
        run_torch = torch.nn.functional.scaled_dot_product_attention
        peers["torch"] = lambda: run_torch(a, b, c, is_causal=masked)
        np.testing.assert_allclose(y, run_torch(a, b, c, is_causal=masked), atol=1e-5)
    if run := session_of(
        "Attention", [q, k, v], shape, threads, inputs=3, opset=23, is_causal=int(masked)
    ):
        peers["onnxruntime"] = run
    # The other operator of ONNX Runtime has an order of its own, and is faster for long sequences.
    turned = [x.swapaxes(1, 2).reshape(batch, -1, heads * features) for x in (q, k, v)]
    settings = {"num_heads": heads, "unidirectional": int(masked)}
    if run := session_of(
        "MultiHeadAttention", turned, turned[0].shape, threads,
        inputs=3, domain="com.microsoft", **settings,
    ):  # fmt: skip
        peers["onnxruntime, fused"] = run
    seen = min(keys, keys - length + (length + 1) / 2) if causal else keys  # by a query, on average
    return Case(
        "attention" if not masked else "attention, causal",
        "x".join(map(str, (batch, heads, length, keys, features))),
        lambda: kernel(q, k, v, out=y),
        peers,
        operations=4.0 * batch * heads * length * seen * features,
    )


def f64_cases(threads: int, quick: bool) -> Iterator[Case]:
    """The cases of f64 besides products."""
    for m, n in ((1024, 1024),) if quick else ((4096, 1024), (1024, 768), (512, 4099), (1000, 37)):
        yield softmax_case(threads, m, n, f64)
        yield layer_norm_case(threads, m, n, f64)
        for axis in (0, 1):
            yield sum_case(threads, m, n, axis)
    few = ((1, 28, 64, 64, 3, 1), (1, 28, 128, 256, 1, 1))
    more = (
        (1, 56, 64, 64, 3, 1),
        (1, 14, 256, 256, 3, 1),
        (1, 57, 3, 32, 7, 2),
        (4, 7, 512, 512, 1, 1),
    )
    for shape in few if quick else few + more:
        yield convolution_case(threads, *shape)


def sum_case(threads: int, m: int, n: int, axis: int) -> Case:
    """Of f64; NumPy's is the peer, too."""
    x, _ = _arrays(m, n, dtype=f64)
    y, z = np.empty(x.sum(axis).shape), np.empty(x.sum(axis).shape)
    kernel = reduction("sum", (m, n), (axis,), dtype=f64)
    kernel(x, out=y)
    np.testing.assert_allclose(y, x.sum(axis), rtol=1e-11, atol=1e-10)
    peers: dict[str, Call] = {"numpy": lambda: x.sum(axis, out=z)}
    if torch := torch_on(threads):
        a, b = torch.from_numpy(x), torch.from_numpy(np.empty_like(y))
        peers["torch"] = lambda: torch.sum(a, axis, out=b)
    axes = np.array([axis], np.int64)
    if run := session_of("ReduceSum", [x, axes], y.shape, threads, result=x.dtype, keepdims=0):
        peers["onnxruntime"] = run
    return _case(f"sum over axis {axis} f64", f"{m}x{n}", lambda: kernel(x, out=y), peers, x)


def convolution_case(
    threads: int, images: int, side: int, channels: int, features: int, size: int, stride: int
) -> Case:
    """Of f64, NCHW, with constant filters on both sides. ONNX Runtime has none."""
    pad, random = size // 2, np.random.default_rng(0)
    x = random.standard_normal((images, channels, side, side))
    w = random.standard_normal((features, channels, size, size))
    options = {"size": size, "stride": stride, "padding": pad, "order": "NCHW", "filters": "OIHW"}
    kernel = convolution(images, side, side, channels, features, dtype=f64, packed=True, **options)
    filters = kernel.pack(w)
    y = kernel(x, filters)
    peers: dict[str, Call] = {}
    if torch := torch_on(threads):
        a, b, run_torch = torch.from_numpy(x), torch.from_numpy(w), torch.nn.functional.conv2d
        peers["torch"] = lambda: run_torch(a, b, stride=stride, padding=pad)
        np.testing.assert_allclose(y, peers["torch"](), rtol=1e-9, atol=1e-9)
    return Case(
        "convolution f64",
        "x".join(map(str, (images, side, channels, features, size, stride))),
        lambda: kernel(x, filters, out=y),
        peers,
        operations=2.0 * y.size * channels * size * size,
        slower=2.0,
    )


def _of(dtype: DType) -> str:
    return "" if dtype is f32 else f" {dtype}"


def _arrays(*shape: int, dtype: DType = f32) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal(shape, dtype.numpy)
    return x, np.empty_like(x)


def _case(benchmark: str, case: str, ours: Call, peers: dict[str, Call], x: np.ndarray) -> Case:
    """One that moves as much as a copy of x. That is our own: it is on as many threads."""
    a, b = x.reshape(-1), np.empty(x.size, x.dtype)
    kernel = _computed(a, _same)
    return Case(benchmark, case, ours, peers, copy=lambda: kernel(a, out=b))


@tc.function
def _same(x: Any) -> Any:
    return x


def _computed(x: np.ndarray, function: Any) -> Any:
    """A program that computes a function of each element of what is like x."""
    return tc.trace(
        "computed",
        {"x": from_numpy(x.dtype)[x.shape]},
        lambda x: tc.compute(x.shape, lambda i: function(x[i])),
    )


def torch_on(threads: int) -> Any:
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return torch


def session_of(
    operator: str,
    arrays: list[np.ndarray],
    shape: tuple[int, ...],
    threads: int,
    *,
    inputs: int = 1,
    domain: str = "",
    opset: int = 20,
    result: Any = np.float32,
    **attributes: Any,
) -> Call | None:
    """One operator in ONNX Runtime, with all optimizations and bound memory; operands but the first ones
    are constants."""
    if not onnx_found():
        return None
    import onnx

    helper = onnx.helper
    kind = helper.np_dtype_to_tensor_dtype
    names = list("abcdefghi"[: len(arrays)])
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], domain=domain, **attributes)],
        operator,
        [
            helper.make_tensor_value_info(name, kind(a.dtype), a.shape)
            for name, a in zip(names[:inputs], arrays, strict=False)
        ],
        [helper.make_tensor_value_info("y", kind(np.dtype(result)), None)],
        [
            onnx.numpy_helper.from_array(b, name)
            for name, b in zip(names[inputs:], arrays[inputs:], strict=True)
        ],
    )
    imports = [("", opset), ("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*pair) for pair in imports])
    model.ir_version = 10
    given = dict(zip(names[:inputs], arrays, strict=False))
    return bound(session_on(threads, model), given, shape, result)


def onnx_found() -> bool:
    return all(find_spec(package) for package in ("onnx", "onnxruntime"))


def session_on(threads: int, model: Any, profile: str | None = None) -> Any:
    """With all optimizations. profile: how the name of a file begins that it is to write."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def bound(
    session: Any, given: dict[str, np.ndarray], shape: tuple[int, ...], dtype: Any = np.float32
) -> Call:
    """A call that writes y into memory of its own, and returns that first."""
    result = np.empty(shape, dtype)
    binding = session.io_binding()
    for name, array in given.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y", "cpu", 0, dtype, shape, result.ctypes.data)
    kept = result, given  # the binding has only their addresses

    def run() -> object:
        session.run_with_iobinding(binding)
        return kept

    return run
