"""The tables of tables.jsonl, one a line with what it is; benchmarks/polynomials.py says how each number was found.

Polynomials begin with their lowest power.
"""

from __future__ import annotations

import json
from importlib.resources import files

from taskc.ir.types import DType, f32, f64

Table = dict[DType, tuple[float, ...]]

_lines = (files("taskc.backend.cpu.math") / "tables.jsonl").read_text(encoding="utf-8").splitlines()
_rows = {row["name"]: row for row in map(json.loads, _lines)}


def _table(name: str) -> Table:
    row = _rows[name]
    return {dtype: tuple(row[dtype.name]) for dtype in (f32, f64) if dtype.name in row}


EXP, EXP2 = _table("EXP"), _table("EXP2")
LOG, LOG_EXTENDED = _table("LOG"), _table("LOG_EXTENDED")
SIN, COS, TAN = _table("SIN"), _table("COS"), _table("TAN")
ASIN, ATAN = _table("ASIN"), _table("ATAN")
ERF = _table("ERF")
TAIL, TAIL_CENTER, TAIL_END = _table("TAIL"), _table("TAIL_CENTER"), _table("TAIL_END")
LN2, LOG2_E, TWO_THIRDS = _table("LN2"), _table("LOG2_E"), _table("TWO_THIRDS")
HALF_PI, TWO_OVER_PI = _table("HALF_PI"), _table("TWO_OVER_PI")
LOST: tuple[tuple[float, ...], ...] = tuple([tuple(row) for row in _rows["LOST"]["rows"]])
LOST_WIDTH: float = _rows["LOST"]["width"]
TWO_OVER_PI_WORDS = tuple([int(word, 16) for word in _rows["TWO_OVER_PI_WORDS"]["words"]])
