"""Performance advice for a kernel on the CPU: what is slow, and the mapping that would do better.

    advice(parsed, scalar, lean, processor, threads, sizes)      findings, each at its line

    spilled    a tile has more vectors than there are registers: LLVM says how many bytes it keeps in memory
    strided    the lanes of a vector access elements that are not contiguous: each lane is accessed alone
    uneven     a loop's trip count differs between lanes: the vector runs until its last lane is done
    lanes      the last vector of a block has lanes without a worker
    blocks     there are fewer blocks than threads, although there is enough work for all threads

Lanes are judged by `LaneForms`, as in code generation; `cost` decides what is worth a thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from taskc.backend.cpu.block_count import WORTH, cost_of
from taskc.backend.cpu.compile import assembly_of
from taskc.backend.cpu.memory import WINDOW
from taskc.backend.cpu.processor import Processor
from taskc.backend.lanes import LaneForm, LaneForms
from taskc.errors import Finding, Location
from taskc.ir import nodes as ir
from taskc.ir.extents import extent_value
from taskc.ir.mapping import repeat, spatial
from taskc.ir.rewrite import substitute, walk
from taskc.ir.target import TARGETS

_SPILL = re.compile(r"(?:%[xyz]mm|\bq)\d+.* (\d+)-byte (?:Folded )?Spill")  # of a vector register
_SHARED = 10  # times WORTH: from here on more threads surely pay
_VECTORS = (4, 2, 1)  # columns of registers tried for a tile that fits

Sizes = Mapping[ir.Variable, int]


def advice(
    parsed: ir.Kernel,
    scalar: ir.Kernel,
    lean: ir.Kernel,
    processor: Processor,
    threads: int,
    sizes: Sizes,
) -> Iterator[Finding]:
    """Findings for a kernel at stages parsed, scalar and lean, at the given sizes of its dimensions."""
    yield from _spills(parsed, lean, processor)
    yield from _lane_findings(_sized(scalar, sizes), processor.lanes)
    vectors = -(-parsed.workers // processor.lanes)
    blocks = extent_value(1 if lean.blocks is None else lean.blocks, sizes)
    work = blocks * vectors * cost_of(_sized(lean, sizes).body)
    idle = vectors * processor.lanes - parsed.workers
    if idle and work >= WORTH:
        workers = "1 worker" if parsed.workers == 1 else f"{parsed.workers} workers"
        yield _finding(
            "lanes",
            f"a block has {workers}, and {idle} of {vectors * processor.lanes} lanes have none",
            parsed.loc,
            f"a multiple of {processor.lanes} workers fills vectors: a mapping that ends in"
            f" spatial({processor.lanes})",
        )
    if blocks < threads and work >= _SHARED * WORTH:
        count = "is 1 block" if blocks == 1 else f"are {blocks} blocks"
        yield _finding(
            "blocks",
            f"there {count} for {threads} threads",
            parsed.loc,
            "share the work among more blocks, by smaller tiles: for start in tc.tiles(n, by=...)",
        )


def _finding(kind: str, message: str, loc: Location, hint: str) -> Finding:
    return Finding(kind, "warning", message, loc, (("hint", hint),))


def _sized(kernel: ir.Kernel, sizes: Sizes) -> ir.Kernel:
    values = {dimension: ir.constant(size) for dimension, size in sizes.items()}
    return replace(kernel, body=substitute(kernel.body, values))


# --- registers -------------------------------------------------------------------------------


def spilled_bytes(lean: ir.Kernel, processor: Processor) -> int:
    """Bytes of vector registers that LLVM spills to memory."""
    machine = processor.machine
    machine.set_asm_verbosity(True)
    text = assembly_of(lean, processor)
    machine.set_asm_verbosity(False)
    return sum(map(int, _SPILL.findall(text)))


def _spills(parsed: ir.Kernel, lean: ir.Kernel, processor: Processor) -> Iterator[Finding]:
    registers = TARGETS[processor.target].vectors
    updated = _updated_in_loops(parsed.body)
    tiles = [
        (node.tensor.owners.slots * max(1, node.tensor.dtype.nbytes // 4), node.tensor, node.loc)
        for node in walk(parsed.body)
        if isinstance(node, ir.Allocate) and node.tensor.owners is not None
        if node.tensor in updated
    ]
    taken, tensor, loc = max(tiles, key=lambda tile: tile[0], default=(0, None, parsed.loc))
    if tensor is None or taken < registers or not (spilled := spilled_bytes(lean, processor)):
        return
    yield _finding(
        "spilled",
        f"{tensor.name} takes {taken} vector registers of {registers}: {spilled:,} bytes are spilled to memory",
        loc,
        _that_fits(tensor, registers // max(1, tensor.dtype.nbytes // 4), processor.lanes),
    )


def _updated_in_loops(body: ir.Statement) -> set[ir.Tensor]:
    """Tiles allocated outside a loop and updated in it, which therefore stay in registers throughout."""
    updated: set[ir.Tensor] = set()
    for loop in walk(body):
        if isinstance(loop, ir.For | ir.While | ir.Pipeline):
            inside = list(walk(loop.body))
            allocated = {node.tensor for node in inside if isinstance(node, ir.Allocate)}
            stored = {node.tensor for node in inside if isinstance(node, ir.Store)}
            stored |= {node.accumulator for node in inside if isinstance(node, ir.Mma)}
            updated |= stored - allocated
    return updated


def _that_fits(tensor: ir.Tensor, registers: int, lanes: int) -> str:
    """A tile of a matrix that leaves registers for a row of one operand and an element of the other."""
    assert tensor.owners is not None
    if tensor.owners.rank != 2 or not tensor.owners.is_composed:
        return f"let a worker have fewer of its elements: at most {registers * 3 // 4}"
    had = max(1, tensor.owners.project((1,)).slots)
    sides = [((registers - 1) // count - 1, count) for count in _VECTORS if count <= had]
    # The most products per loaded value.
    rows, columns = max(sides, key=lambda side: side[0] * side[1] / sum(side))
    return f"a tile that fits is {repeat(rows, columns) * spatial(1, lanes)}"


# --- lanes -----------------------------------------------------------------------------------


def _lane_findings(scalar: ir.Kernel, lanes: int) -> Iterator[Finding]:
    if scalar.workers > 1:
        forms = LaneForms(scalar, min(lanes, 1 << (scalar.workers - 1).bit_length()))
        yield from _strides(scalar, forms)
        yield from _uneven(scalar, forms)


def _uneven(scalar: ir.Kernel, forms: LaneForms) -> Iterator[Finding]:
    """Loops whose bounds depend on data. Bounds that depend on the lane's number lose few turns, as in a triangle."""
    for node in walk(scalar.body):
        if isinstance(node, ir.For) and any(
            form.stride is None and not form.is_uniform
            for form in (forms.form(node.start), forms.form(node.stop))
        ):
            yield _finding(
                "uneven",
                "each lane has turns of its own: a vector goes on until its last lane is done",
                node.loc,
                f"let the lanes share the turns of one: a uniform range by {forms.width} around a loop over"
                f" {spatial(forms.width)}, and tc.reduce",
            )


def _strides(scalar: ir.Kernel, forms: LaneForms) -> Iterator[Finding]:
    accesses = [
        (tensor, [forms.form(index) for index in indices], loc)
        for tensor, indices, loc in _accesses(scalar.body)
    ]
    along_rows = any(
        tensor.layout is not None or (len(at) > 1 and at[-1].is_contiguous)
        for tensor, at, _ in accesses
        if not all(form.is_uniform for form in at)
    )
    seen = set()
    for tensor, at, loc in accesses:
        what = _apart(tensor, at, forms.width, along_rows)
        if what is not None and (tensor, loc) not in seen:
            seen.add((tensor, loc))
            yield _finding("strided", what[0], loc, what[1])


def _accesses(
    body: ir.Statement,
) -> Iterator[tuple[ir.Tensor, tuple[ir.Expression, ...], Location]]:
    """The reads, stores and atomics of arguments."""
    for node in walk(body):
        if isinstance(node, ir.Read | ir.Store | ir.Atomic):
            tensor = node.tensor
            if tensor.scope == ir.GLOBAL and tensor.shape:
                yield tensor, node.indices, node.loc


def _apart(
    tensor: ir.Tensor, at: list[LaneForm], lanes: int, along_rows: bool
) -> tuple[str, str] | None:
    """Message and hint for a strided access; None where it is as good as its index permits."""
    name, last = tensor.name, at[-1]
    differing = [axis for axis, form in enumerate(at) if not form.is_uniform]
    if not differing or tensor.layout is not None:
        return None
    if last.is_uniform and tensor.shape[-1] != 1:
        what = f"neighbouring workers differ in dimension {differing[0]} of {name}: each lane is accessed alone"
        ends = spatial(*[1] * (len(at) - 1), lanes)
        if along_rows:
            return (
                what,
                f"go through tc.shared, whose loops are along the rows of {name} and of what is beside it",
            )
        return what, f"let them differ in the last one: a mapping that ends in {ends}"
    stride = last.stride
    if len(differing) == 1 and stride is not None and abs(stride) * (lanes - 1) >= WINDOW * lanes:
        what = f"neighbouring workers are {abs(stride)} elements apart in {name}: each lane is accessed alone"
        ends = spatial(*[1] * (len(at) - 1), lanes)
        return (
            what,
            f"let them have neighbours: a mapping that ends in {ends}, behind what a worker repeats",
        )
    return None
