"""Proves that no two blocks access one element of global memory, one of them writing it.

Blocks are never ordered, so only their indices keep them apart. For a written tensor each
variable of the grid needs a dimension whose index contains it, while the rest of that index
stays within one step of it: then blocks that differ in that variable touch different elements.
If this does not apply and everything has a constant range, all accesses of all blocks are
enumerated.

An "out" parameter is stored once per element (taskc/passes/proofs/coverage.py), so only its reads
are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from taskc.analysis.collisions import element_numbers, example
from taskc.analysis.indices import Array, Factor, Index
from taskc.analysis.reads import reads_memory
from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.nodes import GLOBAL, Expression, Variable
from taskc.passes.proofs.accesses import ATOMIC, READ, WRITE, Access, Guard, Program, used_variables
from taskc.passes.proofs.enumeration import (
    LIMIT,
    Enumerator,
    all_blocks,
    block_range,
    is_short,
    size_of,
)
from taskc.passes.proofs.folding import folded_alike, is_opaque, unfolded_alike
from taskc.passes.proofs.pairs import kept_apart
from taskc.passes.proofs.wording import scatter_hint

HINT = "index it with the variables of tc.tiles, or use tc.atomic_add and its like"

Reach = tuple[int, int]


def block_findings(program: Program) -> Iterator[CompileError]:
    grid = program.grid
    if grid is None:
        return
    varying = [
        variable
        for variable, extent, by in zip(grid.variables, grid.shape, grid.by, strict=True)
        if not (isinstance(extent, int) and extent <= by)
    ]
    touched: dict[int, list[Access]] = {}
    for access in program.accesses:
        if access.tensor.scope == GLOBAL:
            touched.setdefault(id(access.tensor), []).append(access)
    for accesses in touched.values():
        error = _tensor(accesses, program, varying) if varying else None
        if error is not None:
            yield error
    written = {id(access.tensor) for access in program.accesses if access.kind != READ}
    for product in program.whole if varying else ():
        operands = (product.left, product.right) if isinstance(product, ir.Mma) else ()
        for operand in operands:
            if operand.tensor.scope == GLOBAL and id(operand.tensor) in written:
                text = "can't prove that no other block writes what this product reads of"
                yield CompileError(f"{text} `{operand.tensor.name}`", product.loc)


def _tensor(
    accesses: list[Access], program: Program, varying: list[Variable]
) -> CompileError | None:
    tensor = accesses[0].tensor
    enumerator = Enumerator(program, "iterations")
    if all(access.kind != WRITE for access in accesses):
        return None
    if any(is_opaque(enumerator.index(index)) for a in accesses for index in a.indices):
        changed = folded_alike(accesses, program) or unfolded_alike(accesses, program)
        accesses = changed or accesses
    for first in accesses:
        if first.kind != WRITE:
            continue
        for second in accesses:
            if tensor.role == "out" and second.kind != READ:
                continue
            if second.kind == WRITE and second.order < first.order:
                continue
            if _apart(first, second, enumerator, varying):
                continue
            if program.grid is not None and kept_apart(first, second, program, program.grid):
                continue
            conclusion = _enumerate(first, second, program)
            if conclusion is None and is_short(program, varying):
                continue
            return _report(first, second, program, True if conclusion is None else conclusion)
    return None


def _apart(first: Access, second: Access, enumerator: Enumerator, varying: list[Variable]) -> bool:
    """Whether blocks that differ in a grid variable differ in a dimension.

    Grid variables one after another: those that are known to be equal don't blur the others.
    """
    pairs = list(zip(*(_forms(access, enumerator) for access in (first, second)), strict=True))
    left = list(varying)
    equal: set[Variable] = set()
    while left:
        found = next(
            (v for v in left if any(_separates(v, a, b, equal, enumerator) for a, b in pairs)), None
        )
        if found is None:
            return False
        left.remove(found)
        equal.add(found)
    return True


def _forms(access: Access, enumerator: Enumerator) -> list[Index | None]:
    """The indices, restricted to workers and slots that reach the access."""
    forms = [enumerator.index(index) for index in access.indices]
    live = enumerator.path(access.path).may
    if live is True or any(f is not None and size_of(f.base, live) > LIMIT for f in forms):
        return forms
    return [form and Index(form.terms, _where(form.base, live)) for form in forms]


def _where(base: Any, live: Any) -> Any:
    values, mask = np.broadcast_arrays(base, live)
    return values[mask]


def _separates(
    variable: Variable,
    a: Index | None,
    b: Index | None,
    equal: set[Variable],
    enumerator: Enumerator,
) -> bool:
    if a is None or b is None:
        return False
    factor = a.terms.get(variable, 0)
    if factor == 0 or b.terms.get(variable, 0) != factor:
        return False
    program = enumerator.program
    own, other = _reach(a, variable, equal, program), _reach(b, variable, equal, program)
    if own is None or other is None or own[1] != other[1]:
        return False
    (low, high), (low_too, high_too) = own[0], other[0]
    step = program.grid.by[program.binders[variable].position] if program.grid else 1
    return max(high, high_too) - min(low, low_too) < max(factor, -factor) * step


def _reach(
    form: Index, variable: Variable, equal: set[Variable], program: Program
) -> tuple[Reach, dict[Expression, Factor]] | None:
    """The range of the rest of an index, and the part that is the same for all blocks."""
    if np.size(form.base) == 0:
        return (0, 0), {}
    low, high = int(np.min(form.base)), int(np.max(form.base))
    common: dict[Expression, Factor] = {}
    for atom, factor in form.terms.items():
        if atom is variable:
            continue
        if _is_fixed(atom, equal, program):
            common[atom] = factor
            continue
        values = block_range(program, atom) if isinstance(atom, Variable) else None
        if values is None:
            return None
        ends = [int(factor * end) for end in (values[0], values[-1])] if values else [0]
        low, high = low + min(ends), high + max(ends)
    return (low, high), common


def _is_fixed(atom: Expression, equal: set[Variable], program: Program) -> bool:
    """Whether it consists of parameters and of grid variables that two blocks share."""
    if reads_memory(atom):
        return False
    variables = used_variables(program, [atom])
    return all(
        v in equal or (v not in program.binders and v not in program.lets) for v in variables
    )


def _enumerate(
    first: Access, second: Access, program: Program
) -> tuple[list[int], tuple[int, ...], tuple[int, ...]] | bool | None:
    """None if blocks stay apart; an element and the two blocks; True if that is unknown."""
    numbers = [_numbers(access, program) for access in (first, second)]
    if numbers[0] is None or numbers[1] is None:
        return True
    (index, block, certain), (index_too, block_too, certain_too) = numbers[0], numbers[1]
    if not index[0].size or not index_too[0].size:
        return None
    key, key_too, count = element_numbers(index, index_too)
    found = example(key, block, key_too, block_too, count)
    if found is None:
        return None
    if not (certain and certain_too):
        return True
    here, there = found
    blocks = sorted((int(block[here]), int(block_too[there])))
    origins = [_block_name(number, program) for number in blocks]
    return [int(a[there]) for a in index_too], origins[0], origins[1]


def _numbers(access: Access, program: Program) -> tuple[list[Array], Array, bool] | None:
    """The indices and the blocks of all executions of an access, flat; and whether all of them happen."""
    guards = [frame.condition for frame in access.path if isinstance(frame, Guard)]
    grid = program.grid
    assert grid is not None
    needed = used_variables(program, access.indices) | set(grid.variables)
    ranges = all_blocks(program, needed)
    if ranges is None:
        return None
    for variable in used_variables(program, guards) - needed:
        ranges |= all_blocks(program, [variable]) or {}
    enumerator = Enumerator(program, "unrolled", ranges)
    forms = [enumerator.index(index) for index in access.indices]
    if any(form is None or form.terms for form in forms):
        return None
    number: Any = np.zeros((), dtype=np.int64)
    for variable, by in zip(grid.variables, grid.by, strict=True):
        values = ranges[variable]
        number = number * max(values.size, 1) + values // by
    live = enumerator.path(access.path, stores=access.kind in (WRITE, ATOMIC))
    bases = [form.base for form in forms if form is not None]
    if size_of(number, live.may, *bases) > LIMIT:
        return None
    mask, block, *indices = np.broadcast_arrays(live.may, number, *bases)
    return [index[mask] for index in indices], block[mask], live.must is live.may


def _block_name(number: Any, program: Program) -> tuple[int, ...]:
    grid = program.grid
    assert grid is not None
    counts = []
    for extent, by in zip(grid.shape, grid.by, strict=True):
        size = extent.value if isinstance(extent, ir.Constant) else extent
        assert isinstance(size, int)
        counts.append(-(-size // by))
    return tuple(int(p) for p in np.unravel_index(int(number), counts))


def _report(first: Access, second: Access, program: Program, conclusion: Any) -> CompileError:
    tensor = first.tensor
    early, late = sorted((first, second), key=lambda access: access.order)
    notes = () if early is late else ((f"the other access {early.verb} it", early.loc),)
    if conclusion is True:
        text = f"can't prove that no two blocks meet at one element of `{tensor.name}`"
        if early is not late:
            text += f", which this {late.verb}"
        hint = scatter_hint(late, program) or HINT
        return CompileError(text, late.loc, hint=hint, notes=notes)
    place, block, block_too = conclusion
    name = f"{tensor.name}[{', '.join(map(str, place))}]"
    if early is late:
        text = f"race: blocks {block} and {block_too} both write {name}"
    else:
        text = f"race: blocks {block} and {block_too} touch {name}, and no order holds between them"
    return CompileError(text, late.loc, hint=HINT, notes=notes)
