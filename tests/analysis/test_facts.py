"""Facts are sound: what is proved holds for every assignment, by brute force; and strong enough."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import pytest

from taskc.analysis.facts import Facts
from taskc.ir import nodes as ir
from taskc.ir.nodes import Binary, Constant, Expression, For, Kernel, Let, Unary, Variable, constant
from taskc.ir.types import boolean, f32, i32, i64
from tests.counting import calls
from tests.evaluator import Environment, Generator, Machine

NOTHING = ir.Sequence(())


def b(operator: str, left: Expression | int, right: Expression | int) -> Expression:
    left = constant(left) if isinstance(left, int) else left
    right = constant(right) if isinstance(right, int) else right
    return Binary(operator, left, right)


def loop(variable: Variable, start: int, stop: Expression | int, step: int = 1) -> For:
    stop = constant(stop) if isinstance(stop, int) else stop
    return For(variable, constant(start), stop, step, NOTHING)


def random_facts(seed: int) -> tuple[Facts, list[Variable], list[Environment], Generator]:
    """Facts after some loops, Lets and conditions, with every assignment that they allow."""
    variables = [Variable("x"), Variable("y"), Variable("z")]
    generator = Generator(seed, variables)
    pick = generator.random
    facts = Facts.empty()
    assignments: list[Environment] = [{}]
    machine = Machine()
    for variable in variables[:2]:
        known = [other for other in variables if any(other in names for names in assignments)]
        generator.variables = known
        step = pick.choice([1, 1, 2, 4, -1, -3])
        start: Expression = constant(pick.choice([0, 0, 1, -3, 8]))
        stop: Expression = constant(pick.choice([0, 1, 4, 7, 16, -5]))
        if known and pick.random() < 0.5:
            start = generator.integer(1) if pick.random() < 0.3 else start
            stop = generator.integer(1)
        binder = For(variable, start, stop, step, NOTHING)
        facts = facts.enter(binder)
        new = []
        for names in assignments:
            values = range(machine.value(start, names), machine.value(stop, names), step)
            new += [{**names, variable: value} for value in values[:40]]
        assignments = new
    generator.variables = variables[:2]
    value = generator.integer(2)
    facts = facts.enter(Let(variables[2], value))
    assignments = [{**names, variables[2]: machine.value(value, names)} for names in assignments]
    generator.variables = variables
    for _ in range(pick.choice([0, 1, 1, 2])):
        condition = generator.boolean(2)
        holds = pick.random() < 0.7
        facts = facts.assume(condition, holds=holds)
        assignments = [
            names for names in assignments if bool(machine.value(condition, names)) is holds
        ]
    return facts, variables, assignments, generator


@pytest.mark.parametrize("block", range(8))
def test_what_is_proved_holds(block: int) -> None:
    machine = Machine()
    decided = questions = 0
    for seed in range(block * 250, block * 250 + 250):
        facts, _, assignments, generator = random_facts(seed)
        if not assignments:
            continue
        for _ in range(6):
            condition = generator.boolean(2)
            answer = facts.prove(condition)
            truths = {bool(machine.value(condition, names)) for names in assignments}
            if answer is not None:
                assert truths == {answer}, (seed, condition)
            questions += len(truths) == 1
            decided += answer is not None
    # It would be sound to prove nothing; this is what it must manage.
    assert decided > questions * 0.55, (decided, questions)


@pytest.mark.parametrize("dtype", [i64, i32])
def test_intervals_congruences_and_forms_hold(dtype: ir.DType) -> None:
    machine = Machine()
    for seed in range(1500):
        facts, _, assignments, generator = random_facts(seed)
        expression = generator.integer(3)
        low, high = facts.interval(expression)
        modulus, remainder = facts.congruence(expression)
        form = facts.affine(expression)
        written = form.to_expression()
        for names in assignments:
            value = machine.value(expression, names)
            assert low is None or low <= value, (seed, expression)
            assert high is None or value <= high, (seed, expression)
            assert value % modulus == remainder if modulus else value == remainder, seed
            assert machine.value(written, names) == value, (seed, expression, written)


def test_narrow_types_wrap() -> None:
    """Forms of i32 arithmetic are right for values near the ends of the type, too."""
    x, y = Variable("x", i32), Variable("y", i32)
    machine = Machine()
    ends = [-(2**31), -(2**31) + 1, -7, -1, 0, 1, 8, 2**31 - 2, 2**31 - 1]
    for seed in range(800):
        generator = Generator(seed, [x, y], i32)
        condition = generator.boolean(3)
        expression = generator.integer(3)
        facts = Facts.empty()
        answer = facts.prove(condition)
        low, high = facts.interval(expression)
        written = facts.affine(expression).to_expression(i32)
        for first, second in itertools.product(ends, ends):
            names = {x: first, y: second}
            value = machine.value(expression, names)
            assert low is not None
            assert high is not None
            assert low <= value <= high, (seed, expression)
            assert machine.value(written, names) == value, (seed, expression, written)
            if answer is not None:
                assert bool(machine.value(condition, names)) is answer, (seed, condition)


def test_numbers_from_memory_may_wrap() -> None:
    x = ir.Read(ir.Tensor("x", i64, (1,), ir.GLOBAL), (constant(0),))
    m = Variable("m")
    facts = Facts.empty()
    assert facts.prove(b("<", x, b("+", x, 1))) is None
    assert facts.prove(b("==", b("//", b("*", x, 8), 8), x)) is None
    assert facts.prove(b("<", b("max", x, m), b("+", b("max", x, m), 1))) is None
    assert facts.prove(b("<", m, b("+", m, 1))) is True
    # A product of two narrow numbers fits, times a third one it may not.
    s, t = Variable("s", i32), Variable("t", i32)
    wide = [ir.Cast(number, i64) for number in (s, t)]
    twice = b("*", b("*", m, wide[0]), wide[1])
    thrice = b("*", twice, wide[0])
    assert facts.prove(b("<", twice, b("+", twice, 1))) is True
    assert facts.prove(b("<", thrice, b("+", thrice, 1))) is None


def symbolic() -> tuple[Kernel, Variable, Variable]:
    m, n = Variable("m", multiple=16), Variable("n")
    a = ir.Tensor("a", f32, (m, n), ir.GLOBAL)
    return Kernel("k", (a,), (m, n), 64, NOTHING, helpers=32), m, n


def test_tiles_of_symbolic_sizes() -> None:
    kernel, m, n = symbolic()
    row, col, i = Variable("row"), Variable("col"), Variable("i")
    facts = Facts.empty(kernel).enter(ir.Grid((row, col), (m, n), (16, 32), NOTHING))
    facts = facts.enter(loop(i, 0, 16))
    below_m, below_n = b("<", b("+", row, i), m), b("<", b("+", col, i), n)
    assert facts.prove(below_m) is True
    assert facts.prove(below_n) is None
    assert facts.prove(b("<", col, n)) is True
    assert facts.prove(b(">", n, 0)) is True
    assert facts.assume(below_n).prove(b("<", b("+", i, col), n)) is True
    assert facts.assume(below_n).prove(b(">=", b("+", i, col), n)) is False
    offset = b("+", b("*", b("+", row, i), n), col)
    assert facts.prove(b("<", offset, b("*", m, n))) is True
    assert facts.prove(b(">=", offset, 0)) is True


def test_loops_to_the_smaller_of_two_sizes() -> None:
    kernel, m, n = symbolic()
    row, p, r = Variable("row"), Variable("p"), Variable("r")
    facts = Facts.empty(kernel).enter(ir.Grid((row,), (m,), (16,), NOTHING))
    stop = b("min", n, b("-", b("+", b("+", row, 16), n), m))
    blocks = facts.enter(loop(p, 0, stop, 8))
    assert blocks.prove(b(">", n, 0)) is True  # the loop runs, so both are positive
    assert blocks.prove(b("<", p, n)) is True
    inside = blocks.enter(loop(r, 0, b("min", 8, b("-", stop, p))))
    assert inside.prove(b("<", b("+", p, r), n)) is True
    assert inside.prove(b("<", b("+", p, r), m)) is None


def test_a_fact_times_a_size() -> None:
    kernel, m, n = symbolic()
    row, col, p = Variable("row"), Variable("col"), Variable("p")
    facts = Facts.empty(kernel).enter(loop(p, 0, n))
    for condition in (b("<=", 0, row), b("<", row, m), b("<=", 0, col), b("<", col, n)):
        facts = facts.assume(condition)
    flat = b("+", b("*", row, n), col)
    assert facts.prove(b("<", flat, b("*", m, n))) is True
    assert facts.prove(b("<", flat, b("-", b("*", m, n), 1))) is None
    assert facts.prove(b("<", b("+", b("*", flat, n), p), b("*", b("*", m, n), n))) is True
    assert facts.prove(b("<", b("+", b("*", row, m), col), b("*", m, n))) is None
    later = facts.assume(b("<", row, p))
    assert later.prove(b("<", flat, b("*", p, n))) is True
    assert later.prove(b("==", flat, b("+", b("*", p, n), 1))) is False
    assert later.prove(b("==", flat, b("-", b("*", p, n), 1))) is None


def test_tiles_from_block_numbers() -> None:
    """The same at stage scalar, where the tile's origin is computed from the block's number."""
    kernel, m, n = symbolic()
    rows, columns = b("//", b("+", m, 15), 16), b("//", b("+", n, 31), 32)
    kernel = replace(kernel, blocks=b("*", rows, columns))
    i = Variable("i")
    facts = Facts.empty(kernel).enter(loop(i, 0, 16))
    row = b("*", b("//", kernel.block, columns), 16)
    col = b("*", b("%", kernel.block, columns), 32)
    assert facts.prove(b("<", b("+", row, i), m)) is True
    assert facts.prove(b("<", col, n)) is True
    assert facts.prove(b("<", b("+", col, i), n)) is None
    assert facts.prove(b("<", kernel.worker, 96)) is True
    assert facts.prove(b("<", kernel.worker, 95)) is None


def test_multiples_and_a_rest_that_is_none() -> None:
    n, w, v, q, p = (Variable(name) for name in "nwvqp")
    facts = Facts.empty(Kernel("k", (), (n,), 16, NOTHING))
    for variable, stop in ((w, 16), (v, 16)):
        facts = facts.enter(loop(variable, 0, stop))
    for variable in (q, p):
        facts = facts.enter(loop(variable, 0, n, 16))
    facts = facts.assume(b("<", w, v))
    assert facts.prove(b("==", b("+", q, w), b("+", p, v))) is False
    # The rest may be a multiple as well.
    assert facts.prove(b("==", b("+", q, w), b("+", b("+", p, v), 1))) is None
    assert facts.prove(b("==", b("+", q, w), b("*", v, 16))) is None


def test_a_quotient_is_a_whole_number() -> None:
    """Of 160 features, 40 are a group's and read 64 channels: a feature below 160 reads a channel below 256."""
    block, row, place = Variable("block"), Variable("row"), Variable("place")
    facts, channel = Facts.empty(), b("%", place, 64)
    for variable, stop in ((block, 2), (row, 128), (place, 640)):
        facts = facts.enter(loop(variable, 0, stop))
    feature = b("+", b("*", block, 128), row)
    base = b("*", b("//", feature, 40), 64)
    below, above = facts.branch(b("<", feature, 160))
    assert facts.prove(b("<", b("+", base, channel), 256)) is None
    assert below.prove(b("<", b("+", base, channel), 256))
    assert below.prove(b("<", b("+", base, channel), 255)) is None
    assert above.prove(b("<", b("-", channel, base), -192))
    assert above.prove(b("<", b("-", channel, base), -193)) is None


def test_roles_narrow_the_worker() -> None:
    kernel, _, _ = symbolic()
    role = ir.Role("producer", 64, 32, NOTHING)
    facts = Facts.empty(kernel).enter_role(role, kernel.worker)
    assert facts.interval(kernel.worker) == (64, 95)


def test_conditions() -> None:
    x, y, n = Variable("x"), Variable("y"), Variable("n")
    facts = Facts.empty()
    low = facts.assume(b("and", b(">=", x, 0), b("<", x, b("min", n, 8))))
    assert low.interval(x) == (0, 7)
    assert low.prove(b("<", x, n)) is True
    assert facts.assume(Unary("not", b("or", b("<", x, 3), b("<", y, 3)))).prove(b(">", y, 2))
    other = facts.assume(b("or", b("<", x, 0), b("<", y, 0)))
    assert other.prove(b("<", y, 0)) is None
    assert other.assume(b(">=", x, 0)).prove(b("<", y, 0)) is None  # facts are not revisited
    assert (
        facts.assume(b(">=", x, 0)).assume(b("or", b("<", x, 0), b("<", y, 0))).prove(b("<", y, 0))
    )
    multiple = facts.assume(b("==", b("%", n, 4), 0))
    assert multiple.divisible(b("+", n, 8), 4)
    assert not facts.divisible(b("+", n, 8), 4)
    assert facts.assume(b("!=", x, y)).prove(b("==", y, x)) is False
    assert facts.assume(b(">=", x, 0)).assume(b("!=", x, 0)).prove(b(">=", x, 1)) is True


def test_what_memory_says_does_not_last() -> None:
    counter = ir.Tensor("counter", i64, (), ir.LOCAL)
    parameter = ir.Tensor("lengths", i64, (8,), ir.GLOBAL)
    changing, fixed = ir.Read(counter, ()), ir.Read(parameter, (constant(0),))
    for read, lasts in ((changing, None), (fixed, True)):
        condition = b("<", read, 5)
        assert Facts.empty().assume(condition).prove(condition) is lasts
        assert Facts.empty().assume(condition, lasting=False).prove(condition) is True
    x = Variable("x")
    facts = Facts.empty().enter(Let(x, changing))
    assert facts.prove(b("==", x, changing)) is None
    assert facts.assume(b("<", x, 5)).prove(b("<", x, 5)) is True


def test_facts_of_one_branch_stay_there() -> None:
    x = Variable("x")
    facts = Facts.empty()
    condition = b("<", x, 5)
    yes, no = facts.branch(condition)
    assert (yes.prove(condition), no.prove(condition), facts.prove(condition)) == (
        True,
        False,
        None,
    )


def test_a_chain_of_branches_takes_time_for_its_links() -> None:
    """Where a concatenation reads: `not c and not d and x < 3`, each condition named."""

    def simplified_chain(links: int) -> None:
        x, facts = Variable("x"), Facts.empty()
        names: list[Variable] = []
        for k in range(links):
            condition: Expression = b("<", x, 5 * k)
            for name in names[::-1]:
                condition = b("and", Unary("not", name), condition)
            names.append(Variable(f"c{k}", boolean))
            facts = facts.enter(Let(names[-1], condition))
            facts.assume(names[-1], holds=False).prove(b("<", x, 5 * k))
            facts.assume(condition, holds=False).prove(b("<", x, 5 * k))

    few, many = (calls(partial(simplified_chain, links)) for links in (6, 12))
    assert many < 2 * few


def test_constants() -> None:
    facts = Facts.empty()
    assert facts.prove(Constant(True, ir.boolean)) is True
    assert facts.prove(b("==", 3, 3)) is True
    assert facts.constant_difference(b("+", Variable("x"), 3), constant(3)) is None
