"""Loops over arrays, of nothing but one mathematical function, for the tests of its results and its speed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from taskc.backend.cpu.instructions import Builder, LaneValue, type_of
from taskc.backend.cpu.math import math_function
from taskc.backend.cpu.native import Elementwise
from taskc.backend.cpu.processor import host
from taskc.ir import arithmetic
from taskc.ir.types import DType

Array = npt.NDArray[Any]
_numbers = count()


def operand_count(name: str) -> int:
    return 2 if name in arithmetic.BINARY_OPERATORS else 1


def text_of(name: str, dtype: DType, lanes: int) -> str:
    """void loop(i64 steps, ptr result, ptr operand, …): `lanes` numbers a step, one if SCALAR."""
    builder = Builder()
    kind = type_of(dtype, lanes)
    operands = range(operand_count(name))
    builder.block = "body"
    lists = [f"ptr noalias %p{k}" for k in operands]
    for k in operands:
        builder.emit(f"%at{k} = getelementptr {kind}, ptr %p{k}, i64 %i")
        builder.emit(f"%x{k} = load {kind}, ptr %at{k}, align {dtype.bits // 8}")
    values = tuple(LaneValue(f"%x{k}", dtype, lanes) for k in operands)
    result = math_function(Elementwise(builder), name, values)
    return "\n".join(
        [
            f'target triple = "{host().triple}"',
            f'target datalayout = "{host().layout}"',
            *builder.declared.values(),
            f"define void @loop(i64 %steps, ptr noalias %result, {', '.join(lists)}) #0 {{",
            "entry:",
            *builder.allocations,
            "  br label %head",
            "head:",
            f"  %i = phi i64 [ 0, %entry ], [ %next, %{builder.block} ]",
            "  %more = icmp slt i64 %i, %steps",
            "  br i1 %more, label %body, label %done",
            "body:",
            *builder.lines,
            f"  %to = getelementptr {kind}, ptr %result, i64 %i",
            f"  store {result.typed}, ptr %to, align {dtype.bits // 8}",
            "  %next = add nsw i64 %i, 1",
            "  br label %head",
            "done:",
            "  ret void",
            "}",
            f'attributes #0 = {{ nounwind "prefer-vector-width"="{host().vector_bits}"'
            f' "target-features"="{host().features}" }}',
            "",
        ]
    )


def optimized(text: str) -> llvm.ModuleRef:
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.newpassmanagers.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = options.loop_interleaving = False
    builder = llvm.newpassmanagers.create_pass_builder(host().machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


@cache
def _compiler() -> llvm.LLJIT:
    return llvm.create_lljit_compiler(host().machine)


@cache
def loop(name: str, dtype: DType, lanes: int) -> Callable[..., None]:
    """The compiled loop, on addresses."""
    code = host().machine.emit_object(optimized(text_of(name, dtype, lanes)))
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    library = builder.export_symbol("loop").link(_compiler(), f"math{next(_numbers)}")
    pointers = [ctypes.c_void_p] * (1 + operand_count(name))
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, *pointers)(library["loop"])

    def call(steps: int, *arrays: Array, library: Any = library) -> None:
        function(steps, *(array.ctypes.data for array in arrays))

    return call


def evaluate(name: str, dtype: DType, lanes: int, *operands: Array) -> Array:
    """The function on arrays of a type's storage."""
    size = operands[0].size
    width = max(lanes, 1)
    steps = -(-size // width)
    padded = [np.resize(operand, steps * width) for operand in operands]
    result = np.empty_like(padded[0])
    loop(name, dtype, lanes)(steps, result, *padded)
    return result[:size]
