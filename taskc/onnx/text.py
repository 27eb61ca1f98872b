"""Text from a folder of ONNX Runtime GenAI: its model with states, its tokenizer, and a choice of tokens.

    model = TextModel("folder")
    for piece in model.stream("Once upon a time", tokens=100, temperature=0.8, seed=1):
        print(piece, end="")

genai_config.json names the model's file, its inputs and outputs, the tokens that end a text, and how tokens are chosen
where a call doesn't say. The package `tokenizers` reads tokenizer.json.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from taskc.dataclass import dataclass
from taskc.errors import CompileError
from taskc.onnx.sequences import Sequence as ModelSequence
from taskc.onnx.session import Changed, compile
from taskc.operators.graph import Array, Graph


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen by the logits.

    temperature  0 chooses the likeliest; smaller ones than 1 prefer likelier tokens
    top_k        only so many of the likeliest; 0 is all
    top_p        only the likeliest whose shares sum up to it
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise CompileError(
                f"tokens can't be chosen by {self}",
                hint="temperature and top_k are 0 or more, and top_p is over 0 and at most 1",
            )

    def chosen(self, logits: Array, random: np.random.Generator) -> int:
        if not self.temperature:
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")[: self.top_k or None]
        scaled = logits[order].astype(np.float64) / self.temperature
        shares = np.exp(scaled - scaled[0])
        sums = np.cumsum(shares / shares.sum())
        count = int(np.searchsorted(sums, self.top_p)) + 1  # with the one that reaches top_p
        return int(order[np.searchsorted(sums[:count], random.random() * sums[:count][-1])])


class TextModel:
    """A model that writes text; `options` are those of `tc.compile`.

    capacity  the longest text in tokens, with its prompt; the model's own limit if not given
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, capacity: int | None = None, **options: Any
    ) -> None:
        self.folder = Path(folder)
        self._settings = _settings(self.folder)
        self.capacity = capacity or self._settings.longest
        self._tokenizer: Any = None
        logits = self._settings.logits
        model = Changed(
            self._settings.path, f"last row of {logits}", lambda graph: _of_last_row(graph, logits)
        )
        self._sequence: ModelSequence = compile(
            model, states=self._settings.states, capacity=self.capacity, **options
        )
        self._dtypes = {
            value.name: value.dtype.numpy
            for value in self._sequence.inputs
            if value.dtype is not None
        }

    @property
    def tokenizer(self) -> Any:
        """The folder's tokenizer, of the package `tokenizers`."""
        if self._tokenizer is None:
            try:
                from tokenizers import Tokenizer
            except ImportError:
                raise CompileError(
                    "text becomes tokens by the package tokenizers, which isn't installed",
                    hint="pip install 'taskc-compiler[text]'; `tokens` takes and returns numbers",
                ) from None
            self._tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        return self._tokenizer

    def tokens(
        self,
        prompt: Sequence[int] | Array,
        *,
        tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> Iterator[int]:
        """The tokens after a prompt's, until one that ends the text, or the capacity, or so many.

        Each call has states of its own, so several texts can be written at once. What isn't given about the choice of
        tokens is as the folder's settings say; without a seed, each call chooses anew.
        """
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        chosen = self._settings.sampling | {
            name: one for name, one in given.items() if one is not None
        }
        sampling = Sampling(**chosen)
        if not len(prompt):
            raise CompileError("a prompt has at least one token")
        return self._written([*prompt], tokens, sampling, np.random.default_rng(seed))

    def _written(
        self, ids: list[int], most: int | None, sampling: Sampling, random: np.random.Generator
    ) -> Iterator[int]:
        states, written = self._sequence.sequence(), 0
        while states.length + len(ids) <= self.capacity and (most is None or written < most):
            (logits,) = states.run([self._settings.logits], self._feeds(ids, states.length))
            token = sampling.chosen(logits.reshape(-1, logits.shape[-1])[-1], random)
            if token in self._settings.ends:
                return
            yield token
            ids, written = [token], written + 1

    def _feeds(self, ids: list[int], before: int) -> dict[str, Array]:
        total = before + len(ids)
        feeds = {
            "input_ids": np.array([ids]),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(before, total)[None],
        }
        named = {self._settings.names.get(role, role): array for role, array in feeds.items()}
        return {name: named[name].astype(dtype) for name, dtype in self._dtypes.items()}

    def stream(self, prompt: str, *, stop: Sequence[str] = (), **options: Any) -> Iterator[str]:
        """The text after a prompt in pieces, as its tokens are chosen, up to a stop word; `options` as in `tokens`."""
        written = self.tokens(self.tokenizer.encode(prompt).ids, **options)
        from tokenizers.decoders import DecodeStream  # the tokenizer has said if it's missing

        pieces = DecodeStream(skip_special_tokens=True)
        held = ""  # it may be the beginning of a stop word
        for token in written:
            held += pieces.step(self.tokenizer, token) or ""
            ends = [held.index(word) for word in stop if word in held]
            if ends:
                held = held[: min(ends)]
                break
            ready = len(held) - _beginning(held, stop)
            if ready:
                yield held[:ready]
                held = held[ready:]
        if held:
            yield held


def _of_last_row(graph: Graph, logits: str) -> Graph:
    """The graph with logits of the last token only: the product with the words' weights takes one row."""
    from taskc.onnx.passes.formulas import (  # with all operators; the cache needs none
        Rewriting,
        replaced,
    )

    rewriting, value = Rewriting(graph), graph.values.get(logits)
    product = rewriting.tensors.makers.get(logits)
    if (
        value is None or value.shape is None or len(value.shape) != 3
        or product is None or product.operator not in ("MatMul", "MatMulNBits")
        or rewriting.tensors.reads[logits] > 1
        or not graph.constants.keys() >= {*filter(None, product.inputs[1:])}
    ):  # fmt: skip
        return graph
    rows, *weights = product.inputs
    bounds = {"start": -1, "end": np.iinfo(np.int64).max, "axis": 1}
    places = [rewriting.constant(name, np.array([at])) for name, at in bounds.items()]
    last = rewriting.fresh("last_row")
    slicing = replaced(product, "Slice", [rows, *places], [last], version=13)
    for node in graph.nodes:
        if node is product:
            rewriting.nodes.append(slicing)
            node = replace(product, inputs=(last, *weights))
        rewriting.nodes.append(node)
    one = replace(value, shape=(value.shape[0], 1, value.shape[2]))
    return replace(rewriting.graph, values=graph.values | {logits: one})


def _beginning(text: str, words: Sequence[str]) -> int:
    """How many characters at the end of a text may begin one of the words."""
    most = min(len(text), max(map(len, words), default=1) - 1)
    lengths = range(most, 0, -1)
    return next((n for n in lengths if any(word.startswith(text[-n:]) for word in words)), 0)


@overload
def generate(model: str | os.PathLike[str] | TextModel, prompt: str, **options: Any) -> str: ...
@overload
def generate(
    model: str | os.PathLike[str] | TextModel, prompt: Sequence[str], **options: Any
) -> list[str]: ...
def generate(
    model: str | os.PathLike[str] | TextModel, prompt: str | Sequence[str], **options: Any
) -> str | list[str]:
    """The text that a model, or that of a folder, writes after a prompt; or after each of several.

    options  tokens, temperature, top_k, top_p, seed and stop, as of `TextModel.stream`
    """
    text_model = model if isinstance(model, TextModel) else TextModel(model)
    if isinstance(prompt, str):
        return "".join(text_model.stream(prompt, **options))
    return ["".join(text_model.stream(one, **options)) for one in prompt]


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings of a folder's genai_config.json.

    path      the model's file
    states    patterns of the states' outputs and inputs
    names     of inputs, by their roles
    ends      tokens that end a text
    sampling  how tokens are chosen
    """

    path: Path
    states: dict[str, str]
    names: dict[str, str]
    logits: str
    longest: int
    ends: frozenset[int]
    sampling: dict[str, Any]


def _settings(folder: Path) -> _Settings:
    path = folder / "genai_config.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        model, search = settings["model"], settings.get("search", {})
        inputs, outputs = model["decoder"]["inputs"], model["decoder"]["outputs"]
        patterns = {
            outputs[f"present_{part}_names"]: inputs[f"past_{part}_names"]
            for part in ("key", "value")
        }
        ends = model.get("eos_token_id", [])
        of_search = {
            name: search[name] for name in ("temperature", "top_k", "top_p") if name in search
        }
        return _Settings(
            folder / model["decoder"]["filename"],
            {
                present.replace("%d", "*"): past.replace("%d", "*")
                for present, past in patterns.items()
            },
            inputs,
            outputs["logits"],
            int(model["context_length"]),
            frozenset(ends if isinstance(ends, list) else [ends]),
            of_search if search.get("do_sample") else {},
        )
    except OSError as error:
        problem = error.strerror or str(error)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise CompileError(
        f"{path} can't be read: {problem}",
        hint="a folder of ONNX Runtime GenAI has it, as its builder writes it",
    )
