"""Moves of whole matrices as functions on fragments: one for each row of ir/target.py and type.

    do ldmatrix.x4(&left[0], &sa[t5])   ->  tc::ldmatrix_x4_f16(&left[0], &sa[t5])
    do stmatrix.x4(&sc[t5], &acc[0])    ->  tc::stmatrix_x4_f16(&sc[t5], &acc[0])

To the instruction registers hold 4 bytes, of whatever elements: it moves halves of them.
"""

from __future__ import annotations

from taskc.backend.cuda.matrices import words
from taskc.backend.cuda.prelude import Entry
from taskc.backend.cuda.types import STRUCTURES
from taskc.ir.target import MatrixMove
from taskc.ir.types import DType


def matrix_move(row: MatrixMove, dtype: DType) -> Entry:
    """Target first, as the operation has it."""
    transposed = ".trans" if row.transposed else ""
    kind = row.name.partition(".")[0]
    instruction = f"{kind}.sync.aligned.m8n8.x{row.count}{transposed}.shared.b16"
    name = f"{row.name.replace('.', '_')}_{dtype}"
    numbers = range(row.count)
    needs = ["shared_address"]
    if row.is_load:
        registers = ", ".join([f"%{i}" for i in numbers])
        results = ", ".join([f'"=r"(w[{i}])' for i in numbers])
        parameters = f"{dtype}* to, const {dtype}* line"
        body = [
            f"u32 w[{row.count}];",
            f'asm volatile("{instruction} {{{registers}}}, [%{row.count}];"',
            f'             : {results} : "r"(shared_address(line)) : "memory");',
            "memcpy(to, w, sizeof(w));",
        ]
    else:
        registers = ", ".join([f"%{i + 1}" for i in numbers])
        parts = words("from", dtype, row.count * 4 // dtype.nbytes)
        inputs = ", ".join([f'"r"({word})' for word in parts])
        parameters = f"{dtype}* line, const {dtype}* from"
        body = [
            f'asm volatile("{instruction} [%0], {{{registers}}};"',
            f'             :: "r"(shared_address(line)), {inputs} : "memory");',
        ]
        needs += ["packed"]
    needs += [dtype.name] if dtype in STRUCTURES else []
    lines = [f"__device__ __forceinline__ void {name}({parameters}) {{"]
    lines += [f"    {line}" for line in body]
    return Entry(name, tuple(needs), "\n".join([*lines, "}"]))
