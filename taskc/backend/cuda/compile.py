"""From CUDA C++ to machine code, with NVRTC: no GPU, driver or toolkit is needed.

The assembler's report of registers and spills is parsed here. A block's threads, registers and shared memory
determine occupancy, which launch.py asks the driver for.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import cache
from os import cpu_count
from pathlib import Path
from typing import Any

from taskc.backend.cache import Cache, code_text, key_of
from taskc.backend.cuda.compiled import CompiledCubin, LaunchDescription, Resources
from taskc.backend.cuda.emit import emit
from taskc.backend.cuda.expressions import KernelSource
from taskc.backend.cuda.watchdog import limit
from taskc.errors import NOWHERE, CompileError, InternalError, Location
from taskc.ir import nodes as ir

# --- Machine code as text, by NVIDIA's disassembler if it is installed; no GPU is needed --------


def disassembler() -> Path | None:
    """The path of nvdisasm, from a Python package or a toolkit."""
    packages = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    for pattern in ("*/bin/nvdisasm*", "*/*/nvdisasm*"):
        for candidate in sorted(packages.glob(pattern)):
            if candidate.is_file():
                return candidate
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


_OPTIONS = (
    "--std=c++17",
    "--fmad=false",
    "--generate-line-info",
    "--ptxas-options=-v",
    "--diag-suppress=177",
)


def compile_kernel(lean: ir.Kernel) -> CompiledCubin:
    """Compile a kernel at stage lean for its target."""
    return compile_source(emit(lean))


def compile_source(source: KernelSource) -> CompiledCubin:
    text = source.text()
    cubin, log = _run(text, source, "CUBIN")
    described = {it.name: getattr(source, it.name) for it in fields(LaunchDescription)}
    return CompiledCubin(cubin=cubin, resources=resources_of(log), **described)


def ptx_of(source: KernelSource) -> str:
    code, _ = _run(source.text(), source, "PTX")
    return code.rstrip(b"\0").decode()


def compile_many(kernels: Iterable[ir.Kernel]) -> list[CompiledCubin]:
    """Compile kernels at stage lean in parallel: NVRTC doesn't need Python's global lock."""
    sources = [emit(kernel) for kernel in kernels]
    return list(_pool().map(compile_source, sources))


def compiled(
    kernel: ir.Kernel, lower: Callable[[ir.Kernel], ir.Kernel], cache: Cache, version: str
) -> CompiledCubin:
    """A kernel as its author wrote it, compiled for its target or loaded from the cache.

    lower    lowers it to stage lean
    version  version of the whole compiler
    """
    watched = f"watched for {limit()} s" if limit() else ""
    key = key_of(code_text(kernel), kernel.target, nvrtc_version(), version + watched)
    cached = cache.get(key)
    if cached is not None:
        return CompiledCubin.from_bytes(cached)
    fresh = compile_kernel(lower(kernel))
    cache.put(key, fresh.to_bytes())
    return fresh


# --- NVRTC -----------------------------------------------------------------------------------


def nvrtc_version() -> str:
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"{major}.{minor}"


@cache
def _nvrtc() -> Any:
    """The NVRTC module; if it is missing, the error tells how to install it."""
    try:
        from cuda.bindings import nvrtc

        status, _, _ = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise _missing(str(error)) from None
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise _missing(str(status))
    return nvrtc


def _missing(why: str) -> CompileError:
    return CompileError(
        f"CUDA code is compiled by NVRTC, which can't be loaded: {why.splitlines()[0] if why else ''}",
        hint="pip install 'cuda-python==13.0.*' 'nvidia-cuda-nvrtc==13.0.*'; no GPU is needed to compile",
    )


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cpu_count() or 1, thread_name_prefix="taskc-nvrtc")


def _run(text: str, source: KernelSource, kind: str) -> tuple[bytes, str]:
    """NVRTC's output for a text, as PTX or a CUBIN, and its log."""
    nvrtc = _nvrtc()
    success = nvrtc.nvrtcResult.NVRTC_SUCCESS
    status, program = nvrtc.nvrtcCreateProgram(
        text.encode(), f"{source.name}.cu".encode(), 0, [], []
    )
    if status != success:
        raise InternalError(f"NVRTC: {status}")
    try:
        # The assembler runs only for a real architecture.
        arch = source.arch if kind == "CUBIN" else source.arch.replace("sm_", "compute_")
        options = [option.encode() for option in (f"--gpu-architecture={arch}", *_OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        raw_log = _content(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        log = raw_log.rstrip(b"\0").decode(errors="replace")
        if status != success:
            raise _error(log, source)
        size = getattr(nvrtc, f"nvrtcGet{kind}Size")
        get = getattr(nvrtc, f"nvrtcGet{kind}")
        return _content(size, get, program), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _content(size: Any, get: Any, program: Any) -> bytes:
    """Read a log or a module from NVRTC, which writes into a `bytes` object in place.

    An empty log is one zero byte. Python shares one object for all one-byte `bytes` of equal value, so the buffer is
    longer: a zero written into `b" "` would show up everywhere in the process.
    """
    _, length = size(program)
    content = bytes(length + 1)
    get(program, content)
    return content[:length]


_OF_THE_COMPILER = re.compile(
    r"^(?P<file>.+?)\((?P<line>\d+)\): (?:catastrophic )?error:?\s*(?P<text>.*)$", re.M
)
_OF_THE_ASSEMBLER = re.compile(r"^ptxas .*, line (?P<line>\d+); error\s*: (?P<text>.*)$", re.M)
_PLACE = re.compile(r"\s*\.loc\s+(\d+) (\d+) \d+(?:, function_name \S+, inlined_at (\d+) (\d+))?")


def _error(log: str, source: KernelSource) -> InternalError | CompileError:
    """The error for refused code: our own code or the author's snippet."""
    match = _OF_THE_COMPILER.search(log)
    if match is not None:
        loc = Location(match["file"], int(match["line"]), 0, 0, 0)
        return CompileError(f"NVRTC refuses {source.name}: {match['text']}", loc)
    match = _OF_THE_ASSEMBLER.search(log)
    if match is not None:
        loc = _place(ptx_of(source), int(match["line"]))
        return CompileError(f"ptxas refuses {source.name}: {match['text']}", loc)
    return InternalError(f"NVRTC refuses {source.name}: {log}", source.text(with_places=False))


def _place(ptx: str, line: int) -> Location:
    """The source location of a line of PTX: the last one before it that is outside of our own functions."""
    files = dict(re.findall(r'^\s*\.file\s+(\d+) "(.*)"', ptx, re.M))
    for text in reversed(ptx.splitlines()[:line]):
        match = _PLACE.match(text)
        if match is not None:
            file, number = (match[3], match[4]) if match[3] else (match[1], match[2])
            return Location(files.get(file, ""), int(number), 0, 0, 0)
    return NOWHERE


# --- the assembler's report ------------------------------------------------------------------

_NUMBERS = {
    "registers": r"Used (\d+) registers",
    "stack": r"(\d+) bytes stack frame",
    "spill_stores": r"(\d+) bytes spill stores",
    "spill_loads": r"(\d+) bytes spill loads",
    "shared": r"(\d+) bytes smem",
    "barriers": r"used (\d+) barriers",
}
_REMARK = re.compile(r"^.*\((C\d+)\).*$", re.M)


def resources_of(log: str) -> Resources:
    numbers: dict[str, int] = {}
    for name, pattern in _NUMBERS.items():
        match = re.search(pattern, log)
        numbers[name] = int(match[1]) if match else 0
    remarks = tuple([match[0].strip() for match in _REMARK.finditer(log)])
    return Resources(**numbers, remarks=remarks)
