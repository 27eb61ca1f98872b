"""Text by a folder of ONNX Runtime GenAI: which tokens, in which pieces, and where it ends."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import taskc as tc
from taskc import CompileError
from taskc.cli import main
from taskc.commands import bench
from taskc.onnx.text import Sampling, TextModel

from .decoder import decoder, greedy

PROTO = decoder(layers=1)
PROMPT = [3, 14, 15, 9, 2]
TOKENS = greedy(PROTO, PROMPT, 12)
SETTINGS: dict[str, Any] = {
    "model": {
        "context_length": 64,
        "eos_token_id": 77,
        "decoder": {
            "filename": "model.onnx",
            "inputs": {
                "input_ids": "input_ids",
                "past_key_names": "past_key_values.%d.key",
                "past_value_names": "past_key_values.%d.value",
            },
            "outputs": {
                "logits": "logits",
                "present_key_names": "present.%d.key",
                "present_value_names": "present.%d.value",
            },
        },
    },
    "search": {"do_sample": False, "temperature": 0.5, "top_k": 5, "top_p": 0.9},
}


def folder_of(path: Path, **changes: Any) -> Path:
    onnx.save(PROTO, path / "model.onnx")
    settings = {**SETTINGS, "model": {**SETTINGS["model"], **changes}}
    (path / "genai_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return TextModel(folder_of(tmp_path_factory.mktemp("text")))


@pytest.fixture
def tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package: token 7 is the word `w7`, and pieces end with spaces."""

    class Tokenizer:
        from_file = classmethod(lambda cls, path: cls())

        def encode(self, text: str) -> Any:
            return SimpleNamespace(ids=[int(word[1:]) for word in text.split()])

    class DecodeStream:
        def __init__(self, skip_special_tokens: bool) -> None:
            assert skip_special_tokens

        def step(self, tokenizer: Tokenizer, token: int) -> str | None:
            return f"w{token} "

    package, decoders = ModuleType("tokenizers"), ModuleType("tokenizers.decoders")
    monkeypatch.setattr(package, "Tokenizer", Tokenizer, raising=False)
    monkeypatch.setattr(decoders, "DecodeStream", DecodeStream, raising=False)
    monkeypatch.setitem(sys.modules, "tokenizers", package)
    monkeypatch.setitem(sys.modules, "tokenizers.decoders", decoders)


def text_of(tokens: list[int]) -> str:
    return "".join(f"w{token} " for token in tokens)


def test_the_likeliest_tokens_of_several_texts_at_once(model: TextModel) -> None:
    first = [*model.tokens(PROMPT, tokens=12)]
    assert first == TOKENS
    other = [*model.tokens(PROMPT[::-1], tokens=12)]
    both = zip(model.tokens(PROMPT, tokens=12), model.tokens(PROMPT[::-1], tokens=12), strict=True)
    assert [*both] == [*zip(first, other, strict=True)]


def test_only_the_last_token_of_a_prompt_gets_logits(model: TextModel) -> None:
    feeds = model._feeds(PROMPT, 0)
    whole = tc.compile(PROTO, states=model._settings.states, capacity=64)(feeds)
    last = model._sequence.sequence()(feeds)
    assert last.shape == (1, 1, 50)
    np.testing.assert_allclose(last, whole[:, -1:], atol=1e-5)


def test_a_text_ends_by_its_token_or_the_capacity(tmp_path: Path) -> None:
    end = next(token for token in TOKENS if token != TOKENS[0])
    model = TextModel(folder_of(tmp_path, eos_token_id=[60, end]), capacity=12)
    assert [*model.tokens(PROMPT)] == TOKENS[: TOKENS.index(end)]
    unending = TextModel(folder_of(tmp_path), capacity=12)
    assert [*unending.tokens(PROMPT)] == TOKENS[:8]  # the last one has no place of its own


def test_tokens_are_chosen_by_their_shares() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))

    def counts(**options: Any) -> list[float]:
        random, sampling = np.random.default_rng(0), Sampling(**options)
        chosen = [sampling.chosen(logits, random) for _ in range(4000)]
        return [round(chosen.count(token) / 4000, 1) for token in range(4)]

    assert counts() == [0, 1, 0, 0]
    assert counts(temperature=1.0) == [0.1, 0.4, 0.2, 0.3]
    assert counts(temperature=1.0, top_k=2) == [0, 0.6, 0, 0.4]
    assert counts(temperature=1.0, top_p=0.65) == [0, 0.6, 0, 0.4]
    assert counts(temperature=1.0, top_p=0.3) == [0, 1, 0, 0]
    assert counts(temperature=0.5) == [0, 0.5, 0.1, 0.3]
    assert counts(temperature=1e-3, top_k=3) == [0, 1, 0, 0]


def test_a_seed_repeats_the_choices_and_settings_hold_where_nothing_is_said(
    tmp_path: Path, model: TextModel
) -> None:
    def tokens(**options: Any) -> list[int]:
        return [*model.tokens(PROMPT, tokens=8, **options)]

    assert tokens(temperature=2.0, seed=1) == tokens(temperature=2.0, seed=1)
    assert tokens(temperature=2.0, seed=1) != tokens(temperature=2.0, seed=2)
    assert tokens(temperature=2.0, top_k=1) == TOKENS[:8]
    model._settings.sampling.update(temperature=2.0, top_k=0, top_p=1.0)
    try:
        assert tokens(seed=1) == tokens(temperature=2.0, seed=1)
        assert tokens(temperature=0.0) == TOKENS[:8]
    finally:
        model._settings.sampling.clear()


@pytest.mark.usefixtures("tokenizers")
def test_a_stream_holds_back_what_may_begin_a_stop_word(model: TextModel) -> None:
    prompt = text_of(PROMPT)
    pieces = [*model.stream(prompt, tokens=6)]
    assert pieces == [text_of([token]) for token in TOKENS[:6]]
    whole = text_of(TOKENS[:6])
    stop = f"w{TOKENS[2]} w{TOKENS[3]}"
    pieces = [*model.stream(prompt, tokens=6, stop=["nothing", stop])]
    assert "".join(pieces) == whole[: whole.index(stop)]
    pieces = [*model.stream(prompt, tokens=3, stop=[f"w{TOKENS[2]} and more"])]
    assert "".join(pieces) == text_of(TOKENS[:3])


@pytest.mark.usefixtures("tokenizers")
def test_the_function_and_the_command(model: TextModel, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = [text_of(PROMPT), text_of(PROMPT[:2])]
    one, two = (text_of([*model.tokens(ids, tokens=3)]) for ids in (PROMPT, PROMPT[:2]))
    assert tc.onnx.generate(model, prompts[0], tokens=3) == one
    assert tc.onnx.generate(model, prompts, tokens=3) == [one, two]
    assert main(["generate", str(model.folder), *prompts, "--tokens", "3"]) == 0
    first, after, second, _ = capsys.readouterr().out.splitlines()
    assert (first, second) == (prompts[0] + one, prompts[1] + two)
    assert after.startswith("(3 pieces, ")


def test_the_rates_of_a_folder(
    model: TextModel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "_PROMPT", np.array(PROMPT))
    monkeypatch.setattr(bench, "_TOKENS", 4)
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    assert main(["bench", str(model.folder)]) == 0
    line, missing = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"taskc: prompts [\d.,]+ tokens/s, then [\d.,]+ tokens/s", line)
    assert missing == "onnxruntime-genai isn't installed"


def test_what_is_refused(tmp_path: Path, model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompileError, match=r"genai_config\.json can't be read: No such file"):
        TextModel(tmp_path)
    (tmp_path / "genai_config.json").write_text('{"model": {}}', encoding="utf-8")
    with pytest.raises(CompileError, match="can't be read: KeyError: 'decoder'"):
        TextModel(tmp_path)
    with pytest.raises(CompileError, match="a prompt has at least one token"):
        model.tokens([])
    with pytest.raises(CompileError, match=r"tokens can't be chosen by .*top_p=0"):
        model.tokens([1], top_p=0.0)
    monkeypatch.setattr(model, "_tokenizer", None)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(CompileError, match="package tokenizers, which isn't installed"):
        [*model.stream("w1")]
