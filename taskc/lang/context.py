"""The state of a parse: the position, the meanings of names, and the statements so far.

The end of the file lists the syntax of Python that the language doesn't have, each with its own message.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Mapping as Dictionary
from dataclasses import field, replace
from typing import Any, TypeAlias, TypeVar

from taskc.dataclass import dataclass
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.code_size import too_deep
from taskc.ir.mapping import Mapping
from taskc.ir.printer import expression_text
from taskc.ir.rewrite import map_statements, substitute, walk
from taskc.ir.types import DType, i64
from taskc.lang.jumps import Leaving
from taskc.lang.names import word_for
from taskc.lang.sizes import Dimension, FloatOfSizes, OfSizes, Size
from taskc.lang.source import Node, Source
from taskc.lang.values import (
    NOTHING,
    Cell,
    Choice,
    TilesLoop,
    Untyped,
    Value,
    describe,
    did_you_mean,
    has_float,
    plain,
)

Located: TypeAlias = "Node | Location"
Kind = TypeVar("Kind")

UNBOUND = object()
_BELOW_PHASES = "a kernel of phases needs none; to go below them, use @tc.cuda.kernel(workers=...)"


@dataclass(slots=True)
class Scope:
    """The names of one body, and how far its statements have been parsed.

    last         for each name the position of the last statement of the body that assigns it
    transparent  a branch that was chosen while parsing: its names are those of the body around
    """

    names: dict[str, Value]
    last: dict[str, int] = field(default_factory=dict)
    position: int = 0
    transparent: bool = False
    cells: list[Cell] = field(default_factory=list)


@dataclass(slots=True)
class FunctionFrame:
    """One function that is being parsed: the kernel, or a helper inlined in it."""

    source: Source
    outside: Dictionary[str, Value]  # what a name means that isn't local
    scopes: list[Scope]
    ended: dict[str, Location] = field(default_factory=dict)  # names of bodies that are over
    target: str | None = None  # what the statement that calls it assigns
    result: Value = NOTHING
    returned: bool = False
    loops: list[Leaving] = field(default_factory=list)


class Context:
    """A kernel being parsed. Each construct is a function of it, in the table of its kind.

    is_cuda_kernel  a kernel of `tc.cuda`: its workers run freely, and its author places the barriers
    top      the statements of the kernel's body, and
    block    those of the body that is being parsed
    each     the mappings of the loops around, outermost first
    group    how many workers run the current statement, from number `first` on
    definitions  what the Lets of index arithmetic over unchanging names stand for
    lazy     why nothing may be executed before the current expression, or None
    peers    what is another block's memory
    capture  what a value from around the function is to it
    target   the name that the current statement assigns
    root     the expression that is the current statement's whole right-hand side
    """

    def __init__(
        self,
        name: str,
        workers: int,
        is_cuda_kernel: bool,
        target: str,
        evaluators: dict[type, Callable[[Context, Any], Value]],
        executors: dict[type, Callable[[Context, Any], None]],
    ) -> None:
        self.name = name
        self.group = workers
        self.first = 0
        self.is_cuda_kernel = is_cuda_kernel
        self.worker = ir.Variable("worker")
        self.block_number = ir.Variable("block")
        # Of all that is parsed, if no line of Python has made it.
        self.place: Location | None = None
        self.target_name = target
        self.tiles: TilesLoop | None = None  # the loop over tiles around here, and
        self.cluster = 1  # how many blocks a cluster has there,
        self.origin: tuple[ir.Variable, ...] = ()  # and where a tile begins
        self.peers: set[ir.Tensor] = set()
        self.dimensions: dict[Dimension, ir.Variable] = {}
        self.frames: list[FunctionFrame] = []
        self.top: list[ir.Statement] = []
        self.block = self.top
        self.each: list[Mapping] = []
        self.in_move = False
        self.in_role = False
        self.may_name_worker = is_cuda_kernel
        self.lazy: str | None = None
        self.target: str | None = None
        self.root: ast.expr | None = None
        self.definitions: dict[ir.Variable, ir.Expression] = {}
        self.nonnegative: set[ir.Variable] = set()
        self.capture: Callable[[Value], Value] = lambda value: value
        self.results: set[ir.Variable] = set()  # of operations, not yet named by a statement
        self.fixed: dict[ir.Variable, str] = {}  # variables that no statement may assign
        self.divergent: dict[ir.Tensor, Location] = {}  # private memory written in a mapping loop
        self.fits: dict[tuple[ir.Expression, DType], ir.Assert] = {}
        self._sizes: dict[ir.Variable, bool] = {}  # of names: whether they are sizes
        self.uniform_reads: list[tuple[ir.Tensor, Location]] = []
        self._late: dict[int, tuple[ir.Sequence, ir.Store]] = {}
        self._evaluators = evaluators
        self._executors = executors

    # Where.

    @property
    def frame(self) -> FunctionFrame:
        return self.frames[-1]

    @property
    def scope(self) -> Scope:
        return self.frames[-1].scopes[-1]

    def locate(self, node: Located) -> Location:
        if isinstance(node, Location):
            return node
        return self.place or self.frames[-1].source.locate(node)

    def span(self, start: Node, end: Node) -> Location:
        return self.frames[-1].source.span(start, end)

    def error(
        self,
        message: str,
        node: Located,
        hint: str | None = None,
        note: tuple[str, Location] | None = None,
    ) -> CompileError:
        """The error to raise."""
        return CompileError(message, self.locate(node), hint, (note,) if note else ())

    def expect(
        self,
        kinds: type[Kind] | tuple[type[Kind], ...],
        value: Value,
        node: Located,
        what: str,
        hint: str | None = None,
    ) -> Kind:
        """A value of these kinds as it is; for any other an error that begins with what it has to be."""
        if not isinstance(value, kinds):
            raise self.error(f"{what}, and this is {describe(value)}", node, hint)
        return value

    # What.

    def evaluate(self, node: ast.expr) -> Value:
        evaluator = self._evaluators.get(type(node))
        if evaluator is None:
            raise self.error(f"{type(node).__name__} is not a part of the language", node)
        return evaluator(self, node)

    def evaluate_lazily(self, node: ast.expr, why: str) -> Value:
        """Evaluate an expression that runs any number of times, or never."""
        before, self.lazy = self.lazy, self.lazy or why
        try:
            return self.evaluate(node)
        finally:
            self.lazy = before

    def execute(self, statement: ast.stmt) -> None:
        executor = self._executors.get(type(statement))
        if executor is None:
            raise self.error(f"{type(statement).__name__} is not a part of the language", statement)
        try:
            executor(self, statement)
        except RecursionError:
            raise too_deep(self.locate(statement)) from None

    def run(self, statements: Iterable[ast.stmt], scope: Scope) -> None:
        """Parse statements into the current block, in a scope."""
        statements = list(statements)
        assigned = self.frame.source.assigned
        for position, statement in enumerate(statements):
            for name in assigned[id(statement)]:
                scope.last[name] = position
        self.frame.scopes.append(scope)
        for scope.position, statement in enumerate(statements):
            self.execute(statement)
            self.target = self.root = None
            if self.frame.returned:
                break
        self.frame.scopes.pop()
        if scope.transparent:
            self.scope.cells.extend(scope.cells)
            return
        for cell in scope.cells:
            if cell.tensor is None:
                self.default_type(cell)
        for name, value in scope.names.items():
            self._remember(name, value)

    def body(
        self, statements: Iterable[ast.stmt], names: dict[str, Value] | None = None
    ) -> ir.Statement:
        """Parse statements as a body of their own."""
        before, self.block = self.block, []
        self.run(statements, Scope(names or {}))
        block, self.block = self.block, before
        return block[0] if len(block) == 1 else ir.Sequence(tuple(block))

    def emit(self, statement: ir.Statement) -> None:
        self.block.append(statement)

    def require_statement(self, what: str, node: Located) -> None:
        """Raise an error where nothing can be executed before the current expression."""
        if self.lazy is not None:
            raise self.error(
                f"{what} can't be used in {self.lazy}", node, "assign its result to a name before"
            )

    def require_phase(self, what: str, node: Located) -> None:
        """Raise an error inside a mapping loop, or where nothing can be executed."""
        if self.each:
            raise self.error(
                f"{what} is for the whole block, and can't be used in a mapping loop",
                node,
                "move it out of the loop",
            )
        self.require_statement(what, node)

    def require_cuda_kernel(self, what: str, node: Located, hint: str = _BELOW_PHASES) -> None:
        """Raise an error in a kernel of phases."""
        if not self.is_cuda_kernel:
            raise self.error(f"{what} is only for tc.cuda kernels", node, hint)

    def require_cluster(self, what: str, node: Located) -> None:
        """Raise an error where a block is in no cluster."""
        if self.cluster == 1:
            raise self.error(
                f"{what} is for blocks of a cluster, and there is none",
                node,
                "say how many blocks it has: for i in tc.tiles(n, by=64, cluster=2): ...",
            )

    # Names.

    def lookup(self, name: str, node: Node) -> Value:
        for scope in reversed(self.frame.scopes):
            if name in scope.names:
                return scope.names[name]
        frame = self.frame
        if name in frame.source.locals:
            if name in frame.ended:
                raise self.error(
                    f"'{name}' is assigned only in a body that has ended",
                    node,
                    f"give '{name}' a value before that loop or branch",
                    ("assigned here", frame.ended[name]),
                )
            raise self.error(f"'{name}' is used before it has a value", node)
        try:
            value = frame.outside[name]
        except KeyError:
            raise self.error(f"'{name}' is not defined", node, self._suggestion(name)) from None
        return self.symbolic(plain(value))

    def require_known(self, node: ast.Name, *called: str) -> None:
        """Raise an error for an undefined name that other languages have, with the word for it here."""
        hint = next(filter(None, map(word_for, called)), None)
        if hint is None or node.id in self.frame.source.locals or node.id in self.frame.outside:
            return
        if not any(node.id in scope.names for scope in self.frame.scopes):
            raise self.error(f"'{node.id}' is not defined", node, hint)

    def binding(self, name: str) -> tuple[Value, bool]:
        """The value of a local name, UNBOUND if it has none, and whether the current body bound it."""
        names = self.scope.names
        for other in reversed(self.frame.scopes):
            if name in other.names:
                return other.names[name], other.names is names
        return UNBOUND, True

    def will_change(self, name: str) -> bool:
        """Whether a later statement of the body where `name` is being assigned assigns it again."""
        for scope in reversed(self.frame.scopes):
            if scope.last.get(name, -1) > scope.position:
                return True
            if not scope.transparent:
                return False
        return False

    def let(self, name: str, value: ir.Expression) -> ir.Variable:
        """Name a value, from the current statement on."""
        variable = ir.Variable(name, value.dtype, loc=value.loc)
        if value.dtype is i64 and not any(type(node) is ir.Read for node in walk(value)):
            self.definitions[variable] = value
        self.emit(ir.Let(variable, value, loc=value.loc))
        return variable

    def name_for(self, node: ast.expr, default: str) -> str:
        """The name for an expression's result: the statement's target if the expression is its whole value."""
        return self.target if self.target and node is self.root else default

    def symbol(self, dimension: Dimension) -> ir.Variable:
        """The variable that stands for a symbolic dimension in this kernel."""
        variable = self.dimensions.get(dimension)
        if variable is None:
            variable = dimension.new_variable()
            self.dimensions[dimension] = variable
            self.nonnegative.add(variable)
            self.fixed[variable] = "a dimension"
        return variable

    def symbolic(self, value: Value) -> Value:
        """A constant from outside, with its symbolic dimensions as variables of this kernel."""
        value = self.capture(value)
        if isinstance(value, Size):
            return value.over(self.symbol)
        if isinstance(value, FloatOfSizes):
            return FloatOfSizes(value.over(self.symbol), {})
        if type(value) in (tuple, list) and any(isinstance(item, OfSizes) for item in value):
            return type(value)(map(self.symbolic, value))
        return value

    def is_size(self, value: Value) -> bool:
        """Whether it is an integer computed of dimensions and Python's numbers alone, which has no type of its own."""
        if not isinstance(value, (ir.Variable, ir.Binary, ir.Unary)) or value.dtype is not i64:
            return False
        parts = list(walk(value))
        if not all(
            isinstance(part, (ir.Variable, ir.Binary, ir.Constant, ir.Unary)) for part in parts
        ):
            return False
        names = [part for part in parts if isinstance(part, ir.Variable)]
        return bool(names) and all(map(self._names_size, names))

    def _names_size(self, variable: ir.Variable) -> bool:
        known = self._sizes.get(variable)
        if known is None:
            is_dimension = variable in self.dimensions.values()
            known = is_dimension or self.is_size(self.definitions.get(variable))
            self._sizes[variable] = known
        return known

    def of_size(self, size: ir.Expression, dtype: DType) -> ir.Cast:
        """A size as a number of another type, which it has to fit, as Python's numbers have: the call checks that."""
        written = size
        while names := {it for it in walk(written) if it in self.definitions}:
            written = substitute(written, {name: self.definitions[name] for name in names})
        if dtype.maximum < 1 << 63 and (written, dtype) not in self.fits:
            self.fits[written, dtype] = _fits(written, dtype)
        return ir.Cast(size, dtype, loc=size.loc)

    def _remember(self, name: str, value: Value) -> None:
        loc = value.loc if isinstance(value, (Cell, ir.Tensor, ir.Variable)) else None
        if loc is not None and loc.line:
            self.frame.ended[name] = loc

    def _suggestion(self, name: str) -> str | None:
        known = {other for scope in self.frame.scopes for other in scope.names}
        known |= {*self.frame.outside, *_BUILTINS}
        return did_you_mean(name, sorted(known))

    # Cells.

    def new_cell(self, name: str, value: ir.Expression, loc: Location) -> Cell:
        cell = Cell(name, loc)
        tensor = self._declared(cell, value.dtype)
        if isinstance(value, ir.Constant):
            self.emit(ir.Allocate(tensor, value, loc=loc))
        else:
            self.emit(ir.Allocate(tensor, loc=loc))
            self.emit(ir.Store(tensor, (), value, loc=loc))
        return cell

    def pending_cell(self, name: str, value: Untyped, loc: Location, value_loc: Location) -> Cell:
        """A cell whose type the first typed value that meets it decides."""
        cell = Cell(name, loc, None, value, value_loc, self.block, len(self.block))
        self.emit(ir.Sequence(()))
        if not isinstance(value, (int, float)):
            self.emit(ir.Sequence(()))  # of what is no constant a store follows
        self.scope.cells.append(cell)
        return cell

    def decide(self, cell: Cell, initial: ir.Expression) -> ir.Tensor:
        tensor = self._declared(cell, initial.dtype)
        if isinstance(initial, ir.Constant):
            cell.place[cell.index] = ir.Allocate(tensor, initial, loc=cell.loc)
        else:
            cell.place[cell.index] = ir.Allocate(tensor, loc=cell.loc)
            cell.place[cell.index + 1] = ir.Store(tensor, (), initial, loc=cell.loc)
        for later in cell.stores:
            store = ir.Store(tensor, (), later.make(tensor.dtype), loc=later.loc)
            self._late[id(later.placeholder)] = later.placeholder, store
            if later.in_loop:
                self.divergent.setdefault(tensor, later.loc)
        return tensor

    def default_type(self, cell: Cell) -> ir.Tensor:
        assert cell.initial_loc is not None
        if any(map(has_float, (cell.initial, *(store.value for store in cell.stores)))):
            raise self.error(
                f"the type of '{cell.name}' isn't known",
                cell.loc,
                f"say it where it gets its first value: {in_f32(cell.initial)}",
            )
        return self.decide(cell, _in_i64(cell.initial, cell.initial_loc))

    def _checked(self, block: list[ir.Statement]) -> list[ir.Statement]:
        """The statements after the checks of sizes, which go into a grid's body where there is one."""
        asked = tuple(self.fits.values())
        if not asked:
            return block
        if not any(isinstance(statement, ir.Grid) for statement in block):
            return [*asked, *block]

        def asking(body: ir.Statement) -> ir.Sequence:
            """The body after the checks, flat: passes look for the statements of the grid's body."""
            own: tuple[ir.Statement, ...] = (body,)
            if isinstance(body, ir.Sequence) and id(body) not in self._late:
                own = body.statements
            return ir.Sequence((*asked, *own), loc=body.loc)

        return [
            replace(it, body=asking(it.body)) if isinstance(it, ir.Grid) else it for it in block
        ]

    def finished(self) -> ir.Statement:
        """The kernel's body, with the stores whose types were decided late."""
        block = self._checked(self.top)

        def visit(statement: ir.Statement) -> ir.Statement:
            late = self._late.get(id(statement))
            return late[1] if late is not None else map_statements(statement, visit)

        if self._late:
            block = [visit(statement) for statement in block]
        return block[0] if len(block) == 1 else ir.Sequence(tuple(block))

    def _declared(self, cell: Cell, dtype: DType) -> ir.Tensor:
        cell.tensor = ir.Tensor(cell.name, dtype, (), ir.LOCAL, loc=cell.loc)
        return cell.tensor

    def note_write(self, tensor: ir.Tensor, loc: Location) -> None:
        if self.each and tensor.scope == ir.LOCAL:
            self.divergent.setdefault(tensor, loc)

    def note_read(self, tensor: ir.Tensor, loc: Location) -> None:
        if not self.each and tensor.scope == ir.LOCAL:
            self.uniform_reads.append((tensor, loc))


_BUILTINS = {name for name in dir(builtins) if name.islower()}


def in_f32(value: Untyped) -> str:
    """A number with a type, as a hint shows it."""
    return "f32(...)" if isinstance(value, Choice) else f"f32({value!r})"


def _in_i64(value: Untyped, loc: Location) -> ir.Expression:
    """An integer without a type, as i64."""
    if isinstance(value, Choice):
        sides = _in_i64(value.then, loc), _in_i64(value.otherwise, loc)
        return ir.Select(value.condition, *sides, loc=value.loc)
    if isinstance(value, (int, float)):
        return ir.Constant(value, i64, loc=loc)
    assert not isinstance(value, FloatOfSizes)
    return value


def _fits(size: ir.Expression, dtype: DType) -> ir.Assert:
    """The condition that a size fits a type."""
    ends = ((">=", dtype.minimum), ("<=", dtype.maximum))
    low, high = (ir.Binary(sign, size, ir.Constant(int(end), i64)) for sign, end in ends)
    condition = high if isinstance(size, ir.Variable) else ir.Binary("and", low, high)
    return ir.Assert(condition, f"{expression_text(size)} fits {dtype}", loc=size.loc)


def refuse(message: str, hint: str | None = None) -> Callable[[Context, Any], Any]:
    def handler(context: Context, node: Any) -> None:
        raise context.error(message, node, hint)

    return handler


def _refusals(rows: str) -> dict[type, Callable[[Context, Any], Any]]:
    """The handlers of the kinds of nodes in a table."""
    handlers: dict[type, Callable[[Context, Any], Any]] = {}
    for row in rows.strip().splitlines():
        names, *texts = row.split(" | ")
        # Not every version of Python has every kind of node.
        kinds = [getattr(ast, name) for name in names.split() if hasattr(ast, name)]
        handlers.update(dict.fromkeys(kinds, refuse(*texts)))
    return handlers


# Kinds of nodes, a message, and perhaps a hint.
_STATEMENTS = """
Try TryStar | exceptions are not a part of the language | test before: if ...
Raise | exceptions are not a part of the language | use assert condition, "text"
FunctionDef AsyncFunctionDef | a function can't be defined in a kernel | define it outside, with @tc.function
ClassDef | a class can't be defined in a kernel
Global | 'global' is not a part of the language | what is outside is constant
Nonlocal | 'nonlocal' is not a part of the language | what is outside is constant
Delete | 'del' is not a part of the language | a name ends with its body
Import ImportFrom | a kernel imports nothing | import at the top of the file
Match | 'match' is not a part of the language | use if and elif
AnnAssign | a name takes no annotation | give the value its type: x = f32(0)
AsyncFor AsyncWith | a kernel can't be suspended
TypeAlias | a type can't be named in a kernel | name it outside
"""

_EXPRESSIONS = """
Lambda | a lambda is only for tc.load, tc.store and meanings | use @tc.function for a helper
SetComp DictComp | such a comprehension is only for tc.static | \
write a list, [... for ...]: over constants it may stand anywhere
JoinedStr | an f-string is not a part of the language | use tc.print("{}", x)
TemplateStr | a t-string is not a part of the language | use tc.print("{}", x)
Dict | a dict can't be made in a kernel | make it outside: it is constant
Set | a set can't be made in a kernel | make it outside: it is constant
NamedExpr | ':=' is not a part of the language | assign in a statement before
Await Yield YieldFrom | a kernel can't be suspended
Starred | '*' is not a part of the language here
Slice | a slice stands only in the brackets of a tensor
"""

REFUSED_STATEMENTS, REFUSED_EXPRESSIONS = map(_refusals, (_STATEMENTS, _EXPRESSIONS))
