"""The statement IR: its grammar, and the meaning of every node.

    kernel     ::= Kernel(name, parameters, workers, body, stage, ...)
    statement  ::= Sequence(statement*)                 one after another; opens a scope
                 | Let(variable, value)                 a name, until the enclosing Sequence ends
                 | Allocate(tensor, fill?)              a tensor, until the enclosing Sequence ends
                 | Peer(tensor, of, rank)               another block's tensor, likewise
                 | Store(tensor, indices, value)
                 | Atomic(operator, tensor, indices, value, result?)
                 | If(condition, then, otherwise?) | While(condition, body)
                 | For(variable, start, stop, step, body, kind)
                 | Grid(variables, shape, by, body, ...)        the blocks
                 | Pipeline(variable, extent, by, stages, body) steps whose loads may overlap
                 | Each(variables, mapping, worker?, body)      a mapping loop
                 | Move(tensor, indices, variables, shape, value, guard?, by?, how?)
                 | Mma(accumulator, left, right, how?, accumulate?, by?)
                 | Reduce(targets, sources, axis, operator) | Scan(... , exclusive)
                 | Print(text, values) | Assert(condition, text) | Breakpoint(block, worker)
                 | RingStep(operation, ring, step)              between stages selected and synchronized
                 | Barrier(scope, orders)                       from stage pipelined
                 | Roles(roles)                                 warp specialization
                 | Do(operation, operands, result?)             an operation of one target
    expression ::= Constant | Variable | Unary | Binary | Fused | Select | Cast | Bitcast
                 | Read | Lookup(table, index) | Inline(snippet, operands) | Address(tensor, indices)

Execution
---------
A kernel runs as a number of independent *blocks* of `workers` workers each. Its body is a sequence of
*phases* in uniform control flow. A phase is one execution of an Each that is nested in no other Each, or
one whole-block statement (Move, Mma, Reduce, Scan). Statements outside any Each are executed by every
worker of a block in the same way: their control flow, the scalars they bind and the cells they write are
uniform. Phases take effect one after another. Within a phase the tasks of different workers are unordered;
the tasks of one worker run in the mapping's order. Two workers that touch one element in one phase, one
of them writing it other than atomically, race, and the program is rejected. From stage `synchronized` on
workers run freely, and only barriers and waits order them; that preserves the result of the phases.

Names. A Variable is bound once (by Let, For, Grid, Pipeline, Each, Move or as a parameter) and never
changes. What changes is a Tensor; a mutable scalar is a LOCAL tensor of shape (). Variables and tensors
are compared by identity; their names are for people.

Memory. GLOBAL tensors are parameters; SHARED ones belong to a block; a TILE is distributed over the
registers of a block's workers by its mapping `owners`; a LOCAL one is private to a worker, or, inside an
Each, to a task. REGISTER tensors are what tiles become at stage scalar: one array a worker, indexed by
slots known at compile time. BARRIER tensors are mbarriers. Uninitialized reads are errors. An access is
legal when every index lies in [0, extent); what an access in a branch not taken would touch is not asked.

Clusters. Blocks of a cluster run at the same time; `rank` numbers them. A Peer names, for each worker, the
tensor `of` in the block whose rank the worker gives: the same memory, of the same form. A peer's tensor can be
read, stored, updated atomically, and named where an operation takes a "remote" place; nothing else. Such an access
happens after that block has begun, and the block doesn't end before it.

Replication. Where several workers of an Each have one task, all of them run it; stores to SHARED and GLOBAL
memory are done by the first owner alone, stores to a TILE or a LOCAL by every owner to its own copy.

Evaluation. Select, `and` and `or` evaluate only the operands that decide them. Index arithmetic is in i64
until stage lean. `Fused` is a*b+c rounded once; nothing else is contracted and no pass reassociates. The
meaning of every operator is `taskc.ir.arithmetic`.

Inline. The value is that of the snippet's `meaning` with its parameters bound to the operands; a backend
for the language of its `text` emits that instead. A meaning is closed: it names its parameters and nothing
else, reads no memory and has no Inline in it. So no pass looks into a snippet, and nothing can be captured;
to a pass an Inline is a pure function that it doesn't know.

Whole-block statements
----------------------
Move: for each index tuple of `shape`, bound to `variables`: where `guard` holds, tensor[indices] = value.
The tasks are unordered and by whichever workers the compiler likes; `by`, once chosen, is a mapping that
says who does which, and `how` is the instruction (a name of ir/target.py).
Mma: accumulator[i, j] = fused(left[i, q], right[q, j], accumulator[i, j]) for q ascending, operands first
rounded to the type `by`, if there is one, and converted to the accumulator's; where `accumulate` is false,
the accumulator starts from zero. An asynchronous instruction is `how` from the start, its author's choice:
from stage synchronized on it runs asynchronously to the workers that issued it, until they wait (`wgmma.wait`), and
until then nobody may touch its registers or overwrite what it reads.
Reduce: target = source folded over `axis`. Each worker folds its own slots in order; the partial results of
the workers that share an element of the target, in ascending order of their position along the axis, are
then folded as a tree: with n of them, h = (n + 1) // 2, the i-th takes in the (i + h)-th for i + h < n; again
with n = h, until one is left. So the sides of a fold aren't in their order along the axis: it commutes, too.
Scan: the prefixes along `axis`, from the mapping's innermost digits out (ir/scan_order.py). An exclusive one has
what the inclusive one has one place before, and first what changes nothing.
Both go over several tiles of one mapping as over one tile of tuples. What folds is an operator, or a Combine,
an associative function of a left and a right tuple. It is closed: its values name its parameters and its Lets
and nothing else, and read no memory. So no pass looks into it.

Rings
-----
A Ring groups the block values of one pipelined loop. Each of its tensors has a leading dimension of
`stages` slots; step k lives in slot k % stages. `acquire(k)`: the slot is free again; `commit(k)`: its
copies are issued; `wait(k)`: they have arrived and every reader may see them; `release(k)`: its last reader
has completed. Slots of k and k + d, 0 < d < stages, are distinct by definition. A ring counts its steps from
its allocation on: where a block runs over several tiles they go on from one tile to the next.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from math import prod
from typing import Annotated, TypeAlias

import numpy as np

from taskc.dataclass import dataclass
from taskc.errors import NOWHERE, Location
from taskc.ir.arithmetic import COMPARISONS
from taskc.ir.mapping import Mapping
from taskc.ir.types import DType, boolean, i32, i64

MOST_PROCESSORS = 1 << 12
TURNS = ("tiles", "products")
STAGES = ("parsed", "selected", "pipelined", "synchronized", "scalar", "lean")

GLOBAL, SHARED, TILE, LOCAL, REGISTER, BARRIER = (
    "global",
    "shared",
    "tile",
    "local",
    "register",
    "barrier",
)
SCOPES = (GLOBAL, SHARED, TILE, LOCAL, REGISTER, BARRIER)


def _location() -> Location:
    return field(default=NOWHERE, compare=False, repr=False, kw_only=True)


# --- names -----------------------------------------------------------------------------------


@dataclass(eq=False, frozen=True, slots=True)
class Variable:
    """An immutable scalar. `multiple` is a known divisor, of a symbolic dimension for example.

    most  the size that memory is planned for, of a dimension that grows from call to call; larger ones work, too
    """

    name: str
    dtype: DType = i64
    multiple: int = 1
    loc: Location = _location()
    most: int | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Address bits [base, base + bits) are XORed with the `bits` bits that lie `shift` higher.

    It acts on the element offset within the tensor: offset ^ (((offset >> shift) & mask) << base),
    with mask = 2**bits - 1 and shift > base counted from bit 0.
    """

    bits: int
    base: int
    shift: int


@dataclass(eq=False, frozen=True, slots=True)
class Tensor:
    """Something that is indexed. An entry of `shape` is an int or, for parameters, an expression.

    layout    a one-worker mapping: an element's address is its slot; row-major when None
    given     of a parameter: the shape of a call's argument, where the kernel sees it reshaped
    owners    of a TILE: who holds which element in which register
    role      of a parameter: "in", "out" (every element is stored exactly once), "inout"
    constant  a block value: written by the one Move that follows its Allocate, then only read
    offset    of a SHARED tensor, in bytes, once memory is overlaid
    held      of a parameter that is bytes, once what is read is unpacked: the one whose elements lie in them
    """

    name: str
    dtype: DType
    shape: tuple[int | Expression, ...]
    scope: str
    layout: Mapping | None = None
    swizzle: Swizzle | None = None
    owners: Mapping | None = None
    role: str = "in"
    constant: bool = False
    offset: int | None = None
    given: tuple[int | Expression, ...] | None = None
    held: Tensor | None = None
    loc: Location = _location()

    @property
    def argument(self) -> Tensor:
        """The parameter as its author declared it, which is what callers see."""
        return self if self.held is None else self.held

    @property
    def argument_shape(self) -> tuple[int | Expression, ...]:
        """The shape of a call's argument."""
        declared = self.argument
        return declared.shape if declared.given is None else declared.given

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False, frozen=True, slots=True)
class Ring:
    """The block values of one pipelined loop, and their transport.

    transport: "registers" (staged through a tile), "cp.async" or "tma".
    """

    name: str
    tensors: tuple[Tensor, ...]
    stages: int
    transport: str

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False, frozen=True, slots=True)
class Table:
    """A constant array of integers, for enumerated mappings."""

    name: str
    values: np.ndarray

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False, frozen=True, slots=True)
class Snippet:
    """A value in a target's language (PTX), with its meaning: `meaning` over `parameters`.

    text  names the result %0 and the operands %1, %2, ...; `taskc.ir.operations` says what it may hold
    """

    name: str
    text: str
    parameters: tuple[Variable, ...]
    meaning: Expression

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False, frozen=True, slots=True)
class Combine:
    """An associative function of two tuples: `values` of the parameters `left` and `right`, and of the Lets."""

    name: str
    left: tuple[Variable, ...]
    right: tuple[Variable, ...]
    lets: tuple[Let, ...]
    values: tuple[Expression, ...]

    def __repr__(self) -> str:
        return self.name


# --- effects ---------------------------------------------------------------------------------


class Effect(Enum):
    """The effect of a node on the name in a field with this mark. A `Do`'s effects follow from its operation.

    BINDS   the name is new; it ends with the enclosing Sequence or, where the node has a body or is a
            Move, with the node
    READS   elements of the tensor are read
    WRITES  elements of the tensor are written
    """

    BINDS = "binds"
    READS = "reads"
    WRITES = "writes"


# Traversal and rewriting know nodes only by the types of their fields: see ir/rewrite.py.
BoundVariable: TypeAlias = Annotated[Variable, Effect.BINDS]
BoundTensor: TypeAlias = Annotated[Tensor, Effect.BINDS]
ReadTensor: TypeAlias = Annotated[Tensor, Effect.READS]
WrittenTensor: TypeAlias = Annotated[Tensor, Effect.WRITES]
UpdatedTensor: TypeAlias = Annotated[ReadTensor, Effect.WRITES]


# --- expressions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Constant:
    """`value` is exactly one of its type's: a float is rounded, an integer in range, a bool a bool."""

    value: bool | int | float
    dtype: DType = i64
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Unary:
    operator: str
    operand: Expression
    dtype: DType = field(init=False, compare=False, repr=False)
    loc: Location = _location()

    def __post_init__(self) -> None:
        is_test = self.operator in ("not", "isnan")
        object.__setattr__(self, "dtype", boolean if is_test else self.operand.dtype)


@dataclass(frozen=True, slots=True)
class Binary:
    """Both operands have one type. `and` and `or` are lazy."""

    operator: str
    left: Expression
    right: Expression
    dtype: DType = field(init=False, compare=False, repr=False)
    loc: Location = _location()

    def __post_init__(self) -> None:
        is_test = self.operator in COMPARISONS
        object.__setattr__(self, "dtype", boolean if is_test else self.left.dtype)


@dataclass(frozen=True, slots=True)
class Fused:
    """left * right + addend, rounded once."""

    left: Expression
    right: Expression
    addend: Expression
    dtype: DType = field(init=False, compare=False, repr=False)
    loc: Location = _location()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.addend.dtype)


@dataclass(frozen=True, slots=True)
class Select:
    condition: Expression
    then: Expression
    otherwise: Expression
    dtype: DType = field(init=False, compare=False, repr=False)
    loc: Location = _location()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.then.dtype)


@dataclass(frozen=True, slots=True)
class Cast:
    operand: Expression
    dtype: DType
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Bitcast:
    """Reinterpret the bits as a type of the same size; one of the two types, or both, is a float."""

    operand: Expression
    dtype: DType
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Read:
    """An element of a tensor; of a flattened one (stage lean), by its linear offset."""

    tensor: ReadTensor
    indices: tuple[Expression, ...]
    dtype: DType = field(init=False, compare=False, repr=False)
    loc: Location = _location()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.tensor.dtype)


@dataclass(frozen=True, slots=True)
class Lookup:
    table: Table
    index: Expression
    dtype: DType = field(init=False, default=i64, compare=False, repr=False)
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Inline:
    """A snippet applied to operands of its parameters' types; see the head of this file."""

    snippet: Snippet
    operands: tuple[Expression, ...]
    dtype: DType = field(init=False, compare=False, repr=False)
    loc: Location = _location()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.snippet.meaning.dtype)


@dataclass(frozen=True, slots=True)
class Address:
    """A place in memory, as an operand of `Do`; it has no value of its own."""

    tensor: Tensor
    indices: tuple[Expression, ...]
    dtype: DType = field(init=False, compare=False, repr=False)
    loc: Location = _location()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.tensor.dtype)


Expression = (
    Constant
    | Variable
    | Unary
    | Binary
    | Fused
    | Select
    | Cast
    | Bitcast
    | Read
    | Lookup
    | Inline
    | Address
)


# --- statements ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sequence:
    statements: tuple[Statement, ...]
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Let:
    variable: BoundVariable
    value: Expression
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Allocate:
    """`fill`, a constant, initializes every element; without it they are uninitialized.

    Only what each worker has for itself (TILE, LOCAL, REGISTER) is filled. What a block shares is
    stored to by somebody, and ordered before its readers as any other store: by a Move, for example.
    """

    tensor: BoundTensor
    fill: Constant | None = None
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Peer:
    """`tensor` names the memory of `of`, SHARED or BARRIER, in the block with this rank in the cluster."""

    tensor: BoundTensor
    of: Tensor
    rank: Expression
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Store:
    tensor: WrittenTensor
    indices: tuple[Expression, ...]
    value: Expression
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Atomic:
    """tensor[indices] = tensor[indices] operator value, indivisibly; `result` is the old value.

    Operators: "+", "min", "max", "&", "|", "^", "exchange"; and of `tc.cuda`, whose elements have 4 or 8 bytes,
    "acquire", which changes nothing, and "release", which is an exchange. Everything that a worker does after an
    "acquire" happens after everything that another did before the "release" whose value it sees.
    """

    operator: str
    tensor: UpdatedTensor
    indices: tuple[Expression, ...]
    value: Expression
    result: BoundVariable | None = None
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class If:
    condition: Expression
    then: Statement
    otherwise: Statement | None = None
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class While:
    condition: Expression
    body: Statement
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class For:
    """variable = start, start + step, ... while below stop (above it, for a negative step).

    kind: "serial"; "unroll": the bounds are constant, and backends unroll it fully; "vector" (stage
    lean): as unroll, and its iterations run as one, statement by statement. It holds Lets and Stores;
    no iteration touches what another one stores. In GLOBAL and SHARED memory, which start at
    multiples of 16 bytes, an access is to the same element in all of them (a read), or one access
    to neighbours, at a multiple of their bytes (of 16, for more than that).
    """

    variable: BoundVariable
    start: Expression
    stop: Expression
    step: int
    body: Statement
    kind: str = "serial"
    loc: Location = _location()


GROUPED = (
    "grouped",
    "backwards",
)  # orders of a Grid that go column by column within groups of rows


@dataclass(frozen=True, slots=True)
class Grid:
    """One execution of the body for each tile of `shape`; `variables` are the tile's origin.

    order       the dimensions from slowest to fastest, or ("grouped", n): columns within
                groups of n tile rows, which keeps a working set in the cache; or
                ("backwards", n): the same from the last column to the first
    persistent  as many blocks as fit the machine, each running over several tiles; from stage
                selected on that is a loop in the body of a plain grid
    cluster     blocks per dimension that are scheduled together; they divide the numbers of tiles,
                and are numbered one after another, row-major within the cluster
    """

    variables: tuple[BoundVariable, ...]
    shape: tuple[int | Expression, ...]
    by: tuple[int, ...]
    body: Statement
    order: tuple[str | int, ...] = ()
    persistent: bool = False
    cluster: tuple[int, ...] = ()
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """variable = 0, by, 2*by, ... below extent; loads of later steps may overlap a step's work.

    specialize  whether a separate producer does the loads
    turns       with a producer, "tiles": two groups of workers alternate over a block's tiles;
                "products": warpgroups issue a step's products one after another
    """

    variable: BoundVariable
    extent: Expression
    by: int
    stages: int
    body: Statement
    transport: str | None = None
    specialize: bool = False
    turns: str | None = None
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Each:
    """Every worker runs the body for its own tasks, in order.

    `worker` is the worker's number for the mapping; None means its number in the current group.
    """

    variables: tuple[BoundVariable, ...]
    mapping: Mapping
    worker: Expression | None
    body: Statement
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Move:
    """Copies a box of elements; at stage parsed `by` and `how` are None unless the user gave `by`."""

    tensor: WrittenTensor
    indices: tuple[Expression, ...]
    variables: tuple[BoundVariable, ...]
    shape: tuple[int, ...]
    value: Expression
    guard: Expression | None = None
    by: Mapping | None = None
    how: str | None = None
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix within a tensor: the last two dimensions from `origin` on, perhaps transposed.

    `shape` is that of the matrix in the product, after transposition.
    """

    tensor: ReadTensor
    origin: tuple[Expression, ...]
    shape: tuple[int, int]
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Mma:
    accumulator: UpdatedTensor
    left: Operand
    right: Operand
    how: str | None = None
    accumulate: Expression | None = None
    by: DType | None = None
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Reduce:
    """Operators: "+", "*", "min", "max", "&", "|", "^", or a Combine. The targets are tiles without the axis.

    Where no axis is left they have the shape (1,), and each worker holds their one element.
    """

    targets: tuple[WrittenTensor, ...]
    sources: tuple[ReadTensor, ...]
    axis: int
    operator: str | Combine
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Scan:
    """Like a Reduce, but each target has the shape of its source. With a Combine it is inclusive."""

    targets: tuple[WrittenTensor, ...]
    sources: tuple[ReadTensor, ...]
    axis: int
    operator: str | Combine
    exclusive: bool = False
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Print:
    """`text` has one `{}` for each value."""

    text: str
    values: tuple[Expression, ...]
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Assert:
    condition: Expression
    text: str
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """The simulator can stop here, in a block and for a worker, None for any; it computes nothing.

    It names nothing that it shows, so that it keeps nothing alive: what can be seen is what is in
    scope at the stage that runs. Backends other than the simulator leave it out.
    """

    block: int | None = None
    worker: int | None = None
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class RingStep:
    """operation: "acquire", "commit", "wait", "release", "enter" or "leave"."""

    operation: str
    ring: Ring
    step: Expression
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Barrier:
    """scope: "warp", "warpgroup", "role", "block" or "grid". `orders` names the conflict that only it orders.

    A worker that arrives waits until all workers of the scope have arrived, and goes on after everything they
    did before. A warp is 32 workers, a warpgroup 128, from a multiple of that on. All blocks of a kernel with
    a barrier of the grid run at the same time: a launch of more than the machine holds at once is refused.
    That barrier orders accesses to GLOBAL memory, too, except bulk copies of memory that the kernel writes.
    """

    scope: str
    orders: str = ""
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Role:
    """The body of some of a block's warps. `first` and `workers` count workers, helpers included."""

    name: str
    first: int
    workers: int
    body: Statement


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles run at the same time; none may contain a block-wide barrier."""

    roles: tuple[Role, ...]
    loc: Location = _location()


@dataclass(frozen=True, slots=True)
class Do:
    """One of the target operations of `taskc.ir.operations`, which lists their meaning."""

    operation: str
    operands: tuple[Expression, ...]
    result: BoundVariable | None = None
    loc: Location = _location()


Statement = (
    Sequence
    | Let
    | Allocate
    | Peer
    | Store
    | Atomic
    | If
    | While
    | For
    | Grid
    | Pipeline
    | Each
    | Move
    | Mma
    | Reduce
    | Scan
    | Print
    | Assert
    | Breakpoint
    | RingStep
    | Barrier
    | Roles
    | Do
)


# --- kernels ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kernel:
    """A program of one launch.

    parameters  tensors (GLOBAL) and scalar variables, in the order of the call
    dimensions  symbolic dimensions (variables) that the parameters' shapes use
    workers     compute workers of a block; `helpers` counts extra ones (producer warps)
    worker      the worker's own number within the block, and
    block       the number of the block: used in the body from stage scalar on
    processors  number of the device's processors, known at launch: 1 to MOST_PROCESSORS blocks of a persistent grid
    blocks      number of launched blocks, from stage scalar on (before, the Grid determines it)
    cluster     number of consecutive blocks that are scheduled together; before stage scalar, as for blocks
    """

    name: str
    parameters: tuple[Tensor | Variable, ...]
    dimensions: tuple[Variable, ...]
    workers: int
    body: Statement
    stage: str = "parsed"
    target: str = "generic"
    helpers: int = 0
    worker: Variable = field(default_factory=lambda: Variable("worker"), compare=False)
    block: Variable = field(default_factory=lambda: Variable("block"), compare=False)
    processors: Variable = field(default_factory=lambda: Variable("processors", i32), compare=False)
    blocks: Expression | None = None
    cluster: int = 1
    notes: tuple[tuple[str, Location], ...] = field(default=(), compare=False)
    loc: Location = _location()


def constant(value: int) -> Constant:
    """An index constant."""
    return Constant(value, i64)


def cluster_of(kernel: Kernel) -> int:
    """The number of blocks that are scheduled together, at any stage."""
    top = kernel.body.statements if isinstance(kernel.body, Sequence) else (kernel.body,)
    grids = [statement for statement in top if isinstance(statement, Grid)]
    return prod(grids[0].cluster) if grids else kernel.cluster


def is_parameter_output(tensor: Tensor) -> bool:
    return tensor.scope == GLOBAL and tensor.role in ("out", "inout")
