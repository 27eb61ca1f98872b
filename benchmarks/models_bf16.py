"""Transformers in bf16 against PyTorch's bf16, and against ONNX Runtime in f32.

    python benchmarks/models_bf16.py [--only NAME] [--tokens N] [--layers N] [--quick] [--json FILE]

PyTorch reads no ONNX models: so a transformer of the size of each is written here twice, as exporters write ONNX, and
as functions of PyTorch in inference mode, with the same weights, which are noise. Embeddings are left out. PyTorch has
weights and activations in bf16; here operands of products with weights are, by `precision="bf16"`. How far each is off
from ONNX Runtime's f32 stands beside its time: the largest difference over the standard deviation.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from report import Row, finish, record

THREADS = (1, 2)
CALM = 0.05  # seconds, in which the other side's threads stop waiting for work
EPSILON = 1e-5

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """of_next  each token sees those before it alone, and in the end there is a score for each word of a vocabulary."""

    layers: int
    features: int
    heads: int
    hidden: int
    of_next: int = 0


SIZES = {
    "bert-base": Size(12, 768, 12, 3072),
    "gpt-2": Size(12, 768, 12, 3072, 50_257),
    "minilm": Size(6, 384, 12, 1536),
}


def weights_of(size: Size) -> dict[str, Array]:
    """Matrices as they are multiplied from the right, by their names."""
    random = np.random.default_rng(0)
    made: dict[str, Array] = {}
    wide, deep = size.features, size.hidden
    square = (wide, wide)
    shapes = dict.fromkeys("qkvo", square) | {"up": (wide, deep), "down": (deep, wide)}
    for layer in range(size.layers):
        for name, (rows, columns) in shapes.items():
            spread = np.float32(rows**-0.5)
            made[f"{name}{layer}"] = random.standard_normal((rows, columns), np.float32) * spread
            made[f"{name}{layer}_bias"] = random.standard_normal(columns, np.float32) * spread
        for norm in ("first", "second"):
            made[f"{norm}{layer}"] = np.ones(wide, np.float32)
            made[f"{norm}{layer}_bias"] = np.zeros(wide, np.float32)
    if size.of_next:
        shape = wide, size.of_next
        made["words"] = random.standard_normal(shape, np.float32) * np.float32(wide**-0.5)
    return made


def onnx_model(size: Size, tokens: int, weights: dict[str, Array]) -> bytes:
    """As exporters write it: attention by its products, and layers with their residuals."""
    nodes: list[Any] = []
    heads, wide = size.heads, size.features
    constants = dict(weights)
    constants["split"] = np.array([1, tokens, heads, wide // heads], np.int64)
    constants["joined"] = np.array([1, tokens, wide], np.int64)
    constants["scale"] = np.array((wide // heads) ** -0.5, np.float32)
    if size.of_next:
        constants["mask"] = np.triu(np.full((tokens, tokens), -1e9, np.float32), 1)

    def node(operator: str, *inputs: str, **attributes: Any) -> str:
        made = f"t{len(nodes)}"
        nodes.append(helper.make_node(operator, [*inputs], [made], **attributes))
        return made

    def linear(x: str, name: str) -> str:
        return node("Add", node("MatMul", x, name), f"{name}_bias")

    def norm(x: str, name: str) -> str:
        return node("LayerNormalization", x, name, f"{name}_bias", epsilon=EPSILON)

    def attention(x: str, layer: int) -> str:
        q, k, v = (node("Reshape", linear(x, f"{it}{layer}"), "split") for it in "qkv")
        q, v = (node("Transpose", it, perm=[0, 2, 1, 3]) for it in (q, v))
        scores = node("Mul", node("MatMul", q, node("Transpose", k, perm=[0, 2, 3, 1])), "scale")
        if size.of_next:
            scores = node("Add", scores, "mask")
        made = node("MatMul", node("Softmax", scores, axis=-1), v)
        made = node("Reshape", node("Transpose", made, perm=[0, 2, 1, 3]), "joined")
        return linear(made, f"o{layer}")

    def wide_layer(x: str, layer: int) -> str:
        return linear(node("Gelu", linear(x, f"up{layer}")), f"down{layer}")

    y = _layers(size, "x", attention, wide_layer, norm, lambda a, b: node("Add", a, b))
    if size.of_next:
        y = node("MatMul", y, "words")
    made = helper.make_graph(
        nodes, "transformer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, tokens, wide])],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20)]
    serialized: bytes = helper.make_model(
        made, opset_imports=opsets, ir_version=10
    ).SerializeToString()
    return serialized


def _layers(
    size: Size, x: Any, attention: Any, wide_layer: Any, norm: Any, add: Callable[[Any, Any], Any]
) -> Any:
    """Norms are behind the sums; or before the layers, where the next word is looked for."""
    for layer in range(size.layers):
        for number, inner in (("first", attention), ("second", wide_layer)):
            if size.of_next:
                x = add(x, inner(norm(x, f"{number}{layer}"), layer))
            else:
                x = norm(add(x, inner(x, layer)), f"{number}{layer}")
    return x


def torch_model(size: Size, tokens: int, weights: dict[str, Array]) -> Callable[[Array], Array]:
    import torch
    from torch.nn import functional

    known = {
        name: torch.from_numpy(array).to(torch.bfloat16).T.contiguous()
        if array.ndim == 2
        else torch.from_numpy(array).to(torch.bfloat16)
        for name, array in weights.items()
    }
    heads, wide = size.heads, size.features

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, known[name], known[f"{name}_bias"])

    def norm(x: Any, name: str) -> Any:
        return functional.layer_norm(x, (wide,), known[name], known[f"{name}_bias"], EPSILON)

    def attention(x: Any, layer: int) -> Any:
        shape = 1, tokens, heads, wide // heads
        q, k, v = (linear(x, f"{it}{layer}").view(shape).transpose(1, 2) for it in "qkv")
        made = functional.scaled_dot_product_attention(q, k, v, is_causal=size.of_next > 0)
        return linear(made.transpose(1, 2).reshape(1, tokens, wide), f"o{layer}")

    def wide_layer(x: Any, layer: int) -> Any:
        return linear(functional.gelu(linear(x, f"up{layer}")), f"down{layer}")

    def run(x: Array) -> Array:
        with torch.inference_mode():
            given = torch.from_numpy(x).to(torch.bfloat16)
            y = _layers(size, given, attention, wide_layer, norm, torch.add)
            if size.of_next:
                y = functional.linear(y, known["words"])
            made: Array = y.float().numpy()
            return made

    return run


def measure(name: str, layers: int, tokens: int, threads: int, budget: float) -> dict[str, Any]:
    """Pairs with each of the two, and how far both are off."""
    import taskc as tc
    from taskc.commands.verify import error_of
    from taskc.onnx.partitions import RuntimeSession
    from taskc.tune.timing import Probe, pairs

    size = SIZES[name]
    size = replace(size, layers=min(size.layers, layers or size.layers))
    weights = weights_of(size)
    x = np.random.default_rng(1).standard_normal((1, tokens, size.features), np.float32)
    serialized = onnx_model(size, tokens, weights)
    model = tc.compile(serialized, precision="bf16")
    (made,) = model.run(None, {"x": x})
    peers: dict[str, Callable[[], Any]] = {}
    session = RuntimeSession(serialized, threads)
    (expected,) = session.run({"x": x})
    peers["onnxruntime f32"] = lambda: session.run({"x": x})
    found: dict[str, Any] = {"off": error_of(made, expected)}
    try:
        import torch
    except ImportError:
        print("PyTorch isn't installed: left out", file=sys.stderr)
    else:
        torch.set_num_threads(threads)
        theirs = torch_model(size, tokens, weights)
        found["torch is off"] = error_of(theirs(x), expected)
        peers["torch bf16"] = lambda: theirs(x)
    del weights, serialized
    probe = Probe(threads)
    for peer, call in peers.items():
        timed = pairs(
            lambda: model.run(None, {"x": x}), call, probe,
            budget=budget, calm=CALM if threads > 1 else 0.0,
        )  # fmt: skip
        found[peer] = asdict(timed)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", metavar="TEXT", default="", help="models of such names")
    parser.add_argument("--tokens", metavar="N", type=int, default=128)
    parser.add_argument("--layers", metavar="N", type=int, default=0, help="so many, and no more")
    parser.add_argument("--quick", action="store_true", help="one thread, and fewer pairs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(measure(**json.loads(options.job))))
        return
    rows = []
    for threads in THREADS[: 1 if options.quick else None]:
        for name in (it for it in SIZES if options.only in it):
            job = {"name": name, "layers": options.layers, "tokens": options.tokens}
            job["threads"] = threads
            job["budget"] = 0.5 if options.quick else 5.0
            done = subprocess.run(
                [sys.executable, __file__, "--job", json.dumps(job)],
                env=os.environ | {"TASKC_THREADS": str(threads)},
                stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            found = json.loads(done.stdout.splitlines()[-1])
            off = {key: found.pop(key) for key in ("off", "torch is off") if key in found}
            print(
                f"{name}, {threads} thread(s):", ", ".join(f"{k} {v:.1e}" for k, v in off.items())
            )
            for peer, timed in found.items():
                rows.append(
                    Row(
                        f"bf16, {options.tokens} tokens",
                        name,
                        threads,
                        timed["ours"],
                        peer,
                        timed["theirs"],
                        timed["ratio"],
                        quartiles=tuple(timed["quartiles"]),
                        kept=timed["kept"],
                        discarded=timed["discarded"],
                    )
                )
    finish(rows, None)
    record(rows, options.json)


if __name__ == "__main__":
    main()
