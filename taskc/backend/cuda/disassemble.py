"""Machine code as text, by NVIDIA's disassembler where there is one; no GPU is needed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from taskc.errors import CompileError

_LABEL = re.compile(r"^(\.L\w+):", re.MULTILINE)
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_TARGET = re.compile(r"`\((\.L\w+)\)")
_PRODUCTS = ("HGMMA", "IGMMA", "QGMMA", "HMMA", "IMMA", "QMMA")


def disassembler() -> Path | None:
    """nvdisasm, of a package of Python's or of a toolkit."""
    packages = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    for pattern in ("*/bin/nvdisasm*", "*/*/nvdisasm*"):
        for found in sorted(packages.glob(pattern)):
            if found.is_file():
                return found
    on_path = shutil.which("nvdisasm")
    return None if on_path is None else Path(on_path)


def sass_of(cubin: bytes) -> str:
    tool = disassembler()
    if tool is None:
        raise CompileError(
            "machine code is shown by nvdisasm, and there is none",
            hint="pip install nvidia-cuda-nvdisasm, or put the toolkit's on the PATH",
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run(
            [tool, "--print-code", file], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise CompileError(f"{tool.name} can't read the code: {done.stderr.strip()}")
    return done.stdout


def main_loop(sass: str) -> list[str]:
    """The instructions of the shortest loop with the most matrix instructions; where there are none, of the longest.

    They are names with modifiers, as they lie from its first line to the branch back to it: HGMMA.64x128x16.F32.
    What a branch may jump over is left out.
    """
    begins = {found[1]: found.start() for found in _LABEL.finditer(sass)}
    found = [(one.start(), one[1], _TARGET.search(one[2])) for one in _INSTRUCTION.finditer(sass)]
    jumps = [
        (at, begins[target[1]])
        for at, name, target in found
        if name.startswith("BRA") and target is not None and target[1] in begins
    ]

    def within(first: int, last: int) -> list[tuple[int, str]]:
        return [(at, name) for at, name, _ in found if first <= at <= last]

    def worth(loop: tuple[int, int]) -> tuple[int, int]:
        names = [name for _, name in within(*loop)]
        products = sum(name.startswith(_PRODUCTS) for name in names)
        return products, -len(names) if products else len(names)

    loops = [(first, last) for last, first in jumps if first < last]
    if not loops:
        return []
    first, last = max(loops, key=worth)
    over = [(a, b) for a, b in jumps if first <= a < b <= last]
    return [name for at, name in within(first, last) if not any(a < at < b for a, b in over)]
