"""taskc doctor: versions, processor, devices and settings on this machine."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from taskc import __version__
from taskc.backend.cache import problem_of
from taskc.commands.terminal import columns, write, write_text
from taskc.errors import CompileError
from taskc.format import bytes_text, many
from taskc.runtime.machine import machine
from taskc.runtime.settings import VARIABLES, cache_folder

_PACKAGES = (
    *("numpy", "ml_dtypes", "lark", "rich", "llvmlite", "cuda-python", "cuda-bindings"),
    *("nvidia-cuda-nvrtc", "onnx"),
)

# Features that the targets use. ARM's names are those of Linux.
_FEATURES = (
    *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    "avx_vnni",
    *("avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "bf16", "i8mm", "sve"),
)

SUMMARY = "versions, processor, driver, cache folder, environment variables"
DESCRIPTION = """\
Versions, processor, driver, cache folder, environment variables.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command takes no arguments."""


def run(options: argparse.Namespace) -> int:
    _section("versions", _versions())
    _section("processor", _processor())
    _section("CUDA", _cuda())
    folder = cache_folder()
    problems = [(name, problem_of(folder / name)) for name in ("cpu", "cuda", "sources", "tuning")]
    rows = [("cache", f"{folder}{_contents(folder)}")]
    _section("folders", rows + [(f"cache/{name}", said) for name, said in problems if said])
    unset = "not set"
    variables = [(name, os.environ.get(name) or unset, use) for name, use in VARIABLES]
    _section("environment variables", variables)
    return 0


def _section(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    write((title, "bold"))
    write_text(columns(rows, margin="  "))


def _versions() -> list[tuple[str, ...]]:
    python = f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})"
    rows: list[tuple[str, ...]] = [
        ("taskc", f"{__version__} ({Path(__file__).parent.parent})"),
        ("python", python),
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
    ]
    for package in _PACKAGES:
        try:
            rows.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            rows.append((package, "not installed"))
    return rows


def _processor() -> list[tuple[str, ...]]:
    name, features = _cpu()
    total = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    return [
        ("name", name),
        ("features", features),
        ("cores", f"{usable} of {total} may be used by this process"),
        ("target", _target()),
    ]


def _target() -> str:
    """The target that kernels are compiled for, and the machine that they run on."""
    from taskc.backend.cpu.processor import host

    used = machine()
    threads = many(used.threads, "thread")
    core_cache = f"{bytes_text(used.fast_memory, 'KiB', '.0f')} of cache each"
    return f"{host().target}: {many(used.lanes, 'lane')} of f32, {threads}, {core_cache}"


def _contents(folder: Path) -> str:
    if not folder.is_dir():
        return " (not there yet)"
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return f" ({many(len(sizes), 'file')}, {bytes_text(sum(sizes), 'MiB')})" if sizes else ""


def _cpu() -> tuple[str, str]:
    """The processor's name, and its features that matter."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return platform.processor() or platform.machine(), "only known on Linux"
    facts: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    name = facts.get("model name") or platform.processor() or platform.machine()
    return name, " ".join(feature for feature in _FEATURES if feature in flags) or "none of note"


def _cuda() -> list[tuple[str, ...]]:
    """The compiler, the driver and its devices, or the reason why there are none."""
    from taskc.backend.cuda.api import DeviceError, api, shown_version
    from taskc.backend.cuda.compile import nvrtc_version

    rows: list[tuple[str, ...]] = []
    try:
        rows.append(("NVRTC", nvrtc_version()))
    except CompileError as error:
        rows.append(("NVRTC", f"none: {error.message}"))
    try:
        started = api()
        rows.append(("driver", f"for CUDA {shown_version(started.cuDriverGetVersion())}"))
        for ordinal in range(started.cuDeviceGetCount()):
            rows.append((f"device {ordinal}", _device(ordinal)))
    except DeviceError as error:
        rows.append(("driver", f"none: {error}"))
    return rows


def _device(ordinal: int) -> str:
    from taskc.backend.cuda.api import DeviceError
    from taskc.backend.cuda.context import context

    device = context(ordinal)
    try:
        target = f"kernels are compiled for {device.target}"
    except DeviceError:
        target = "taskc doesn't compile for it"
    major, minor = device.capability
    memory = bytes_text(device.memory_bytes, "GiB")
    return f"{device.name}, compute capability {major}.{minor}, {memory}: {target}"
