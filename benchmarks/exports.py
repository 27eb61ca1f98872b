"""Models as strangers export them: 12 architectures with seeded weights, each by both exporters of torch.

    python benchmarks/exports.py FOLDER [--int8] [--set-aside] [--only TEXT]

It needs torch, transformers, timm, onnxscript and onnxruntime. `NAME.npz` beside `NAME.onnx` has the inputs. `--int8`
writes int8 forms by onnxruntime.quantization instead: dynamic ones, and static ones (QDQ, per channel), calibrated with
two other inputs. Of every four architectures, by name, the second is set aside: nothing is developed on it.
`--set-aside` writes these instead of the others. benchmarks/models.py measures what is in the folder.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import timm
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

PARTS, ASIDE = 4, 1  # of so many architectures the one at this position is set aside
TOKENS, PAST, VOCABULARY = 128, 128, 4000
SMALL = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6}
DECODER = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
DECODER |= {"num_key_value_heads": 2, "intermediate_size": 1408, "vocab_size": VOCABULARY}


@dataclass(frozen=True)
class Export:
    """A module, its inputs by name, the names of its results, and extents that stay open by input and dimension."""

    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: list[str]
    open: dict[str, dict[int, str]] = field(default_factory=dict)


class Wrapped(nn.Module):
    """A module that takes tensors in order and returns a tuple of tensors."""

    def __init__(self, module: nn.Module, call: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.call(self.module, *inputs)


def tokens(length: int = TOKENS) -> Tensor:
    return torch.randint(0, VOCABULARY, (1, length))


def image(size: int) -> Tensor:
    return torch.randn(1, 3, size, size)


def ones(length: int = TOKENS) -> Tensor:
    return torch.ones(1, length, dtype=torch.int64)


TEXT = {1: "tokens"}


# --- architectures of transformers and timm


def bert() -> Export:
    config = transformers.BertConfig(vocab_size=VOCABULARY, intermediate_size=1536, **SMALL)

    def call(model: Any, ids: Tensor, mask: Tensor, kinds: Tensor) -> tuple[Tensor, ...]:
        found = model(input_ids=ids, attention_mask=mask, token_type_ids=kinds)
        return found.last_hidden_state, found.pooler_output

    inputs = {"input_ids": tokens(), "attention_mask": ones(), "token_type_ids": 0 * ones()}
    module = Wrapped(transformers.BertModel(config), call)
    return Export(module, inputs, ["states", "pooled"], dict.fromkeys(inputs, TEXT))


def clip() -> Export:
    vision = {**SMALL, "intermediate_size": 1536, "image_size": 224, "patch_size": 32}
    text = {**SMALL, "intermediate_size": 1536, "vocab_size": VOCABULARY, "eos_token_id": 3}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision)

    def call(model: Any, ids: Tensor, mask: Tensor, pixels: Tensor) -> tuple[Tensor, ...]:
        found = model(input_ids=ids, attention_mask=mask, pixel_values=pixels)
        return found.logits_per_image, found.text_embeds, found.image_embeds

    inputs = {"input_ids": tokens(64), "attention_mask": ones(64), "pixel_values": image(224)}
    module = Wrapped(transformers.CLIPModel(config), call)
    return Export(module, inputs, ["logits", "text", "image"])


def conformer() -> Export:
    config = transformers.Wav2Vec2ConformerConfig(
        **SMALL, intermediate_size=1536, conv_dim=(64,) * 7, vocab_size=64,
        position_embeddings_type="relative",
    )  # fmt: skip
    module = Wrapped(
        transformers.Wav2Vec2ConformerForCTC(config), lambda model, x: (model(x).logits,)
    )
    return Export(module, {"samples": torch.randn(1, 16_000)}, ["logits"])


def convnext() -> Export:
    return Export(timm.create_model("convnext_nano"), {"pixels": image(224)}, ["logits"])


def llama() -> Export:
    """One token after others whose keys and values come as inputs and go, one longer, as results."""
    config = transformers.LlamaConfig(**DECODER)
    layers = config.num_hidden_layers

    def call(model: Any, ids: Tensor, mask: Tensor, at: Tensor, *past: Tensor) -> Any:
        pairs = tuple((past[2 * i], past[2 * i + 1]) for i in range(layers))
        cache = transformers.DynamicCache(pairs)
        logits = model(
            input_ids=ids, attention_mask=mask, position_ids=at, past_key_values=cache
        ).logits
        return logits, *(x for layer in cache.layers for x in (layer.keys, layer.values))

    names = [f"{i}.{kind}" for i in range(layers) for kind in ("key", "value")]
    inputs = {"input_ids": tokens(1), "attention_mask": ones(PAST + 1)}
    inputs["position_ids"] = torch.full((1, 1), PAST)
    past = {f"past_key_values.{name}": torch.randn(1, 2, PAST, 64) for name in names}
    return Export(
        Wrapped(transformers.LlamaForCausalLM(config), call), inputs | past,
        ["logits", *(f"present.{name}" for name in names)],
        {"attention_mask": {1: "all"}, **{name: {2: "past"} for name in past}},
    )  # fmt: skip


def qwen2() -> Export:
    config = transformers.Qwen2Config(**DECODER, use_cache=False)

    def call(model: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return (model(input_ids=ids, attention_mask=mask).logits,)

    inputs = {"input_ids": tokens(), "attention_mask": ones()}
    module = Wrapped(transformers.Qwen2ForCausalLM(config), call)
    return Export(module, inputs, ["logits"], dict.fromkeys(inputs, TEXT))


def swin() -> Export:
    model = timm.create_model("swin_tiny_patch4_window7_224", depths=(2, 2, 2, 2), embed_dim=64)
    return Export(model, {"pixels": image(224)}, ["logits"])


def t5() -> Export:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=384, d_ff=1024, num_layers=4, num_heads=6, use_cache=False
    )

    def call(model: Any, ids: Tensor, mask: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        return (model(input_ids=ids, attention_mask=mask, decoder_input_ids=before).logits,)

    inputs = {"input_ids": tokens(), "attention_mask": ones(), "decoder_input_ids": tokens(32)}
    module = Wrapped(transformers.T5ForConditionalGeneration(config), call)
    return Export(module, inputs, ["logits"])


def vit() -> Export:
    model = timm.create_model("vit_small_patch16_224", depth=6)
    return Export(model, {"pixels": image(224)}, ["logits"])


def whisper() -> Export:
    layers = {"encoder_layers": 4, "decoder_layers": 4, "max_source_positions": 500}
    heads = {"encoder_attention_heads": 6, "decoder_attention_heads": 6}
    tokens_of = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, d_model=384, decoder_start_token_id=1, use_cache=False,
        **layers, **heads, **tokens_of,
    )  # fmt: skip

    def call(model: Any, mel: Tensor, before: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        texts = {"decoder_input_ids": before, "decoder_attention_mask": mask}
        return (model(input_features=mel, **texts).logits,)

    inputs = {"features": torch.randn(1, 80, 1000), "decoder_input_ids": tokens(16)}
    inputs["decoder_attention_mask"] = ones(16)
    module = Wrapped(transformers.WhisperForConditionalGeneration(config), call)
    return Export(module, inputs, ["logits"])


# --- architectures that neither package has in a form that both exporters take


class Selective(nn.Module):
    """A block of Mamba: a causal depthwise convolution, and a scan whose rates are data."""

    def __init__(self, features: int, states: int = 16, rank: int = 16) -> None:
        super().__init__()
        inner = 2 * features
        self.states, self.rank = states, rank
        self.gain = nn.Parameter(torch.ones(features))
        self.into = nn.Linear(features, 2 * inner, bias=False)
        self.mix = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select = nn.Linear(inner, rank + 2 * states, bias=False)
        self.rate = nn.Linear(rank, inner)
        self.decay = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(inner, 1))
        self.skip, self.out = nn.Parameter(torch.ones(inner)), nn.Linear(inner, features)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.gain * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        y, gate = self.into(normed).chunk(2, -1)
        y = functional.silu(self.mix(y.transpose(1, 2))[..., : y.shape[1]].transpose(1, 2))
        parts = self.select(y).split([self.rank, self.states, self.states], -1)
        step = functional.softplus(self.rate(parts[0]))
        shrink = (step[..., None] * -self.decay.exp()).exp()
        added = (step * y)[..., None] * parts[1][:, :, None]
        state, outs = torch.zeros_like(added[:, 0]), []
        for i in range(x.shape[1]):
            state = shrink[:, i] * state + added[:, i]
            outs.append((state @ parts[2][:, i, :, None]).squeeze(-1))
        y = torch.stack(outs, 1) + y * self.skip
        return x + self.out(y * functional.silu(gate))


def mamba() -> Export:
    layers = [Selective(256) for _ in range(3)]
    module = nn.Sequential(nn.Embedding(VOCABULARY, 256), *layers, nn.Linear(256, VOCABULARY))
    return Export(module, {"input_ids": tokens(32)}, ["logits"])


class Twice(nn.Sequential):
    """Two 3 x 3 convolutions with batch norms."""

    def __init__(self, inputs: int, features: int) -> None:
        layers: list[nn.Module] = []
        for n in (inputs, features):
            layers += [nn.Conv2d(n, features, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(features), nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    def __init__(self, width: int = 16, depth: int = 4) -> None:
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        self.down = nn.ModuleList(map(Twice, [3, *widths], widths))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * n, n, 2, stride=2) for n in reversed(widths[:-1])
        )
        self.join = nn.ModuleList(Twice(2 * n, n) for n in reversed(widths[:-1]))
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        passed = []
        for i, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if i else x)
            passed.append(x)
        passed.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat((passed.pop(), up(x)), 1))
        return self.last(x)


def unet() -> Export:
    return Export(UNet(), {"pixels": image(256)}, ["mask"])


ARCHITECTURES: tuple[Callable[[], Export], ...] = (
    *(bert, clip, conformer, convnext, llama, mamba),
    *(qwen2, swin, t5, unet, vit, whisper),
)


# --- exporters, and forms of int8


def by_torchscript(made: Export, path: Path) -> None:
    torch.onnx.export(
        made.module, tuple(made.inputs.values()), str(path), input_names=[*made.inputs],
        output_names=made.outputs, dynamo=False, opset_version=17, dynamic_axes=made.open,
    )  # fmt: skip


def by_dynamo(made: Export, path: Path) -> None:
    auto = torch.export.Dim.AUTO
    shapes = tuple(dict.fromkeys(made.open.get(name, {}), auto) for name in made.inputs)
    is_wrapped = isinstance(made.module, Wrapped)
    torch.onnx.export(
        made.module, tuple(made.inputs.values()), str(path), input_names=[*made.inputs],
        output_names=made.outputs, dynamo=True, external_data=False, verbose=False,
        dynamic_shapes=((shapes,) if is_wrapped else shapes) if made.open else None,
    )  # fmt: skip


EXPORTERS = {"torchscript": by_torchscript, "dynamo": by_dynamo}


class Calibration:
    """Inputs that a static form's ranges are taken from."""

    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self.feeds = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)


def quantized(path: Path, folder: Path, calibration: list[dict[str, np.ndarray]]) -> None:
    """Write the dynamic and the static int8 form of a model."""
    from onnxruntime.quantization import QuantFormat, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = path.with_suffix(".prepared.onnx")
    quant_pre_process(path, prepared, skip_symbolic_shape=True)
    quantize_dynamic(prepared, folder / f"{path.stem}_dynamic.onnx")
    static = folder / f"{path.stem}_static.onnx"
    # A mask of minus infinity gets an infinite scale: of such a model, only products are quantized.
    for operators in (None, ["Conv", "Gemm", "MatMul"]):
        quantize_static(
            prepared, static, Calibration(calibration), quant_format=QuantFormat.QDQ,
            op_types_to_quantize=operators, per_channel=True,
        )  # fmt: skip
        constants = map(onnx.numpy_helper.to_array, onnx.load(static).graph.initializer)
        if all(np.isfinite(array).all() for array in constants if array.dtype.kind == "f"):
            return


def arrays(inputs: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: x.numpy() for name, x in inputs.items()}


def seeded(architecture: Callable[[], Export], seed: int = 0) -> Export:
    """The same weights and inputs for the same seed; norms and biases are not the ones they begin with."""
    torch.manual_seed(seed)
    made = architecture()
    made.module.eval()
    with torch.no_grad():
        for parameter in made.module.parameters():
            if parameter.ndim == 1:
                parameter += 0.05 * torch.randn_like(parameter)
    return made


def write(architecture: Callable[[], Export], exporter: str, folder: Path, is_int8: bool) -> None:
    name = f"{architecture.__name__}_{exporter}"
    made = seeded(architecture)
    feeds = arrays(made.inputs)
    with TemporaryDirectory() as scratch:
        path = Path(scratch if is_int8 else folder) / f"{name}.onnx"
        with torch.no_grad():
            EXPORTERS[exporter](made, path)
        if not is_int8:
            np.savez(folder / f"{name}.npz", **feeds)  # type: ignore[arg-type]
            return
        for form in ("dynamic", "static"):
            np.savez(folder / f"{name}_{form}.npz", **feeds)  # type: ignore[arg-type]
        others = [arrays(seeded(architecture, seed).inputs) for seed in (1, 2)]
        quantized(path, folder, [{name: feed[name] for name in feeds} for feed in others])


def chosen(set_aside: bool) -> Iterator[Callable[[], Export]]:
    for i, architecture in enumerate(ARCHITECTURES):
        if (i % PARTS == ASIDE) == set_aside:
            yield architecture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--int8", action="store_true", help="int8 forms instead of f32")
    parser.add_argument("--set-aside", action="store_true", help="those that are set aside")
    parser.add_argument("--only", metavar="TEXT", default="", help="models of such names")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    for architecture in chosen(options.set_aside):
        for exporter in EXPORTERS:
            if options.only in f"{architecture.__name__}_{exporter}":
                write(architecture, exporter, options.folder, options.int8)
                print(architecture.__name__, exporter, flush=True)


if __name__ == "__main__":
    main()
