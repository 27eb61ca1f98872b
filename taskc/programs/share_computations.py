"""share_computations: merge computations that are equal except for names.

    scaled(x, out=t)            scaled: out[i, j] = x[i, j] * 2.0
    scaled_1(t, out=y)          scaled_1: out[a, b] = h[a, b] * 2.0
->
    scaled(x, out=t)
    scaled(t, out=y)

A function that is called for each layer of a network leaves a computation for each layer. Once merged, they are fused
and proved once.
"""

from __future__ import annotations

from taskc.ir import nodes as ir
from taskc.ir.compare import same_program
from taskc.ir.nodes import Kernel, Tensor
from taskc.programs.ir import Callee, Computation, Program, callees_of, map_callees


def share_computations(program: Program) -> Program:
    shared: dict[int, Computation] = {}
    alike: dict[object, list[tuple[Computation, Kernel]]] = {}
    for callee in callees_of(program).values():
        if isinstance(callee, Computation):
            kernel = _as_kernel(callee)
            known = alike.setdefault(_signature(callee), [])
            equal = next((one for one, other in known if same_program(other, kernel)), None)
            if equal is None:
                known.append((callee, kernel))
            else:
                shared[id(callee)] = equal

    def change(callee: Callee) -> Callee:
        return shared.get(id(callee), callee)

    return map_callees(program, change) if shared else program


def _signature(computation: Computation) -> object:
    """A key that equal computations share, with their sizes."""
    tensors = [item for item in computation.parameters if isinstance(item, Tensor)]
    types = tuple([(item.dtype, item.shape) for item in tensors])
    return computation.dimensions, len(computation.parameters), types


def _as_kernel(computation: Computation) -> Kernel:
    """A kernel with the computation's value, for comparison."""
    element = ir.Store(computation.output, computation.variables, computation.value)
    return Kernel("", computation.parameters, computation.dimensions, 1, element)
