"""Operators whose result has as many elements as data says: taken where that is known while a program is traced."""

from __future__ import annotations

from math import prod

import numpy as np

import taskc as tc
from taskc.onnx.operators import Call, Made, operator
from taskc.onnx.operators.common import axis_of, spliced
from taskc.onnx.operators.movement import inside


@operator("NonZero", since=9)
def non_zero(call: Call) -> Made:
    x = call.known(0)
    places = [at for at in np.ndindex(x.shape) if x[at]]
    made = np.empty((x.ndim, len(places)), np.int64)
    for number, at in enumerate(places):
        made[:, number] = at
    return made


@operator("Compress", since=9)
def compress(call: Call) -> Made:
    call.require_kernel()
    x, axis = call.tensor(0), call.attribute("axis")
    if axis is None:
        x, axis = x.reshape(prod(x.shape)), 0
    axis = axis_of(call, axis, len(x.shape))
    kept = [number for number, flag in enumerate(call.known(1).reshape(-1)) if flag]
    shape = (*x.shape[:axis], len(kept), *x.shape[axis + 1 :])
    places, extent = tc.constant(np.array(kept, np.int64)), x.shape[axis]

    def value(*at):
        place = inside(places[at[axis]], extent)
        return x[spliced(at, axis, axis + 1, (place,))]

    return call.compute(shape, tc.function(value))
