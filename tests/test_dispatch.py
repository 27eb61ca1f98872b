"""Who tells nodes, or kinds of matrix instructions, apart names all of them, or says what holds for the others.

A `match` over nodes is in order if it ends in `case _:`; where that does nothing a comment says why. It is, too,
where what stands right behind it is for all others: a return or an error, or anything if every case leaves. That
a `case _: assert_never(...)` stands behind all nodes of a union is the type checker's to see.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import taskc as tc
from taskc.backend.cpu.dots import _FUNCTIONS
from taskc.backend.sim.report import FindingList
from taskc.backend.sim.run import Simulation
from taskc.errors import CompileError
from taskc.ir import nodes as ir, printer, printer_expressions
from taskc.ir.forms import FORMS
from taskc.ir.operations import DOTS, OPERATIONS
from taskc.ir.parser import parse
from taskc.ir.parser_expressions import syntax_tree
from taskc.ir.printer import to_text
from taskc.ir.rewrite import EXPRESSION_TYPES, STATEMENT_TYPES, walk
from taskc.ir.target import MatrixInstruction
from taskc.ir.types import u64
from taskc.ir.verify import _Verifier
from taskc.ir.verify_expressions import _RARE
from taskc.lang.builtins import HANDLERS
from taskc.lang.names import INTRINSICS
from tests.ir.stage_programs import PROGRAMS

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "taskc").rglob("*.py"))
NODE_TYPES = (*get_args(ir.Expression), *get_args(ir.Statement))
NODES = frozenset(kind.__name__ for kind in NODE_TYPES)
INSTRUCTIONS = frozenset(kind.__name__ for kind in get_args(MatrixInstruction))


def node_named(expression: ast.expr) -> str | None:
    """The node that `ir.Let` or `Let` is the class of. In taskc/lang `ast.For` is another language's."""
    match expression:
        case ast.Attribute(value=ast.Name(id="ir"), attr=name) | ast.Name(id=name):
            return name if name in NODES | INSTRUCTIONS else None
    return None


def nodes_in(pattern: ast.pattern) -> set[str]:
    kinds = [part.cls for part in ast.walk(pattern) if isinstance(part, ast.MatchClass)]
    return {name for name in map(node_named, kinds) if name is not None}


def leaves(body: list[ast.stmt]) -> bool:
    last = body[-1]
    match last:
        case ast.Return() | ast.Raise() | ast.Continue():
            return True
        case ast.If():
            return bool(last.orelse) and leaves(last.body) and leaves(last.orelse)
        case ast.With():
            return leaves(last.body)
        case _:
            return False


def problem(match: ast.Match, following: ast.stmt | None, lines: list[str]) -> str | None:
    last = match.cases[-1]
    if isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and not last.guard:
        is_silent = isinstance(last.body[0], ast.Pass)
        says = any(
            "#" in line for line in lines[last.pattern.lineno - 1 : last.body[-1].end_lineno]
        )
        return "its default does nothing, and doesn't say why" if is_silent and not says else None
    if isinstance(following, ast.Return | ast.Raise):
        return None
    if following is not None and all(leaves(case.body) for case in match.cases):
        return None
    return "it names not all nodes and has no default"


def problems(source: str) -> Iterator[str]:
    lines = source.splitlines()
    for parent in ast.walk(ast.parse(source)):
        for body in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
            if not isinstance(body, list) or not body:
                continue
            for statement, following in zip(body, [*body[1:], None], strict=True):
                if isinstance(statement, ast.Match) and any(
                    nodes_in(case.pattern) for case in statement.cases
                ):
                    found = problem(statement, following, lines)
                    if found:
                        yield f"line {statement.lineno}: {found}"


def test_every_match_over_nodes_is_complete() -> None:
    found = [
        f"{path.relative_to(ROOT)}, {text}"
        for path in FILES
        for text in problems(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


# Tables of what is done with each node, and where they stand.


def simulation() -> Simulation:
    """Its warps run by themselves, so that it has what executes each statement."""
    arrivals = ir.Tensor("arrivals", u64, (1,), ir.BARRIER)
    kernel = ir.Kernel("k", (), (), 32, ir.Allocate(arrivals), stage="lean", target="sm_90a")
    return Simulation(kernel, (), FindingList(1), lambda line: None, 0)


TABLES = {
    "taskc/ir/printer.py": ({*FORMS, *printer._SIMPLE, *printer._COMPOUND}, STATEMENT_TYPES),
    "taskc/ir/printer_expressions.py": (
        {*printer_expressions._EXPRESSIONS, ir.Variable},
        EXPRESSION_TYPES,
    ),
    "taskc/ir/verify_expressions.py": (
        # What an index is made of has no row, and an address is the business of statements.
        {*_RARE, ir.Variable, ir.Constant, ir.Binary, ir.Read, ir.Address},
        EXPRESSION_TYPES,
    ),
    "taskc/ir/verify.py": ({*_Verifier.checks, ir.Sequence}, STATEMENT_TYPES),
    "taskc/backend/sim/statements.py": (
        # A breakpoint is made where somebody may stop; target operations have rows by their names.
        {
            ir.Breakpoint,
            ir.Do,
            *(kind for kind in simulation().statements.makers if kind not in OPERATIONS),
        },
        STATEMENT_TYPES,
    ),
    "taskc/backend/sim/expressions.py": (
        {*simulation().expressions.makers, ir.Address},
        EXPRESSION_TYPES,
    ),
}
# Parts of the table in statements.py.
PARTS = {f"taskc/backend/sim/{name}.py" for name in ("loops", "collective", "synchronization")}
# Tables of names, and of operators in patterns.
OTHERS = {"taskc/ir/forms.py", "taskc/ir/parser_expressions.py", "taskc/passes/simplify_rules.py"}
# A node in no row is an atom of its parts, or costs what most do.
DEFAULTS = {"taskc/ir/affine.py", "taskc/passes/simplify_expressions.py"}


@pytest.mark.parametrize("file", TABLES)
def test_every_table_of_nodes_is_complete(file: str) -> None:
    has, wanted = TABLES[file]
    missing = sorted(kind.__name__ for kind in wanted - has)
    calls = " (as a call: CALLS in taskc/ir/text_rules.py)" if "printer_expr" in file else ""
    assert not missing, f"{file} has nothing for {missing}{calls}"
    assert not has - wanted


# The text form of each node, by a program that has it.


@pytest.mark.parametrize("kind", [*NODE_TYPES], ids=lambda kind: kind.__name__)
def test_every_node_has_a_text_that_is_read_back(kind: type) -> None:
    having = [
        program
        for program in (build() for build in PROGRAMS)
        if any(type(node) is kind for node in walk(program.body))
    ]
    assert having, f"tests/ir/stage_programs.py: no program has this node: {kind.__name__}"
    faults = [unreadable(program, kind) for program in having]
    assert None in faults, faults[0]


def unreadable(program: ir.Kernel, kind: type) -> str | None:
    """The file that keeps a program with such a node from being printed and read back."""
    text = to_text(program)
    is_statement = kind in STATEMENT_TYPES
    if f"<{kind.__name__}(" in text:
        file = "printer" if is_statement else "printer_expressions"
        return f"taskc/ir/{file}.py has nothing for {kind.__name__}"
    try:
        syntax_tree(text, "text", "kernel_text")
    except CompileError as error:
        return f"taskc/ir/ir.lark has nothing for {kind.__name__}: {error}"
    reader = f"taskc/ir/parser_{'statements' if is_statement else 'expressions'}.py"
    try:
        found = {type(node) for node in walk(parse(text).body)}
    except (CompileError, KeyError, TypeError) as error:
        return f"{reader} has nothing for {kind.__name__}: {error}"
    return None if kind in found else f"{reader} makes no {kind.__name__}"


def test_the_grammar_at_the_head_of_the_nodes_names_all() -> None:
    grammar = (ir.__doc__ or "").partition("Execution\n")[0]
    missing = sorted(NODES - {*re.findall(r"\w+", grammar)})
    assert not missing, f"taskc/ir/nodes.py: the grammar at its head lacks {missing}"


UNIONS = [{kind.__name__ for kind in union} for union in (EXPRESSION_TYPES, STATEMENT_TYPES)]


def unions(source: str) -> Iterator[str]:
    """What a match lacks that says by `assert_never` that it has all: most nodes of a union, where it is about that."""
    for match in ast.walk(ast.parse(source)):
        if isinstance(match, ast.Match) and "assert_never" in ast.unparse(match.cases[-1]):
            named = set().union(*(nodes_in(case.pattern) for case in match.cases))
            for names in (*UNIONS, INSTRUCTIONS):
                if named <= names and len(names) / 2 < len(named) < len(names):
                    yield f"line {match.lineno}: it has nothing for {sorted(names - named)}"


def test_every_match_over_a_union_names_all_of_it() -> None:
    found = [
        f"{path.relative_to(ROOT)}, {text}"
        for path in FILES
        for text in unions(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_every_name_of_the_language_has_its_meaning() -> None:
    missing = sorted(INTRINSICS.keys() - HANDLERS.keys())
    assert not missing, f"taskc/lang/builtins.py has nothing for {missing}"
    public = {name: it for name, it in INTRINSICS.items() if "." not in name}  # not of tc.cuda
    hidden = [name for name, it in public.items() if getattr(tc, name, None) is not it]
    assert not hidden, f"taskc/__init__.py has no {hidden}"
    unlisted = public.keys() - {*tc.__all__, "print", "range"}  # which would hide Python's
    assert not unlisted, f"__all__ of taskc/__init__.py has no {sorted(unlisted)}"


def test_processors_have_each_product_of_packs() -> None:
    missing = sorted({row.name for row in DOTS.values()} - _FUNCTIONS.keys())
    assert not missing, f"taskc/backend/cpu/operations.py has nothing for {missing}"


def test_there_are_no_other_tables_of_nodes() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Dict) and sum(node_named(k) is not None for k in node.keys if k) > 2
    }
    assert found <= TABLES.keys() | PARTS | OTHERS | DEFAULTS


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("match n:\n    case ir.Let():\n        a = 1", "line 1: it names not all nodes"),
        (
            "match n:\n    case ir.Let():\n        a = 1\nb = 2",
            "line 1: it names not all nodes and has no default",
        ),
        (
            "match n:\n    case ir.Let():\n        a = 1\n    case _:\n        pass",
            "doesn't say why",
        ),
        ("match n:\n    case ir.Let() | Store() if a:\n        a = 1", "has no default"),
    ],
)
def test_a_planted_gap_is_caught(source: str, expected: str) -> None:
    (found,) = problems(source)
    assert expected in found


def test_a_planted_gap_in_a_union_is_caught() -> None:
    union = sorted(kind.__name__ for kind in EXPRESSION_TYPES)
    source = "match n:\n    case {}:\n        a = 1\n    case _:\n        assert_never(n)"
    whole, lacking = (" | ".join(f"ir.{name}()" for name in part) for part in (union, union[1:]))
    assert not [*unions(source.format(whole))]
    assert [*unions(source.format(lacking))] == [f"line 1: it has nothing for {union[:1]}"]


@pytest.mark.parametrize(
    "source",
    [
        "match n:\n    case ir.Let():\n        a = 1\n    case _:\n        pass  # it binds nothing",
        "match n:\n    case ir.Let():\n        a = 1\n    case _:\n        assert_never(n)",
        "def f():\n    match n:\n        case ir.Let():\n            return 1\n    return 2",
        "def f():\n    match n:\n        case ir.Let():\n            return 1\n    a = 2\n    return a",
        "match n:\n    case ast.For():\n        a = 1",
    ],
)
def test_what_is_in_order(source: str) -> None:
    assert not [*problems(source)]
