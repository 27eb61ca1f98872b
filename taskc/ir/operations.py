"""The target operations that a `Do` may name: their participants, operands and meaning.

An operand is a *value* (an expression) or a *place* (an Address). Constants are values that must be
known at compile time. `tc.cuda` offers most names to kernel authors; passes introduce them too.

A Snippet has a text instead of a row: PTX that computes one value from its operands, by these rules.

    fma.rn.f32 %0, %1, %2, %3;
    { .reg .pred p; setp.lt.f32 p, %1, 0f00000000; selp.f32 %0, 0f00000000, %1, p; }

%0 is the result, %1 and so on the operands; each one is used. The text ends with `;` or `}`. It
touches no memory, has no control flow and asks nothing about who executes it, so that it is a
function of its operands: only that can have a meaning, and be moved as any expression. The meaning
divides no integers by what may be 0, since where it is moved to it may not be asked for.

`read` and `written` are the effects of a node on tensors: by its operation's row for a `Do`, else by the marks of its
fields. An Address reads nothing. The reads of an expression are no effects of the statement around it; `walk` visits
both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from taskc.dataclass import dataclass
from taskc.errors import assert_never
from taskc.ir import nodes as ir
from taskc.ir.nodes import Effect, Tensor
from taskc.ir.rewrite import EFFECT_FIELDS, Node, held_by, walk
from taskc.ir.target import (
    MATRIX_INSTRUCTIONS,
    MATRIX_MOVES,
    DotInstruction,
    MatrixInstruction,
    MatrixMove,
    TileInstruction,
    WarpgroupInstruction,
    WarpInstruction,
    is_asynchronous,
)
from taskc.ir.types import DType, boolean, u32


@dataclass(frozen=True, slots=True)
class Operation:
    """operands: "place" (of the own block), "remote" (a place, perhaps a peer's), "value" or "constant"
    each; a trailing "*" repeats the last one.

    participants: "worker" (each on its own), "warp" (all of it together), "warpgroup" (likewise), "one"
    (a single elected worker must execute it) or "cluster" (each, in kernels with a cluster). result:
    None, a type, or "operand" (the type of the first operand).

    reads     positions of the operands, elements of which are read from the place on,
    writes    or written; all other places are mbarriers
    proxy     the proxy of these accesses: "generic", or "asynchronous" (TMA, matrix products)
    orders    whether it orders accesses, so that there may be a race without it
    lockstep  false if workers wait in it for others, or it runs asynchronously, so that warps run by themselves
    machine   the machines that have it: "gpu", "processor" or "any"
    """

    name: str
    operands: tuple[str, ...]
    participants: str
    meaning: str
    result: DType | str | None = None
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    proxy: str = "generic"
    orders: bool = False
    lockstep: bool = True
    machine: str = "gpu"

    def kinds(self, count: int) -> tuple[str, ...]:
        """The kinds of so many operands."""
        if not self.operands or not self.operands[-1].endswith("*"):
            return self.operands
        *first, last = self.operands
        return (*first, *[last.rstrip("*")] * (count - len(first)))


PACK = "store.pack"
TURN = "turn"
TURNS = ("schedule.take_turn", "schedule.give_turn")
RELEASE = "mbarrier.release"
SUMS = ".sums"  # suffix of the operation that computes a matrix instruction's offset term
# Suffixes of the operations that move tiles for an instruction on tile registers.
TILE_LOAD, TILE_STORE, TILE_LEFT, TILE_RIGHT = ".load", ".store", ".left", ".right"

_ROWS: tuple[Operation, ...] = (
    Operation(
        "cp.async", ("place", "place", "constant", "value"), "worker",
        "Starts copying n consecutive elements (4, 8 or 16 bytes, aligned) from GLOBAL to SHARED; where"
        " the predicate is false zeros are written and nothing is read. Complete for this worker after"
        " cp.async.wait, for others after a barrier behind that.",
        writes=(0,), reads=(1,),
    ),
    Operation("cp.async.commit", (), "worker", "Closes this worker's current group of copies.", orders=True),
    Operation(
        "cp.async.wait", ("constant",), "worker",
        "Waits until at most n of this worker's most recent groups are still in flight.",
        orders=True,
    ),
    Operation(
        "mbarrier.init", ("place", "constant"), "one",
        "Sets up an mbarrier that completes a phase after n arrivals and all expected bytes. Visible to"
        " others after a block barrier.",
        orders=True, lockstep=False,
    ),
    Operation(
        "mbarrier.arrive", ("remote",), "worker", "One arrival; orders the worker's earlier accesses.",
        orders=True, lockstep=False,
    ),
    Operation(
        RELEASE, ("remote", "value"), "worker",
        "One arrival, where the condition holds, of a worker that has waited for asynchronous products: orders"
        " what those have read, and no accesses of its own.",
        orders=True, lockstep=False,
    ),
    Operation(
        "mbarrier.expect", ("remote", "value"), "worker",
        "One arrival that also adds n bytes to what the current phase waits for.",
        orders=True, lockstep=False,
    ),
    Operation(
        "mbarrier.wait", ("place", "value"), "worker",
        "Waits until the phase of the given parity has completed (the phase before the first has"
        " parity 1). Orders the waiter after all arrivals and the bytes they expected.",
        orders=True, lockstep=False,
    ),
    Operation(
        "tma.load", ("place", "place", "place", "constant*"), "one",
        "Starts a bulk copy of a box of the given extents from GLOBAL to SHARED; elements outside the"
        " tensor arrive as zeros. The whole box's bytes are credited to the mbarrier (third operand).",
        writes=(0,), reads=(1,), proxy="asynchronous", lockstep=False,
    ),
    Operation(
        "tma.load.multicast", ("place", "place", "place", "value", "constant*"), "cluster",
        "tma.load, for the blocks of the cluster whose ranks' bits are set in the fourth operand: the box"
        " arrives at the same place of each one's SHARED memory, and its bytes at each one's mbarrier.",
        writes=(0,), reads=(1,), proxy="asynchronous", lockstep=False,
    ),
    Operation(
        "tma.load.pixels", ("place", "place", "place", "value", "value", "constant*"), "one",
        "tma.load of pixels of GLOBAL images [image, row, column, channel], the ones that a tap meets for filters in"
        " a row. The second operand is where the first filter begins; then come the tap's row and column in the"
        " filter. Constants are how many pixels, how many channels of each, the rows and columns of filters that"
        " an image has, how far apart those are, and how far above and left of an image the first one begins.",
        writes=(0,), reads=(1,), proxy="asynchronous", lockstep=False,
    ),
    Operation(
        "tma.store", ("place", "place", "constant*"), "one",
        "Starts a bulk copy of a box from SHARED (second) to GLOBAL (first); elements outside the tensor"
        " are dropped. Reads SHARED through the asynchronous proxy.",
        writes=(0,), reads=(1,), proxy="asynchronous", lockstep=False,
    ),
    Operation(
        "tma.commit", (), "one", "Closes this worker's current group of bulk stores.",
        orders=True, lockstep=False,
    ),
    Operation(
        "tma.wait", ("constant",), "one",
        "Waits until at most n of this worker's groups of bulk stores still read SHARED memory.",
        orders=True, lockstep=False,
    ),
    Operation(
        "fence.proxy.async", (), "worker",
        "Orders this worker's earlier accesses to SHARED memory before later accesses through the"
        " asynchronous proxy (TMA, wgmma).",
        orders=True, lockstep=False,
    ),
    Operation(
        "fence.block", (), "worker",
        "Orders what this worker did before, and has seen, before what it does behind, for the workers of its block.",
        orders=True,
    ),
    Operation(
        "fence.gpu", (), "worker", "fence.block, for the workers of all blocks: it orders their view.", orders=True,
    ),
    Operation(
        "barrier.named", ("value", "constant"), "warp",
        "Barrier number n (1 to 15) among m workers: whole warps, of any role. A pass may compute n from the worker.",
        orders=True, lockstep=False,
    ),
    Operation(
        "barrier.arrive", ("value", "constant"), "warp",
        "Comes to barrier number n (1 to 15) among m workers, and goes on; orders the worker's earlier accesses"
        " before what those do who wait there.",
        orders=True, lockstep=False,
    ),
    Operation(
        "cluster.arrive", (), "cluster",
        "Comes to the barrier of the cluster, with all workers of its blocks, and goes on; orders the"
        " worker's earlier accesses.",
        orders=True, lockstep=False,
    ),
    Operation(
        "cluster.wait", (), "cluster",
        "Waits until all have come to the barrier of the cluster at which this worker came last.",
        orders=True, lockstep=False,
    ),
    Operation(
        PACK, ("place", "constant", "value*"), "worker",
        "Stores consecutive elements, along the place's last dimension but one (constant 0) or its last"
        " (constant 1), which lie together in memory.",
        writes=(0,), machine="processor",
    ),
    Operation(
        TURN, ("place", "constant"), "warp",
        "Exchanges element l of lane w and element w of lane l, of the n elements from the place on, of n lanes.",
        reads=(0,), writes=(0,), machine="processor",
    ),
    Operation("shuffle.xor", ("value", "value"), "warp", "The value of lane (lane ^ n).", "operand", machine="any"),
    Operation("shuffle.index", ("value", "value"), "warp", "The value of lane n.", "operand"),
    Operation(
        "shuffle.bits", ("value", "value", "value"), "warp", "The value of lane (lane & m) | n.", "operand",
        machine="any",
    ),
    Operation(
        "shuffle.up", ("value", "value"), "warp", "The value of lane - n, its own for lane < n.", "operand",
        machine="any",
    ),
    Operation("shuffle.down", ("value", "value"), "warp", "The value of lane + n, its own past the end.", "operand"),
    Operation("vote.any", ("value",), "warp", "Whether any lane's predicate holds.", boolean),
    Operation("vote.all", ("value",), "warp", "Whether every lane's predicate holds.", boolean),
    Operation("vote.ballot", ("value",), "warp", "Bit l is lane l's predicate.", u32),
    Operation("setmaxnreg", ("constant",), "warp", "Gives up, or waits for, registers: n a worker.", lockstep=False),
    Operation(
        "wgmma.fence", (), "warp",
        "Orders register and SHARED accesses before the following matrix products.",
        orders=True, lockstep=False,
    ),
    Operation(
        "wgmma.commit", (), "warp", "Closes the current group of asynchronous matrix products.",
        orders=True, lockstep=False,
    ),
    Operation(
        "wgmma.wait", ("constant",), "warp",
        "Waits until at most n of the most recent groups of matrix products are still in flight.",
        orders=True, lockstep=False,
    ),
    Operation(
        "schedule.hold", (), "worker",
        "Does nothing. What stands before it is done, in the machine's code too, before what stands behind it.",
    ),
    Operation(
        TURNS[0], (), "worker",
        "Does nothing. What stands from here to schedule.give_turn a role's warpgroups do one after another:"
        " taskc/passes/lower_rings.py.",
    ),
    Operation(TURNS[1], (), "worker", "Does nothing. It ends a turn."),
    Operation(
        "schedule.branch", (), "worker",
        "Does nothing. The branch that it stands in is jumped over where it isn't taken.",
    ),
)  # fmt: skip

NAMED_BARRIERS = ("barrier.named", "barrier.arrive")
_REGISTERS = ("place", "place", "place")


def _of_matrices(row: MatrixInstruction) -> Operation:
    if isinstance(row, DotInstruction):
        offset = f" + {row.offset}" if row.offset else ""
        return Operation(
            row.name,
            (*_REGISTERS, "constant", "constant"),
            "worker",
            f"accumulator += the product of a pack{offset} of a row of the left matrix with one of a column"
            " of the right one, one fused multiply-add a step, from the end of the packs to their beginning."
            " They begin at their places in memory; the constants say which of the matrices is transposed"
            " there. Subnormal floats count as zeros.",
            reads=(0, 1, 2),
            writes=(0,),
            machine="processor",
        )
    if isinstance(row, TileInstruction):
        return Operation(
            row.name,
            ("constant", "constant", "constant"),
            "warp",
            "Tile += tile @ tile: of the accumulator, of the left operand and of the right one.",
            machine="processor",
        )
    if isinstance(row, WarpgroupInstruction):
        return Operation(
            row.name,
            (*_REGISTERS, "value", "constant", "constant"),
            "warpgroup",
            "Starts accumulator += left @ right (accumulator = left @ right where the fourth operand is"
            " false). The accumulator, and the left operand where it is a REGISTER tensor, are fragments,"
            " each from the given slot on. A SHARED operand begins at its place, and a constant says"
            " whether it is transposed there. All that it reads and writes is in flight until a wgmma.wait"
            " for its group.",
            reads=(0, 1, 2),
            writes=(0,),
            proxy="asynchronous",
            lockstep=False,
        )
    if isinstance(row, WarpInstruction):
        return Operation(
            row.name,
            _REGISTERS,
            "warp",
            "accumulator += left @ right on fragments in REGISTER tensors, each from the given slot on; a"
            " row of ir/target.py says which lane holds which element.",
            reads=(0, 1, 2),
            writes=(0,),
        )
    return assert_never(row)


_ROWS += tuple(map(_of_matrices, MATRIX_INSTRUCTIONS.values()))
_ROWS += tuple(
    Operation(
        f"{row.name}{SUMS}",
        ("place", "place", "constant"),
        "worker",
        f"accumulator += {row.offset} * the sum of a pack of a column of the right matrix: what the"
        " offset adds to a product. The constant says whether the matrix is transposed.",
        reads=(0, 1),
        writes=(0,),
        machine="processor",
    )
    for row in MATRIX_INSTRUCTIONS.values()
    if isinstance(row, DotInstruction) and row.offset
)


def _of_moves(row: MatrixMove) -> Operation:
    source, target = (
        ("SHARED memory", "REGISTER tensor")
        if row.is_load
        else ("REGISTER tensor", "SHARED memory")
    )
    return Operation(
        row.name,
        ("place", "place"),
        "warp",
        f"Moves {row.count} matrices of eight lines of 16 bytes from a {source} (second) to a {target} (first)."
        " Each lane's place in memory begins the line that it names, at a multiple of 16 bytes: lane 8 * i + r"
        " line r of matrix i. The registers, from the same slot on in all lanes, are 4 bytes of each matrix; a"
        " row of ir/target.py says which elements.",
        reads=(1,),
        writes=(0,),
    )


_ROWS += tuple(map(_of_moves, MATRIX_MOVES.values()))


def _of_tiles(row: TileInstruction) -> tuple[Operation, ...]:
    moved = ("constant", "place", "constant", "constant")
    meaning = (
        "Loads a tile of the {} operand from its place on; its lines are n elements from each other, and the"
        " last constant says whether the matrix is transposed in memory."
    )
    return (
        Operation(
            row.name + TILE_LOAD, ("constant", "place"), "warp",
            "Loads a tile with a fragment of the accumulator, from a slot on.",
            reads=(1,), machine="processor",
        ),
        Operation(
            row.name + TILE_STORE, ("constant", "place"), "warp",
            "Stores a tile to a fragment of the accumulator, from a slot on.",
            writes=(1,), machine="processor",
        ),
        *[
            Operation(row.name + end, moved, "warp", meaning.format(side), reads=(1,), machine="processor")
            for end, side in ((TILE_LEFT, "left"), (TILE_RIGHT, "right"))
        ],
    )  # fmt: skip


_ROWS += tuple(
    operation
    for row in MATRIX_INSTRUCTIONS.values()
    if isinstance(row, TileInstruction)
    for operation in _of_tiles(row)
)

# The operations on tile registers, with the instruction that each belongs to.
TILED: dict[str, TileInstruction] = {
    row.name + end: row
    for row in MATRIX_INSTRUCTIONS.values()
    if isinstance(row, TileInstruction)
    for end in ("", TILE_LOAD, TILE_STORE, TILE_LEFT, TILE_RIGHT)
}

# Products of each worker's own packs, and the sums for their offsets.
DOTS: dict[str, DotInstruction] = {
    name: row
    for row in MATRIX_INSTRUCTIONS.values()
    if isinstance(row, DotInstruction)
    for name in ((row.name, f"{row.name}{SUMS}") if row.offset else (row.name,))
}

OPERATIONS: dict[str, Operation] = {row.name: row for row in _ROWS}


def _is_offered(name: str) -> bool:
    is_passes = name == RELEASE or name in TURNS or OPERATIONS[name].machine == "processor"
    return not is_passes and not is_asynchronous(name)


# The operations that `tc.cuda` exposes under their own names. Asynchronous products share `tc.cuda.wgmma`.
OFFERED: tuple[Operation, ...] = tuple(row for row in _ROWS if _is_offered(row.name))


# First parts of instructions and directives, with the reason why they can't compute a value.
_REASONS: dict[str, str] = {
    word: reason
    for reason, words in (
        (
            "touches memory",
            "ld ldu st atom red cp prefetch prefetchu mbarrier membar fence tex tld4 txq suld sust"
            " sured suq ldmatrix stmatrix multimem tensormap discard applypriority alloca isspacep"
            " cvta mapa .shared .global .local .const .param .tex",
        ),
        (
            "is control flow",
            "bra brx call ret exit trap brkpt bar barrier nanosleep griddepcontrol",
        ),
        (
            "takes part in what the warp does together",
            "shfl vote match redux activemask elect movmatrix wmma mma wgmma tcgen05 setmaxnreg",
        ),
    )
    for word in words.split()
}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_INSTRUCTION = re.compile(r"(?:@!?\s*\w+\s+)?(\.?[A-Za-z_]\w*)")
_LABEL = re.compile(r"([A-Za-z_$][\w$]*)\s*:(?!:)")


def has_register(dtype: DType) -> bool:
    """Whether PTX has registers for a type: those of 16, 32 and 64 bits."""
    return dtype.kind != "bool" and dtype.bits in (16, 32, 64)


def fault_in_text(text: str, operands: int) -> str | None:
    """The error in the text of a snippet with so many operands, or None."""
    code = _COMMENT.sub(" ", text).strip()
    if not code:
        return "the text is empty"
    for match in re.finditer(r"%(\w*)", code):
        word = match[1]
        if not word.isdecimal():
            return f"'%{word}' is neither the result, %0, nor an operand"
        if int(word) > operands:
            return f"%{word} is named, and the operands end with %{operands}"
    used = {int(number) for number in re.findall(r"%(\d+)", code)}
    for number in range(operands + 1):
        if number not in used:
            return f"%{number}, {'the result' if number == 0 else 'an operand'}, isn't used"
    depth = 0
    for brace in re.findall(r"[{}]", code):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            break
    if depth:
        return "the braces don't match"
    if code[-1] not in ";}":
        return "the text doesn't end with ';'"
    for part in re.split(r"[;{}]", code):
        label = _LABEL.match(part.strip())
        if label:
            return f"'{label[1]}:' is control flow, and this computes a value"
        word = _INSTRUCTION.match(part.strip())
        if word and word[1] in _REASONS:
            return f"'{word[1]}' {_REASONS[word[1]]}, and this computes a value"
    return None


def fault_in_snippet(snippet: ir.Snippet) -> str | None:
    """The error in a snippet, except in the types of its meaning, or None."""
    for dtype in (snippet.meaning.dtype, *(parameter.dtype for parameter in snippet.parameters)):
        if not has_register(dtype):
            return f"{dtype} has no register"
    for node in walk(snippet.meaning):
        if isinstance(node, (ir.Read, ir.Address, ir.Lookup)):
            return "the meaning reads memory"
        if isinstance(node, ir.Binary) and _may_divide_by_zero(node):
            return "the meaning divides by what may be 0"
        if isinstance(node, ir.Inline):
            return "the meaning holds another snippet"
        if isinstance(node, ir.Variable) and node not in snippet.parameters:
            return f"the meaning names {node}, which is no parameter"
    return fault_in_text(snippet.text, len(snippet.parameters))


def _may_divide_by_zero(node: ir.Binary) -> bool:
    if node.operator not in ("//", "%") or not node.dtype.is_integer:
        return False
    return not isinstance(node.right, ir.Constant) or node.right.value == 0


def written(node: Node) -> Iterator[Tensor]:
    """The tensors whose elements `node` itself writes."""
    return _touched(node, Effect.WRITES)


def read(node: Node) -> Iterator[Tensor]:
    """The tensors whose elements `node` itself reads."""
    return _touched(node, Effect.READS)


def _touched(node: Node, effect: Effect) -> Iterator[Tensor]:
    yield from held_by(node, EFFECT_FIELDS[effect])
    if isinstance(node, ir.Do):
        row = OPERATIONS[node.operation]
        for number in row.writes if effect is Effect.WRITES else row.reads:
            place = node.operands[number]
            if isinstance(place, ir.Address):
                yield place.tensor
