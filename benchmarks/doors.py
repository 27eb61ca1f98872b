"""Models through `torch.compile(backend="taskc")`, against eager calls and Inductor; each error is against eager's.

    python benchmarks/doors.py [--quick] [--json FILE]

The benchmark "first call" has the time until the first result, tracing and compilation included. Inductor needs a C++
compiler. Weights are random. Models of torchvision and transformers are left out, by name, where these are absent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from processes import Call, Cases, compare

_LARGEST_ERROR = 1e-4  # relative to the largest element

Maker = Callable[
    [Any], tuple[Any, tuple[Any, ...]]
]  # from the module torch to a model and its inputs


def perceptron(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    nn = torch.nn
    layers = [nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, 10)), (torch.randn(32, 256),)


def encoder(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    layer = torch.nn.TransformerEncoderLayer(
        256, 8, 1024, activation="gelu", batch_first=True, norm_first=True
    )
    return torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), (
        torch.randn(1, 128, 256),
    )


def vision(name: str, extent: int = 224) -> Maker:
    def make(torch: Any) -> tuple[Any, tuple[Any, ...]]:
        import torchvision

        return getattr(torchvision.models, name)(weights=None), (torch.randn(1, 3, extent, extent),)

    return make


def text(name: str, **options: Any) -> Maker:
    def make(torch: Any) -> tuple[Any, tuple[Any, ...]]:
        import transformers

        config = getattr(transformers, f"{name}Config")(vocab_size=8000, **options)
        model = getattr(transformers, f"{name}Model")(config)
        ids = torch.randint(0, 8000, (1, 64))
        return _First(torch, model), (ids,)

    return make


def _First(torch: Any, model: Any) -> Any:  # noqa: N802 (a class of a module that is imported late)
    """The model's first output, without its cache."""

    class First(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return self.model(ids, return_dict=False)[0]

    return First()


MODELS: dict[str, Maker] = {
    "perceptron": perceptron,
    "encoder": encoder,
    "resnet18": vision("resnet18"),
    "mobilenet_v3_small": vision("mobilenet_v3_small"),
    "efficientnet_b0": vision("efficientnet_b0"),
    "resnet50": vision("resnet50"),
    "convnext_tiny": vision("convnext_tiny"),
    "vit_b_16": vision("vit_b_16"),
    "swin_t": vision("swin_t"),
    "bert": text("Bert", num_hidden_layers=4),
    "gpt2": text("GPT2", n_layer=4, use_cache=False),
    "llama": text(
        "Llama", hidden_size=512, intermediate_size=1376, num_hidden_layers=4,
        num_attention_heads=8, use_cache=False,
    ),
}  # fmt: skip
_QUICK = ("perceptron", "encoder", "resnet18")


def checked(torch: Any, name: str, ours: Call, eager: Call) -> None:
    """Raise an error where a result isn't eager's."""
    result, expected = ours(), eager()
    error = float((result - expected).abs().max() / expected.abs().max())  # type: ignore[attr-defined]
    if not error < _LARGEST_ERROR:
        raise AssertionError(f"{name}: an error of {error:.2g}")


def models(torch: Any, names: Any) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    for name in names:
        torch.manual_seed(0)
        try:
            model, inputs = MODELS[name](torch)
        except ImportError as error:
            print(f"{name}: left out, {error}")
            continue
        yield name, model.eval(), inputs


def cases(threads: int, quick: bool) -> Cases:
    import torch

    from taskc.torch.dynamo import backend

    torch.set_num_threads(threads)
    with torch.inference_mode(False), torch.no_grad():
        for name, model, inputs in models(torch, _QUICK if quick else MODELS):
            torch._dynamo.reset()
            eager = partial(model, *inputs)
            ours = partial(torch.compile(model, backend=backend), *inputs)
            theirs = partial(torch.compile(model), *inputs)
            firsts = {}
            for who, call in (("taskc", ours), ("inductor", theirs)):
                start = time.perf_counter()
                call()
                firsts[who] = time.perf_counter() - start
            shown = ", ".join(f"{who} {seconds:.2f} s" for who, seconds in firsts.items())
            print(f"{name}, {threads} thread(s), first call: {shown}", flush=True)
            checked(torch, name, ours, eager)
            yield "torch.compile", name, ours, {"eager": eager, "inductor": theirs}


if __name__ == "__main__":
    compare(__file__, __doc__ or "", cases)
