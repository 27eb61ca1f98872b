"""The kernels of examples/, lowered."""

from __future__ import annotations

from pathlib import Path

from taskc.commands.loading import load_kernel
from taskc.ir import nodes as ir
from taskc.lang.definition import Definition
from taskc.passes.pipeline import lower
from taskc.programs.ir import kernels_of
from taskc.runtime.checking import for_target

FOLDER = Path(__file__).parents[3] / "examples"
NAMES = (
    *("01_vector_add.py", "02_transpose.py", "03_matmul.py:naive", "03_matmul.py:mapped"),
    *("03_matmul.py:pipelined", "03_matmul.py:specialized", "03_matmul.py:tensor_cores"),
    *(
        "04_softmax.py",
        "05_layer_norm.py",
        "06_convolution.py",
        "07_histogram.py",
        "08_attention.py",
    ),
    *("10_epilogue.py:layer", "10_epilogue.py:unbiased"),
    *("11_operator.py", "17_look_back.py"),
    "09_split_k.py",  # a program, of two kernels
)
TARGETS = ("sm_80", "sm_89", "sm_90a")


def definition(name: str) -> Definition:
    return load_kernel(str(FOLDER / name))


def lean(name: str, target: str) -> list[ir.Kernel]:
    found = definition(name).ir
    kernels = [found] if isinstance(found, ir.Kernel) else list(kernels_of(found).values())
    return [lower(for_target(kernel, target)) for kernel in kernels]
