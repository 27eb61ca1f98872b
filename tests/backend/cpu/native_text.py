"""The C of taskc/backend/cpu/c as LLVM's text, which is checked in; as a script it writes that anew.

python -m tests.backend.cpu.native_text

clang comes with a package of Python's: `pip install -e '.[native]'`. Its LLVM is the oldest that taskc takes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "taskc" / "backend" / "cpu" / "c"
SOURCE, TEXT = FOLDER / "runtime.c", FOLDER / "runtime.ll"
_OPTIONS = (
    *("-target", "x86_64-unknown-linux-gnu", "-std=c11", "-ffreestanding", "-Os", "-S", "-emit-llvm", "-o", "-"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-vectorize"),
    *("-fno-slp-vectorize", "-fno-unroll-loops"),
)  # fmt: skip

# What says something of this target, or of nothing but this compilation.
_LINES = re.compile(
    r"; |source_filename|target |attributes |!|(declare|\s+call) void @llvm\.lifetime"
)
_ENDS = re.compile(r"(,? !\w[\w.]* !\d+)+$|\s+; preds = .*$")
_WORDS = re.compile(
    r" (dso_local|local_unnamed_addr|unnamed_addr|zeroext|signext|noundef|nonnull|nocapture|readonly|readnone|writeonly"
    r"|noalias|returned|initializes\(\([^)]*\)\)|range\([^)]*\)|dereferenceable\(\d+\))(?=[ ,)])"
)
_CLOBBERED = re.compile(r",?~\{\w+\}")
_KEPT = ("noinline", "cold")


def llvm_text() -> str:
    """The same for every system and processor: the two that a pause differs by, pool.py tells apart."""
    command = [sys.executable, "-m", "ziglang", "clang", *_OPTIONS, SOURCE.name]
    made = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert not made.returncode, made.stderr
    groups = dict(re.findall(r"^attributes (#\d+) = \{ (.*) \}$", made.stdout, re.MULTILINE))
    lines = [f"; Made of {SOURCE.name} by {Path(__file__).name}."]
    for line in made.stdout.splitlines():
        if _LINES.match(line):
            continue
        line = _WORDS.sub("", _CLOBBERED.sub("", _ENDS.sub("", line)))
        for group, words in groups.items():
            kept = [word for word in _KEPT if line.startswith("define") and word in words.split()]
            line = re.sub(rf" {group}\b", "".join(f" {word}" for word in kept), line)
        lines.append(line)
    return re.sub(r"\n\n+", "\n\n", "\n".join(lines)) + "\n"


if __name__ == "__main__":
    TEXT.write_text(llvm_text(), encoding="utf-8")
