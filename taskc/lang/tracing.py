"""Tracing: a program's body runs once, with handles for tensors, and each call of a kernel is noted.

All that can be wrong with a call is found here, at its line: types, shapes, layouts, what has been
written and what has not. Shapes have to fit for all sizes: whether they do is decided on linear forms
of the program's dimensions, and what can't be decided is an error. Only that an extent isn't negative,
and that a size fits a scalar of fewer bits, is left to the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import index, product
from taskc.ir.mapping import Mapping
from taskc.ir.program import Call
from taskc.ir.signature import Parameter, named_type, outputs_of
from taskc.ir.types import TensorType
from taskc.lang.handles import Handle, ScalarHandle, TensorHandle
from taskc.lang.memory import layout_problem
from taskc.lang.names import ParameterType
from taskc.lang.sizes import Size, Sizes
from taskc.lang.source import assigned_names, call_site
from taskc.lang.traced_call import TracedCall
from taskc.lang.values import describe

if TYPE_CHECKING:
    from taskc.lang.definition import Definition, KernelDefinition


class Trace(Sizes):
    """A program whose body is running: its calls so far, and what they have written, where."""

    def __init__(
        self,
        name: str,
        parameters: Sequence[Parameter],
        dimensions: dict[Any, ir.Variable],
    ) -> None:
        super().__init__(name, dimensions)
        self.parameters = tuple(parameters)
        self.temporaries: list[ir.Tensor] = []
        self.views: dict[ir.Tensor, ir.Tensor] = {}  # of what each is another shape
        self.calls: list[Call] = []
        self.kernels: dict[int, KernelDefinition] = {}  # by the identity of their IR
        self.written: dict[ir.Tensor, Location] = {}

    def handle(self, named: Parameter) -> Handle:
        if isinstance(named, ir.Variable):
            return ScalarHandle(named, self)
        return TensorHandle(named, self, tuple([self.number(index(n)) for n in named.shape]))

    def empty(self, kind: object) -> Handle:
        """`tc.empty(type)`"""
        site = call_site()
        if isinstance(kind, ParameterType):
            raise CompileError(
                f"a temporary is neither input nor output: tc.empty({kind.type})", site
            )
        if not isinstance(kind, TensorType):
            raise CompileError(
                f"tc.empty takes a tensor type, and this is {describe(kind)}",
                site,
                "for example tc.empty(f32[64, 64])",
            )
        shape = self._extents(kind.shape, site)
        if kind.layout is not None and (problem := layout_problem(replace(kind, shape=shape))):
            raise CompileError(problem, site)
        assert kind.layout is None or isinstance(kind.layout, Mapping)
        (name,) = assigned_names(site, ("temporary",))
        return self.temporary(ir.Tensor(name, kind.dtype, shape, ir.GLOBAL, kind.layout, loc=site))

    def reshaped(self, handle: TensorHandle, shape: Sequence[Any]) -> Handle:
        """`x.reshape(m * n, k)`"""
        site, tensor = call_site(), handle.tensor
        if tensor.layout is not None:
            raise CompileError(f"'{tensor.name}' has a layout of its own, and no other shape", site)
        extents = self._extents(shape, site)
        if not self.are_equal(product(extents), product(tensor.shape)):
            raise CompileError(
                f"{tensor.name}: {named_type(tensor.dtype, tensor.shape)} has not as many elements"
                f" as {named_type(tensor.dtype, extents)} for all sizes",
                site,
            )
        view = replace(tensor, shape=extents, loc=site)
        self.views[view] = self.memory_of(tensor)
        return self.handle(view)

    def memory_of(self, tensor: ir.Tensor) -> ir.Tensor:
        """The parameter or temporary that it is, whatever its shape."""
        return self.views.get(tensor, tensor)

    def _extents(self, extents: Sequence[Any], site: Location) -> tuple[int | ir.Expression, ...]:
        for extent in extents:
            if not isinstance(extent, (int, Size)):
                raise CompileError(
                    "an extent is an integer, a tc.dim or computed from some, and this is"
                    f" {describe(extent)}",
                    site,
                )
        return tuple([self.extent(self.expression(extent)) for extent in extents])

    def temporary(self, tensor: ir.Tensor) -> Handle:
        self.temporaries.append(tensor)
        return self.handle(tensor)

    def call(self, called: Definition, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """A call with handles: what it returns are handles, too."""
        call = TracedCall(self, called.ir, called.tuples)
        handles = call.bind(args, keywords)
        call.check_memory()
        self.calls += call.made()
        self.kernels |= {id(kernel.ir): kernel for kernel in called.kernels}
        for output in call.written:
            self.written.setdefault(output, call.site)
        return None if not handles else handles[0] if len(handles) == 1 else tuple(handles)

    def finish(self) -> None:
        for output in outputs_of(self.parameters):
            if output not in self.written:
                raise CompileError(
                    f"no call writes the output '{output.name}' of program '{self.name}'",
                    output.loc,
                    f"pass it as the output of a call: kernel(..., out={output.name})",
                )
