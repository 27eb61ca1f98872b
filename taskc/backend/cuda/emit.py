"""A kernel at stage lean as CUDA C++.

    for s: i32 in unroll(4):                     #pragma unroll
        if worker + s * 32 < n:           ->     for (i32 s = 0; s < 4; ++s) {
            y[worker + s * 32] = 0.0                 if (worker + s * 32 < n) {
                                                         y[worker + s * 32] = 0.0f;

The text needs no header. Names are the kernel's; lines carry their source locations in Python.
Shared memory is one array, which holds the tensors at their offsets, followed by the mbarriers.
"""

from __future__ import annotations

from taskc.backend.cuda import watchdog
from taskc.backend.cuda.compiled import Argument, form_of
from taskc.backend.cuda.expressions import KernelSource, Line
from taskc.backend.cuda.prelude import function_name
from taskc.backend.cuda.statements import StatementWriter
from taskc.ir import nodes as ir
from taskc.ir.code_size import deeply
from taskc.ir.nodes import Tensor
from taskc.ir.rewrite import walk

# After a barrier, other workers may have changed an inout tensor. `__restrict__` would promise that nobody else does,
# and the compiler relies on it across barriers.
_QUALIFIED = {
    "in": "const {}* __restrict__ ",
    "out": "{}* __restrict__ ",
    "inout": "{}* ",
}


@deeply
def emit(kernel: ir.Kernel) -> KernelSource:
    """The code of a kernel for its target."""
    code = StatementWriter(kernel)
    name = code.names.fresh(function_name(kernel.name))
    code.names.of[kernel.worker] = code.names.fresh("worker")
    code.names.of[kernel.block] = code.names.fresh("block")
    # There are fewer than blocks where each block has one tile.
    code.names.of[kernel.processors] = "i32(gridDim.x)"
    listed, arguments = _parameters(code)
    body = _body(code)
    maps = code.operations.maps
    listed += [f"const __grid_constant__ tc::TensorMap {map_name}" for map_name in maps.values()]
    arguments += [Argument("map", number) for number in range(len(maps))]
    if code.meets_in_grid:
        listed.append("u32* arrivals")
        arguments.append(Argument("arrivals"))
    body = [*[Line(1, f"u32 {known} = 0;") for known in code.operations.known.values()], *body]
    waits = tuple(code.operations.waits)
    if waits:
        hang = code.names.fresh("hang")
        listed.append(f"u32* {hang}")
        arguments.append(Argument("hang"))
        body = [Line(1, f"tc::watch({hang});"), *body]
    if code.asserts:
        listed.append("u32* status")
        arguments.append(Argument("status"))
    threads = kernel.workers + kernel.helpers
    code.lines, code.indent = [], 0
    _write_head(code, name, threads, listed)
    code.lines += body
    code.line("}")
    blocks = 1 if kernel.blocks is None else form_of(kernel.blocks, kernel)
    uses_lanes = any(entry.startswith(("shuffle", "vote")) for entry in code.prelude.used)
    macros = [f"#define WARP {_warp_mask(threads)}"] if uses_lanes else []
    macros += watchdog.macros()
    return KernelSource(
        name=name,
        arch=kernel.target,
        entries=tuple(code.prelude.used.values()),
        macros=tuple(macros),
        lines=tuple(code.lines),
        arguments=tuple(arguments),
        threads=threads,
        shared=code.shared,
        blocks=blocks,
        cluster=kernel.cluster,
        maps=tuple(maps),
        asserts=tuple([(node.text, node.loc) for node in code.asserts]),
        prints=any(isinstance(node, ir.Print) for node in walk(kernel.body)),
        waits=waits,
    )


def _parameters(code: StatementWriter) -> tuple[list[str], list[Argument]]:
    """Declarations and arguments for the kernel's own parameters."""
    kernel = code.kernel
    listed, arguments = [], []
    for number, parameter in enumerate(kernel.parameters):
        name, kind = code.names[parameter], code.type(parameter.dtype)
        if isinstance(parameter, Tensor):
            listed.append(f"{_QUALIFIED[parameter.role].format(kind)}{name}")
            arguments.append(Argument("tensor", number))
        else:
            listed.append(f"const {kind} {name}")
            arguments.append(Argument("scalar", number, kind))
    for number, dimension in enumerate(kernel.dimensions):
        if dimension not in code.names.of:  # else it is a parameter too
            listed.append(f"const i64 {code.names[dimension]}")
            arguments.append(Argument("dimension", number))
    return listed, arguments


def _body(code: StatementWriter) -> list[Line]:
    kernel = code.kernel
    code.loc = kernel.loc
    code.indent = 1
    code.bind(kernel.worker, "threadIdx.x")
    code.bind(kernel.block, "blockIdx.x")
    begin = len(code.lines)
    code.statements(kernel.body)
    return [*code.lines[:begin], *_prefetched(code), *code.lines[begin:]]


def _prefetched(code: StatementWriter) -> list[Line]:
    """Code in which one thread prefetches the tensor maps while the others set up."""
    maps = code.operations.maps.values()
    if not maps:
        return []
    use = code.expressions.use("tensor_map_prefetch")
    head = f"if ({code.names[code.kernel.worker]} == 0) {{"
    lines = [(1, head), *[(2, f"{use}(&{name});") for name in maps], (1, "}")]
    return [Line(indent, text, code.kernel.loc) for indent, text in lines]


def _write_head(code: StatementWriter, name: str, threads: int, listed: list[str]) -> None:
    """Write the code before the body: tables, shared memory, the function's name and parameters."""
    kernel = code.kernel
    for table, table_name in code.expressions.tables.items():
        values = ", ".join([f"{int(n)}ll" for n in table.values.reshape(-1)])
        code.line(f"__device__ const i64 {table_name}[{table.values.size}] = {{{values}}};")
    if code.shared:
        code.line("extern __shared__ __align__(1024) u8 shared_memory[];")
    cluster = f" __cluster_dims__({kernel.cluster}, 1, 1)" if kernel.cluster > 1 else ""
    first = f'extern "C" __global__ void __launch_bounds__({threads}, 1){cluster} {name}('
    code.line(first, kernel.loc)
    for parameter in listed:
        code.line(f"    {parameter}{',' if parameter is not listed[-1] else ') {'}")
    if not listed:
        code.line(") {")


def _warp_mask(threads: int) -> str:
    """The mask of a warp's lanes; the last warp may have fewer."""
    last_lanes = threads % 32
    if not last_lanes:
        return "0xffffffffu"
    whole = threads - last_lanes
    return f"(threadIdx.x < {whole} ? 0xffffffffu : {(1 << last_lanes) - 1:#x}u)"
