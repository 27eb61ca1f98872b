"""Models through `torch.compile(backend="taskc")`, against eager calls and Inductor; each error is against eager's.

    python benchmarks/doors.py [--quick] [--json FILE]

The benchmark "first call" has the time until the first result, tracing and compilation included: both start without a
cache, and Inductor needs a C++ compiler. The module with an LSTM is exported, since `torch.compile` leaves such layers
to PyTorch. Weights are random. Models of torchvision and transformers are left out, by name, where these are absent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from processes import Call, Cases, compare, is_measuring
from report import Row

_LARGEST_ERROR = 1e-4  # relative to the largest element

Maker = Callable[
    [Any], tuple[Any, tuple[Any, ...]]
]  # from the module torch to a model and its inputs


def vision(name: str, extent: int = 224, **options: Any) -> Maker:
    def make(torch: Any) -> tuple[Any, tuple[Any, ...]]:
        import torchvision

        if name == "ConvNeXt":
            from torchvision.models.convnext import CNBlockConfig

            options["block_setting"] = [CNBlockConfig(*one) for one in options["block_setting"]]
        model = getattr(torchvision.models, name)(**options)
        return model, (torch.randn(1, 3, extent, extent),)

    return make


def text(name: str, **options: Any) -> Maker:
    def make(torch: Any) -> tuple[Any, tuple[Any, ...]]:
        import transformers

        config = getattr(transformers, f"{name}Config")(vocab_size=8000, **options)
        model = getattr(transformers, f"{name}Model")(config)
        ids = torch.randint(0, 8000, (1, 64))
        return _called(torch, model, lambda ids: model(ids, return_dict=False)[0]), (ids,)

    return make


def _called(torch: Any, model: Any, call: Callable[..., Any]) -> Any:
    """A module that calls a model in this way."""

    class Called(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *args: Any) -> Any:
            return call(*args)

    return Called()


def llama(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    """One token, with the keys and values of 63 before it."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=8000, hidden_size=512, intermediate_size=1376, num_hidden_layers=4,
        num_attention_heads=8,
    )  # fmt: skip
    model = transformers.LlamaModel(config)

    def call(ids: Any, *past: Any) -> Any:
        cache = transformers.DynamicCache()
        for layer in range(4):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        return model(ids, past_key_values=cache, use_cache=True, return_dict=False)[0]

    past = [torch.randn(1, 8, 63, 64) for _ in range(8)]
    return _called(torch, model, call), (torch.randint(0, 8000, (1, 1)), *past)


def t5(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    import transformers

    config = transformers.T5Config(
        vocab_size=8000, d_model=256, d_ff=1024, num_layers=3, num_heads=4
    )
    model = transformers.T5Model(config)
    inputs = torch.randint(0, 8000, (1, 64)), torch.randint(0, 8000, (1, 16))

    def call(ids: Any, decoder_ids: Any) -> Any:
        return model(ids, decoder_input_ids=decoder_ids, use_cache=False, return_dict=False)[0]

    return _called(torch, model, call), inputs


def whisper(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    import transformers
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(
        d_model=256, encoder_layers=3, encoder_attention_heads=4, encoder_ffn_dim=1024,
        max_source_positions=300,
    )  # fmt: skip
    model = WhisperEncoder(config)
    return _called(torch, model, lambda x: model(x, return_dict=False)[0]), (
        torch.randn(1, 80, 600),
    )


def unet_block(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    """Two residual blocks with group norms, attention between them, and a path up and down."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.GroupNorm(8, channels) for _ in range(2)])
            self.layers = nn.ModuleList(
                [nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)]
            )

        def forward(self, x: Any) -> Any:
            y = x
            for norm, layer in zip(self.norms, self.layers, strict=True):
                y = layer(nn.functional.silu(norm(y)))
            return x + y

    class Level(nn.Module):  # type: ignore[misc]
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.first, self.last = Block(channels), Block(channels)
            self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
            self.inner = Block(2 * channels)
            self.attention = nn.MultiheadAttention(2 * channels, 4, batch_first=True)
            self.up = nn.Conv2d(2 * channels, channels, 3, padding=1)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            y = self.inner(self.down(x))
            flat = y.flatten(2).transpose(1, 2)
            attended = self.attention(flat, flat, flat, need_weights=False)[0]
            y = y + attended.transpose(1, 2).reshape(y.shape)
            return self.last(x + self.up(nn.functional.interpolate(y, scale_factor=2)))

    return Level(64), (torch.randn(1, 64, 32, 32),)


def recommender(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    """DLRM: bags of embeddings, their products with each other, and two perceptrons."""
    nn = torch.nn

    class Recommender(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(1000, 64) for _ in range(8)])
            self.bottom = nn.Sequential(
                nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU()
            )
            self.top = nn.Sequential(
                nn.Linear(64 + 36, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid()
            )
            rows, columns = torch.tril_indices(9, 9, -1)
            self.register_buffer("pairs", rows * 9 + columns)

        def forward(self, numbers: Any, items: Any) -> Any:
            x = self.bottom(numbers)
            parts = [table(items[:, k]).sum(1) for k, table in enumerate(self.tables)]
            whole = torch.stack([x, *parts], 1)
            products = (whole @ whole.transpose(1, 2)).flatten(1)[:, self.pairs]
            return self.top(torch.cat([x, products], 1))

    return Recommender(), (torch.randn(128, 13), torch.randint(0, 1000, (128, 8, 4)))


def tagger(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    nn = torch.nn

    class Tagger(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5000, 128)
            self.layers = nn.LSTM(128, 128, 2, bidirectional=True, batch_first=True)
            self.tags = nn.Linear(256, 20)

        def forward(self, words: Any) -> Any:
            return self.tags(self.layers(self.embedding(words))[0])

    return Tagger(), (torch.randint(0, 5000, (4, 48)),)


def unknown(torch: Any) -> tuple[Any, tuple[Any, ...]]:
    """Operators that taskc doesn't have, between those that it has."""
    nn = torch.nn

    class Unknown(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])

        def forward(self, x: Any) -> Any:
            x = torch.special.i0(self.layers[0](x).tanh()) - 1
            x = torch.fft.rfft(self.layers[1](x)).abs()
            x = nn.functional.pad(x, (0, 31)).relu()
            square = self.layers[2](x).t() @ x / 64 + 4 * torch.eye(64)
            return self.layers[3](torch.linalg.solve(square, x.t()).t()).erf() + torch.logcumsumexp(
                x, 1
            )

    return Unknown(), (torch.randn(64, 64),)


MODELS: dict[str, Maker] = {
    "resnet18": vision("resnet18"),
    "resnet50": vision("resnet50", extent=160),
    "mobilenet_v3_small": vision("mobilenet_v3_small"),
    "efficientnet_b0": vision("efficientnet_b0", extent=160),
    "convnext": vision("ConvNeXt", block_setting=[(48, 96, 2), (96, 192, 2), (192, None, 2)]),
    "vit": vision(
        "VisionTransformer", image_size=224, patch_size=16, num_layers=4, num_heads=6,
        hidden_dim=384, mlp_dim=1536,
    ),
    "swin": vision(
        "SwinTransformer", patch_size=[4, 4], embed_dim=48, depths=[2, 2], num_heads=[3, 6],
        window_size=[7, 7],
    ),
    "bert": text("Bert", num_hidden_layers=4),
    "gpt2": text("GPT2", n_layer=4, use_cache=False),
    "llama with a cache": llama,
    "t5": t5,
    "whisper's encoder": whisper,
    "unet block": unet_block,
    "recommender": recommender,
    "lstm tagger": tagger,
    "unknown operators": unknown,
}  # fmt: skip
_QUICK = ("resnet18", "recommender", "lstm tagger")
_EXPORTED = ("lstm tagger",)


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
        for parameter in model.parameters():
            if not parameter.any():  # some heads begin as zeros, and so would the results
                parameter.normal_(std=0.02)
        yield name, model.eval(), inputs


def _ours(torch: Any, name: str, model: Any, inputs: tuple[Any, ...]) -> Call:
    import taskc as tc
    from taskc.torch.dynamo import backend

    if name not in _EXPORTED:
        return partial(torch.compile(model, backend=backend), *inputs)
    compiled: list[Any] = []

    def call() -> Any:
        if not compiled:
            compiled.append(tc.torch.compile(torch.export.export(model, inputs)))
        return torch.from_numpy(compiled[0](*inputs))

    return call


def cases(threads: int, quick: bool) -> Cases:
    import torch

    from taskc import finish_compiling

    torch.set_num_threads(threads)
    torch._inductor.config.force_disable_caches = True
    with torch.inference_mode(False), torch.no_grad():
        for name, model, inputs in models(torch, _QUICK if quick else MODELS):
            torch._dynamo.reset()
            eager = partial(model, *inputs)
            theirs = partial(torch.compile(model), *inputs)
            firsts = []
            ours = _ours(torch, name, model, inputs)
            for call in (ours, theirs):
                start = time.perf_counter()
                call()
                firsts.append(1e3 * (time.perf_counter() - start))
            yield Row(
                "first call", name, threads, firsts[0], "inductor", firsts[1], firsts[1] / firsts[0]
            )
            checked(torch, name, ours, eager)
            finish_compiling()
            yield "torch.compile", name, ours, {"eager": eager, "inductor": theirs}


if __name__ == "__main__":
    # A first call is a user's: without a cache, with quick code that full code replaces.
    with TemporaryDirectory() as folder:
        if is_measuring():
            os.environ["TASKC_CACHE"] = folder
            os.environ.pop("TASKC_TIER", None)
        compare(__file__, __doc__ or "", cases)
