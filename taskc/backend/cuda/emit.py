"""A kernel at stage lean as CUDA C++.

    for s: i32 in unroll(4):                     #pragma unroll
        if worker + s * 32 < n:           ->     for (i32 s = 0; s < 4; ++s) {
            y[worker + s * 32] = 0.0                 if (worker + s * 32 < n) {
                                                         y[worker + s * 32] = 0.0f;

The text needs no header. Names are the kernel's; lines carry the places in Python that they come from.
Shared memory is one array, at whose offsets the tensors lie, with the mbarriers behind them.
"""

from __future__ import annotations

from collections.abc import Collection

from taskc.backend.cuda.compiled import Argument, form_of
from taskc.backend.cuda.names import function_name
from taskc.backend.cuda.source import Line, Source
from taskc.backend.cuda.statements import Statements
from taskc.ir import nodes as ir
from taskc.ir.depth import deeply
from taskc.ir.nodes import Tensor
from taskc.ir.rewrite import walk


@deeply
def emit(kernel: ir.Kernel) -> Source:
    """The code for the kernel's own target."""
    return _Emitter(kernel).emit()


# Behind a barrier other workers may have changed what is read and written. `__restrict__` would say that nobody
# else does, and the compiler believes it across barriers.
_QUALIFIED = {
    "in": "const {}* __restrict__ ",
    "out": "{}* __restrict__ ",
    "inout": "{}* ",
}


class _Emitter(Statements):
    def emit(self) -> Source:
        kernel = self.kernel
        name = self.names.fresh(function_name(kernel.name))
        self.names.of[kernel.worker] = self.names.fresh("worker")
        self.names.of[kernel.block] = self.names.fresh("block")
        listed, arguments = self._parameters()
        threads = kernel.workers + kernel.helpers
        self.loc = kernel.loc
        self.indent = 1
        self.bind(kernel.worker, "threadIdx.x")
        self.bind(kernel.block, "blockIdx.x")
        begin = len(self.lines)
        self.statements(kernel.body)
        body = self.lines
        maps = self.operations.maps
        body[begin:begin] = self._prefetched(maps.values())
        for number, map_name in enumerate(maps.values()):
            listed.append(f"const __grid_constant__ tc::TensorMap {map_name}")
            arguments.append(Argument("map", number))
        if self.meets_in_grid:
            listed.append("u32* arrivals")
            arguments.append(Argument("arrivals"))
        if self.asserts:
            listed.append("u32* status")
            arguments.append(Argument("status"))
        self.lines, self.indent = [], 0
        for table, table_name in self.expressions.tables.items():
            values = ", ".join([f"{int(n)}ll" for n in table.values.reshape(-1)])
            self.line(f"__device__ const i64 {table_name}[{table.values.size}] = {{{values}}};")
        if self.shared:
            self.line("extern __shared__ __align__(1024) u8 shared_memory[];")
        cluster = f" __cluster_dims__({kernel.cluster}, 1, 1)" if kernel.cluster > 1 else ""
        first = f'extern "C" __global__ void __launch_bounds__({threads}, 1){cluster} {name}('
        self.line(first, kernel.loc)
        for parameter in listed:
            self.line(f"    {parameter}{',' if parameter is not listed[-1] else ') {'}")
        if not listed:
            self.line(") {")
        self.lines += body
        self.line("}")
        blocks = 1 if kernel.blocks is None else form_of(kernel.blocks, kernel)
        uses_lanes = any(entry.startswith(("shuffle", "vote")) for entry in self.prelude.used)
        return Source(
            name,
            kernel.target,
            tuple(self.prelude.used.values()),
            (f"#define WARP {_warp_mask(threads)}",) if uses_lanes else (),
            tuple(self.lines),
            tuple(arguments),
            threads,
            self.shared,
            blocks,
            kernel.cluster,
            tuple(maps),
            tuple([(node.text, node.loc) for node in self.asserts]),
            any(isinstance(node, ir.Print) for node in walk(kernel.body)),
        )

    def _prefetched(self, maps: Collection[str]) -> list[Line]:
        """One thread has the tensor maps brought near, while the others set up: a copy waits for its own."""
        if not maps:
            return []
        use = self.expressions.use("tensor_map_prefetch")
        head = f"if ({self.names[self.kernel.worker]} == 0) {{"
        lines = [(1, head), *[(2, f"{use}(&{name});") for name in maps], (1, "}")]
        return [Line(indent, text, self.kernel.loc) for indent, text in lines]

    def _parameters(self) -> tuple[list[str], list[Argument]]:
        listed, arguments = [], []
        for number, parameter in enumerate(self.kernel.parameters):
            name = self.names[parameter]
            self._type(parameter.dtype)
            if isinstance(parameter, Tensor):
                listed.append(f"{_QUALIFIED[parameter.role].format(parameter.dtype)}{name}")
                arguments.append(Argument("tensor", number))
            else:
                listed.append(f"const {parameter.dtype} {name}")
                arguments.append(Argument("scalar", number, parameter.dtype.name))
        for number, dimension in enumerate(self.kernel.dimensions):
            if dimension in self.names.of:  # a parameter too
                continue
            listed.append(f"const i64 {self.names[dimension]}")
            arguments.append(Argument("dimension", number))
        return listed, arguments


def _warp_mask(threads: int) -> str:
    """The lanes of a warp; the last one may have fewer."""
    rest = threads % 32
    if not rest:
        return "0xffffffffu"
    whole = threads - rest
    return f"(threadIdx.x < {whole} ? 0xffffffffu : {(1 << rest) - 1:#x}u)"
