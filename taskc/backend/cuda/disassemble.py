"""Machine code as text, by NVIDIA's disassembler where there is one; no GPU is needed."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from taskc.errors import CompileError


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
