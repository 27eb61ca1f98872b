"""taskc generate: write text with the model in a folder of ONNX Runtime GenAI.

Writes the text after each prompt as it is made, up to the token that ends it. By default tokens are chosen as the
folder's genai_config.json says; --temperature 0 chooses the likeliest.

  taskc generate FOLDER "Once upon a time" --tokens 100
  taskc generate FOLDER "Dear" --temperature 0.8 --top-p 0.9 --seed 1 --stop "."
"""

from __future__ import annotations

import argparse
import sys
import time

from taskc.commands.terminal import positive, put, write
from taskc.format import many, time_text
from taskc.onnx.text import TextModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", help="with genai_config.json and tokenizer.json"
    )
    parser.add_argument("prompts", metavar="PROMPT", nargs="+", help="the text that is continued")
    parser.add_argument("--tokens", metavar="N", type=positive, help="stop after so many")
    parser.add_argument("--temperature", metavar="T", type=float, help="0 chooses the likeliest")
    parser.add_argument("--top-k", metavar="K", type=int, help="only the K likeliest; 0 is all")
    parser.add_argument(
        "--top-p", metavar="P", type=float, help="only the likeliest, of this share"
    )
    parser.add_argument("--seed", metavar="S", type=int, help="the same choices at each run")
    parser.add_argument("--stop", metavar="WORD", action="append", default=[], help="end before it")
    parser.add_argument(
        "--capacity", metavar="N", type=positive, help="the longest text, in tokens"
    )
    parser.add_argument("--threads", metavar="N", type=positive, help="the most threads of a call")


def run(options: argparse.Namespace) -> int:
    model = TextModel(options.folder, capacity=options.capacity, threads=options.threads)
    names = ("tokens", "temperature", "top_k", "top_p", "seed", "stop")
    wanted = {name: getattr(options, name) for name in names}
    for prompt in options.prompts:
        put(prompt)
        times = [time.perf_counter()]
        for piece in model.stream(prompt, **wanted):
            put(piece)
            sys.stdout.flush()
            times.append(time.perf_counter())
        write()
        if len(times) > 2:
            each = time_text((times[-1] - times[1]) / (len(times) - 2))
            write(f"({many(len(times) - 1, 'piece')}, {each} each after the first)")
    return 0
