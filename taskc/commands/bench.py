"""taskc bench: time a model, or a bundle of one, against ONNX Runtime.

Times an ONNX model here and in ONNX Runtime, one after the other in turn, each with all of its
optimizations and on as many threads, which TASKC_THREADS says. The ratio is the median of theirs
over ours, pair by pair: above 1, this is faster.

  taskc bench model.onnx --dim batch=8
  taskc bench model.onnx --precision bf16     # ONNX Runtime stays in f32
  taskc bench model.taskc --onnx model.onnx     # a bundle, and the model that it was made of
  taskc bench folder                            # tokens a second, against ONNX Runtime GenAI

Of a folder of ONNX Runtime GenAI it times prompts of 128 tokens, and then 64 tokens, the likeliest ones.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.util import find_spec
from typing import TypeAlias

import numpy as np

from taskc.commands.loading import add_model, add_precision, feeds_of, is_model, model_of
from taskc.commands.terminal import (
    UsageError,
    add_json,
    seconds_of,
    write,
    write_json,
)
from taskc.format import many, number_text, ratio_text, time_text
from taskc.onnx.partitions import RuntimeSession
from taskc.onnx.text import TextModel
from taskc.progress import Progress
from taskc.runtime.machine import machine
from taskc.runtime.targets import finish_compiling
from taskc.tune.timing import Probe, pairs

_PEERS = ("onnxruntime",)

_CALM = 0.05  # seconds, in which the other side's threads stop spinning


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(
        parser,
        "FILE.onnx|FILE.taskc|FOLDER",
        "the model, a bundle of one, or a folder with genai_config.json",
    )
    parser.add_argument(
        "--onnx", metavar="FILE.onnx", help="what a bundle was made of: the peers run that"
    )
    add_precision(parser)
    parser.add_argument(
        "--against", metavar="PEERS", type=_peers, default=_PEERS,
        help="what it is compared with: onnxruntime (the default)",
    )  # fmt: skip
    parser.add_argument(
        "--budget", metavar="TIME", type=seconds_of, default=3.0,
        help="how long pairs are taken: 30s, 5m (default 3s), and 15 of them at least",
    )  # fmt: skip
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    threads = machine().threads
    path = options.onnx or options.model
    if os.path.isdir(path):
        return _bench_text(path, threads, options.json)
    if not is_model(path):
        raise UsageError(
            f"peers don't run {path}: --onnx FILE.onnx is what it was made of; taskc run times it alone"
        )
    rows = []
    with Progress() as progress:
        progress(f"compiling {options.model}")
        model = model_of(options.model, options.precision)
        feeds = feeds_of(model, options)
        model.run(None, feeds)
        probe = Probe(threads)
        for name in options.against:
            progress(f"timing {options.model} and {name}")
            peer = RuntimeSession(path, threads)
            timed_pairs = pairs(
                lambda: model.run(None, feeds),
                lambda peer=peer: peer.run(feeds),  # type: ignore[misc]
                probe,
                budget=options.budget,
                calm=_CALM if threads > 1 else 0.0,
            )
            rows.append((name, timed_pairs))
    if options.json:
        rows_of = [{"peer": name, **asdict(timed_pairs)} for name, timed_pairs in rows]
        answer = {"model": options.model, "precision": options.precision, "threads": threads}
        answer["peers"] = rows_of
        write_json(answer)
        return 0
    for name, timed_pairs in rows:
        low, high = timed_pairs.quartiles
        write(
            (time_text(timed_pairs.ours / 1e3, "ms", ".3g"), "bold"),
            f", {name} {time_text(timed_pairs.theirs / 1e3, 'ms', '.3g')}: ",
            end="",
        )
        write(
            (ratio_text(timed_pairs.ratio), "bold"), f" (quartiles {low:.2f} to {high:.2f}", end=""
        )
        write(f", {many(timed_pairs.kept, 'pair')}, {many(threads, 'thread')})")
    return 0


_PROMPT = np.arange(3, 131)
_TOKENS = 64
_ROUNDS = 5

# Seconds of a prompt with its first token, and of each further token.
TextTimes: TypeAlias = tuple[float, float]


def _bench_text(folder: str, threads: int, as_json: bool) -> int:
    """Compare the rates of a folder's model here and in ONNX Runtime GenAI, where it is installed."""
    capacity = len(_PROMPT) + _TOKENS
    with Progress() as progress:
        progress(f"compiling {folder}")
        model = TextModel(folder, capacity=capacity, threads=threads)
        sides: dict[str, Callable[[], Iterator[object]]] = {
            "taskc": lambda: model.tokens(_PROMPT, tokens=_TOKENS, temperature=0.0)
        }
        if find_spec("onnxruntime_genai") is not None:
            sides["onnxruntime-genai"] = _genai(folder, threads, capacity)
        for begin in sides.values():
            _timed_text(begin())
        finish_compiling()
        rounds = [
            {name: _timed_text(begin()) for name, begin in sides.items()} for _ in range(_ROUNDS)
        ]
    rows = {}
    for name in sides:
        first, each = np.median([one[name] for one in rounds], axis=0)
        rows[name] = {"prompt": len(_PROMPT) / first, "tokens": 1 / each}
    if as_json:
        write_json({"model": folder, "threads": threads, "tokens per second": rows})
        return 0
    for name, rates in rows.items():
        prompt, tokens = (number_text(rate) for rate in rates.values())
        write((name, "bold"), f": prompts {prompt} tokens/s, then {tokens} tokens/s")
    if len(rows) == 1:
        write("onnxruntime-genai isn't installed")
    return 0


def _timed_text(tokens: Iterator[object]) -> TextTimes:
    begun = time.perf_counter()
    next(tokens)
    first = time.perf_counter()
    count = sum(1 for _ in tokens)
    return first - begun, (time.perf_counter() - first) / max(1, count)


def _genai(folder: str, threads: int, capacity: int) -> Callable[[], Iterator[object]]:
    import onnxruntime_genai as genai

    config = genai.Config(folder)
    session = {"session_options": {"intra_op_num_threads": threads}}
    config.overlay(json.dumps({"model": {"decoder": session}}))
    model = genai.Model(config)
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=capacity, do_sample=False)

    def tokens() -> Iterator[object]:
        generator = genai.Generator(model, parameters)
        generator.append_tokens(_PROMPT.astype(np.int32))
        while not generator.is_done():
            generator.generate_next_token()
            yield None

    return tokens


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name == "torch":
            raise UsageError("PyTorch reads no ONNX models: there is onnxruntime to compare with")
        if name not in _PEERS:
            raise UsageError(f"there is no {name!r} to compare with; there is {', '.join(_PEERS)}")
    return names
