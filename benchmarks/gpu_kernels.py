"""The kernels that `gpu.py` checks and measures, what they compute by NumPy and by torch, and how near they have to be.

Nothing here loads torch, llvmlite or onnx; what is for torch is given it.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from math import prod, sqrt
from typing import Any

import numpy as np

import taskc as tc
from taskc import bf16, f16, f32, repeat, spatial

Size = tuple[Any, ...]


# --- matrix products -------------------------------------------------------------------------


def library(module: str, function: str, /, *arguments: Any, **keywords: Any) -> Any:
    return getattr(import_module(f"taskc.kernels.{module}"), function)(*arguments, **keywords)


def example(file: str, function: str, /, *arguments: Any, **keywords: Any) -> Any:
    """A kernel of an example: `examples` has to be a folder of modules that can be imported."""
    return getattr(import_module(file), function)(*arguments, **keywords)


def matmul(dtype: Any, result: Any, machine: Any, m: int, n: int, k: int) -> Any:
    return library(
        "matmul", "matmul", m, n, k, dtype=dtype, total=f32, result=result, machine=machine
    )


def product(a: Any, b: Any) -> Any:
    return a @ b


def with_residual(machine: Any, m: int, n: int, k: int) -> Any:
    return library("matmul", "matmul", m, n, k, dtype=bf16, residual=True, machine=machine)


def residual_reference(a: Any, b: Any, residual: Any) -> Any:
    return a @ b + residual


def product_work(size: Size) -> float:
    return 2.0 * prod(size[:3])


def of_bf16(size: Size) -> tuple[float, float]:
    """One rounding to 8 bits; and tensor cores cut off more of sums than f32 has to, in every step."""
    return 2.0**-8, size[2] * 2.0**-18


def of_tf32(size: Size) -> tuple[float, float]:
    """Inputs are rounded before, so products are exact; sums are cut off, and always the same way."""
    return 2.0**-20, size[2] * 2.0**-17


def of_f32(size: Size) -> tuple[float, float]:
    return 2.0**-20, size[2] * 2.0**-21


# --- rows ------------------------------------------------------------------------------------


def softmax(machine: Any, m: int, n: int) -> Any:
    return library("rows", "softmax", m, n, dtype=f32, machine=machine)


def layer_norm(machine: Any, m: int, n: int) -> Any:
    return library("rows", "layer_norm", m, n, dtype=f32, machine=machine)


def softmax_reference(x: Any) -> Any:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def layer_norm_reference(x: Any, scale: Any, shift: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * scale + shift


def torch_layer_norm(torch: Any, x: Any, scale: Any, shift: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], scale, shift)


def of_rows(size: Size) -> tuple[float, float]:
    return 2.0**-18, size[1] * 2.0**-24


# --- attention and convolution ---------------------------------------------------------------


def attention(
    causal: bool,
    machine: Any,
    batches: int,
    heads: int,
    groups: int,
    length: int,
    keys: int,
    features: int,
    **changes: Any,
) -> Any:
    """By the plan that `choose` takes; or by the first with a producer, if there is one, with these changes."""
    problem = library(
        "attention.problem", "problem_of", batches, heads, length, keys, features,
        kv_heads=groups, value_features=None, causal=causal, offset=None, mask=None, scale=None, dtype=bf16,
    )  # fmt: skip
    plan = None
    if changes:
        plans = library("attention.plan", "candidates", problem, machine)
        producing = next((plan for plan in plans if plan.specialize and not plan.turns), None)
        plan = producing and replace(producing, **changes)
    return library("attention", "build", problem, plan, machine)


def attention_reference(causal: bool, q: Any, k: Any, v: Any) -> Any:
    k, v = (np.repeat(one, q.shape[1] // one.shape[1], axis=1) for one in (k, v))
    scores = q @ k.swapaxes(-1, -2) / sqrt(q.shape[-1])
    if causal:
        rows, columns = np.indices(scores.shape[-2:])
        last = rows + scores.shape[-1] - scores.shape[-2]  # the last query sees all keys
        scores = np.where(columns <= last, scores, -np.inf)
    return softmax_reference(scores) @ v


def torch_attention(causal: bool, torch: Any, q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
    )


def attention_work(causal: bool, size: Size) -> float:
    batches, heads, _, length, keys, features = size
    return 4.0 * batches * heads * length * keys * features / (2 if causal else 1)


def of_attention(size: Size) -> tuple[float, float]:
    """Powers and results are rounded to 8 bits; results are means of numbers near 1."""
    return 2.0**-7, 2.0**-7


def convolution(machine: Any, *size: int) -> Any:
    """NHWC, of (batch, channels, height, width, filters, kernel, stride), padded by kernel // 2."""
    batch, channels, height, width, filters, kernel, stride = size
    return library(
        "convolution", "convolution", batch, height, width, channels, filters,
        size=kernel, stride=stride, padding=kernel // 2, dtype=f16, machine=machine,
    )  # fmt: skip


def convolution_reference(x: Any, w: Any, *, stride: int) -> Any:
    kernel = w.shape[1]
    pad = kernel // 2
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(1, 2))
    return np.einsum("byxcij,oijc->byxo", windows[:, ::stride, ::stride], w, optimize=True)


def torch_convolution(stride: int, torch: Any, x: Any, w: Any) -> Any:
    """The same numbers in the same order, which torch calls channels_last."""
    x, w = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
    made = torch.nn.functional.conv2d(x, w, stride=stride, padding=w.shape[-1] // 2)
    return made.permute(0, 2, 3, 1)


def convolution_work(size: Size) -> float:
    batch, channels, height, width, filters, kernel, stride = size
    return 2.0 * batch * channels * kernel**2 * filters * -(-height // stride) * -(-width // stride)


# --- the rest --------------------------------------------------------------------------------


def vector(dtype: Any, transposed: bool, machine: Any, n: int, k: int) -> Any:
    """A row times a matrix, whose rows, or whose columns if transposed, are its outputs."""
    return library(
        "matmul", "matmul", 1, n, k, dtype=dtype, total=f32, result=dtype,
        transpose_b=transposed, machine=machine,
    )  # fmt: skip


def vector_reference(transposed: bool, a: Any, b: Any) -> Any:
    return a @ (b.T if transposed else b)


def of_vector(size: Size) -> tuple[float, float]:
    """The same, of sums in f32."""
    return 2.0**-8, size[1] * 2.0**-21


def add(machine: Any, n: int) -> Any:
    return example("01_vector_add", "make_vector_add", n)


def transposed(machine: Any, m: int, n: int) -> Any:
    return library("transpose", "transpose", (m, n), dtype=f32, machine=machine)


def swapped(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def scaled_and_shifted(machine: Any, m: int, n: int) -> Any:
    """A computation of a matrix, a column and a row. Operands that broadcast are read with strides of 0."""
    from taskc.programs.schedule import kernel_of

    program = tc.trace(
        "scaled_and_shifted",
        {"x": f32[m, n], "scale": f32[m, 1], "shift": f32[n]},
        lambda x, scale, shift: tc.compute(
            (m, n), lambda i, j: tc.fma(x[i, j], scale[i, 0], shift[j])
        ),
    )
    (call,) = program.ir.calls
    return tc.KernelDefinition.of(kernel_of(call.callee, machine))


def exact(size: Size) -> tuple[float, float]:
    return 0.0, 0.0


def one_rounding(size: Size) -> tuple[float, float]:
    return 2.0**-23, 2.0**-23


def summed(machine: Any, m: int, n: int) -> Any:
    """A block sums each row, and when all have, the first block adds the sums: in one launch."""
    workers, ahead = 512, 8

    @tc.function
    def fold(parts, w):
        for half in tc.static((256, 128, 64, 32, 16, 8, 4, 2, 1)):
            tc.sync()
            if w < half:
                parts[w] += parts[w + half]

    @tc.cuda.kernel(workers=workers, target="sm_80")
    def summed(x: f32[m, n], sums: tc.inout[f32[m]], y: tc.out[f32[1]]):
        for row in tc.tiles(m, by=1):
            parts = tc.shared(f32[workers])
            w = tc.worker()
            mine = tc.local(f32[ahead], 0)
            for start in range(0, n, ahead * workers):
                for i in tc.static(range(ahead)):
                    if start + i * workers + w < n:
                        mine[i] += x[row, start + i * workers + w]
            for i in tc.static(range(1, ahead)):
                mine[0] += mine[i]
            parts[w] = mine[0]
            fold(parts, w)
            if w == 0:
                sums[row] = parts[0]
            tc.cuda.grid_sync()
            if row == 0:
                parts[w] = 0
                if w < m:
                    parts[w] = sums[w]
                fold(parts, w)
                if w == 0:
                    y[0] = parts[0]

    return summed


def sum_reference(x: Any, sums: Any) -> Any:
    return x.sum().reshape(1)


def of_sum(size: Size) -> tuple[float, float]:
    return 2.0**-20, sqrt(prod(size)) * 2.0**-14


def fma_matmul(machine: Any, m: int, n: int, k: int) -> Any:
    return example("03_matmul", "make_pipelined", m, n, k, bk=16, stages=3)


def older_matmul(machine: Any, m: int, n: int, k: int) -> Any:
    """By mma.sync, which this processor may have better ones than."""
    return matmul(f16, f16, tc.machine("sm_80"), m, n, k)


def every_third(machine: Any, n: int) -> Any:
    """Reads three times the sectors that its numbers would fill."""

    @tc.kernel(workers=128)
    def every_third(x: f32[3 * n], y: tc.out[f32[n]]):
        for start in tc.tiles(n, by=128):
            for i in spatial(128):
                if start + i < n:
                    y[start + i] = x[3 * (start + i)]

    return every_third


def unpadded(machine: Any, m: int, n: int) -> Any:
    """A transpose through rows of 32 words: a column of them lies in one bank."""
    own, layout = repeat(4, 1) * spatial(8, 32), repeat(32, 32)

    @tc.kernel(workers=own.workers)
    def unpadded(x: f32[m, n], y: tc.out[f32[n, m]]):
        for row, col in tc.tiles((m, n), by=(32, 32)):
            block = tc.shared(f32[32, 32].laid(layout))
            for i, j in own:
                if row + i < m and col + j < n:
                    block[i, j] = x[row + i, col + j]
            for j, i in own:
                if row + i < m and col + j < n:
                    y[col + j, row + i] = block[i, j]

    return unpadded
