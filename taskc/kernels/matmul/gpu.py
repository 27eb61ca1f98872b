"""The algorithms for GEMM on GPUs: copies of unaligned operands, split-k, `gemv` of few rows, and `tiles`."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import taskc as tc
from taskc import Machine, auto_map
from taskc.kernels.epilogue import Epilogue
from taskc.kernels.machine_facts import GPU
from taskc.kernels.matmul.plan_gpu import Tiling, Vectors, are_rows, held_owners, is_turned
from taskc.kernels.matmul.problem import Problem
from taskc.kernels.owners import owners_of_boxes, width
from taskc.kernels.padding import pad, pitch
from taskc.kernels.signatures import Function, Value, Values
from taskc.kernels.transpose import transpose

# --- GEMM of matrices that don't lie as they should: copies that do, and a product of those -----
# Wide accesses and bulk copies want rows at multiples of 16 bytes: a copy has zeros behind odd rows. Instructions
# for operands that aren't of 16 bits want neighbours along k: a copy of others is turned. Copies take as
# long as reading and writing each operand once; of large matrices that is little beside the product.


def is_worth_copying(problem: Problem, machine: Machine) -> bool:
    """Whether an operand lies badly, and the product is much more than a copy."""
    extents = problem.m, problem.n, problem.k
    if machine.is_processor or problem.pitched or problem.gathered is not None:
        return False
    if not all(
        isinstance(extent, int) and extent >= GPU.shortest_copied_extent for extent in extents
    ):
        return False
    a, b, _, _ = problem.types
    is_odd = any(pitch(x.shape[1], x.dtype) != x.shape[1] for x in (a, b))
    is_across = problem.transpose_a or not problem.transpose_b
    return is_odd or (is_across and _wants_k(problem, machine))


def _wants_k(problem: Problem, machine: Machine) -> bool:
    """Whether operands with neighbours along k are worth a copy.

    Of 8 bits others would be put together from single bytes. Of 32 bits b can go to the instructions that run beside
    their workers from registers, which takes longer than a copy of it if that is used by many rows.
    """
    rows = machine.instructions(problem.dtype, problem.right, problem.total)
    size = problem.dtype.nbytes
    is_used = problem.transpose_a or not isinstance(problem.m, int) or problem.m >= GPU.turned_rows
    is_worthwhile = size == 4 and is_used and any(row.asynchronous for row in rows)
    return bool(rows) and (size == 1 or is_worthwhile)


def lying_well(problem: Problem, machine: Machine) -> Problem:
    """The product of the copies."""
    if _wants_k(problem, machine):
        problem = replace(problem, transpose_a=False, transpose_b=True)
    return replace(problem, pitched=True)


def with_copies(problem: Problem, product: Function, machine: Machine) -> tc.ProgramDefinition:
    """A program around the product of `lying_well`; operands that lie well are taken as they are."""
    is_transposed = _wants_k(problem, machine)

    def copied(x: Value, *, is_across: bool) -> Any:
        """Copies a matrix so that neighbours are along k, if they have to be and are not, and rows are even."""
        if is_across and is_transposed:
            x = transpose(x.shape, dtype=x.dtype, machine=machine)(x)
        rows, columns = x.shape
        wide = pitch(columns, x.dtype)
        if wide == columns:
            return x
        copy = tc.empty(x.dtype[rows, wide])
        pad(rows, columns, x.dtype, machine)(x, out=copy)
        return copy

    def steps(a: Value, b: Value, further: Values, c: Value) -> None:
        laid_well = (
            copied(a, is_across=problem.transpose_a),
            copied(b, is_across=not problem.transpose_b),
        )
        product(*laid_well, *further, out=c)

    return problem.program(steps)


# --- Split-k: sums over long k in parts, each by blocks of its own, and a second kernel that adds the parts up
# The parts are added in order, the first one first, whichever was ready first: the same bits each time.


def in_parts(
    problem: Problem, parts: int, workers: int, blocks: Function, machine: Machine
) -> tc.ProgramDefinition:
    """blocks(a, b, sums) of a kernel that stores each part's sums[part, m, n], and what is made of all parts."""
    left, right, _, _ = problem.types
    all_sums = problem.total[parts, problem.m, problem.n]

    @tc.kernel(workers=workers)
    def partial(a: tc.typed[left], b: tc.typed[right], sums: tc.out[all_sums]) -> None:
        blocks(a, b, sums)

    added = adding_up(problem.of_sums, problem.m, parts, machine)

    def steps(a: Value, b: Value, further: Values, c: Value) -> None:
        added(partial(a, b), *further, out=c)

    return problem.program(steps)


def adding_up(of_sums: Epilogue, m: Any, parts: int, machine: Machine) -> tc.KernelDefinition:
    """The kernel that makes c of sums[part, m, n], and of what further operands there are."""
    n, epilogue, made = of_sums.features, of_sums.function, of_sums.made
    all_sums = of_sums.total[parts, m, n]
    offset, scale, residue = of_sums.operands
    wide = width(n, of_sums.total, made.dtype)
    lines = owners_of_boxes((m, n), wide, machine, accesses=1)

    @tc.kernel(workers=lines.workers)
    def added(
        sums: tc.typed[all_sums],
        offsets: tc.typed[offset],
        scales: tc.typed[scale],
        residual: tc.typed[residue],
        c: tc.out[made],
    ) -> None:
        further = (*offsets, *scales, *residual)
        for row, col in tc.tiles((m, n), by=lines.shape):
            for i, j in lines:
                if row + i < m and col + j < n:
                    value = sums[0, row + i, col + j]
                    for part in tc.static(range(1, parts)):
                        value += sums[part, row + i, col + j]
                    c[row + i, col + j] = epilogue(value, further, col + j, (row + i, col + j))

    return added


# --- GEMV, products of a few vectors and a matrix, on GPUs: what counts is that the matrix is read once, and fast
# The vectors are rows of a, the matrix is b, and a column of it goes into each element of c. Or the vectors
# are columns of b and the matrix is a, whose rows are called columns here.
#
#     down   where neighbours in memory are neighbouring columns, workers beside each other have them, of
#            steps of k of their own
#     along  where they are of one column, a warp walks along it
#
# Either way a worker reads 16 bytes at a time, has several such accesses under way before it multiplies, and
# what workers have found is folded in the end. Where the blocks of all columns are too few to keep the memory
# busy, k is cut into parts.


def gemv(
    problem: Problem, plan: Vectors, machine: Machine
) -> tc.KernelDefinition | tc.ProgramDefinition:
    k, epilogue, is_row = problem.k, problem.epilogue, are_rows(problem)
    count, length = (problem.m, problem.n) if is_row else (problem.n, problem.m)
    columns, steps = plan.matrix.shape
    parts = plan.parts
    per_part = ceil(k / (parts * steps)) * steps if parts > 1 else k
    workers = plan.matrix.workers
    lines = auto_map((count, columns), workers=workers)
    summed = _summed_rows(problem, plan)

    # Where what vector i and column j give belongs in c.
    place = tc.function(lambda i, j: (i, j) if is_row else (j, i))

    place_of_part = tc.function(lambda part, i, j: (part, i, j) if is_row else (part, j, i))

    @tc.function
    def partial(a: Value, b: Value, sums: Value) -> None:
        for part, col in tc.tiles((parts, length), by=(1, columns)):
            made = summed(a, b, col, part * per_part, min((part + 1) * per_part, k))
            for i, j in lines:
                if col + j < length:
                    sums[place_of_part(part, i, col + j)] = made[i, j]

    @tc.function
    def whole(a: Value, b: Value, further: Values, c: Value) -> None:
        for col in tc.tiles(length, by=columns):
            made = summed(a, b, col, 0, k)
            for i, j in lines:
                if col + j < length:
                    at = place(i, col + j)
                    c[at] = epilogue(made[i, j], further, col + j if is_row else i, at)

    if parts > 1:
        return in_parts(problem, parts, workers, partial, machine)
    return problem.kernel(workers, whole)


def _summed_rows(problem: Problem, plan: Vectors) -> Function:
    """The sums of a block's columns over k from `first` to `last`, in shared memory."""
    total, by, is_row = problem.total, problem.by, are_rows(problem)
    count, length = (problem.m, problem.n) if is_row else (problem.n, problem.m)
    kinds = problem.right, problem.dtype
    kind, few = kinds if is_row else kinds[::-1]
    columns, steps = plan.matrix.shape
    walkers = plan.sums.shape[2]
    left_at, right_at = problem.left_at, problem.right_at

    vector_at = tc.function(lambda a, b, i, q: left_at(a, i, q) if is_row else right_at(b, q, i))

    matrix_at = tc.function(lambda a, b, q, j: right_at(b, q, j) if is_row else left_at(a, j, q))

    multiplied = tc.function(lambda x: x.to(total) if by is None else x.to(by).to(total))

    @tc.function
    def summed(a: Value, b: Value, col: Value, first: Value, last: Value) -> Any:
        sums = tc.tile(total, plan.sums, 0)
        for step in range(first, last, steps):
            matrix, vectors = tc.tile(kind, plan.matrix, 0), tc.tile(few, plan.vectors, 0)
            for j, q in plan.matrix:
                if step + q < last and col + j < length:
                    matrix[j, q] = matrix_at(a, b, step + q, col + j)
            for i, q in plan.vectors:
                if step + q < last:
                    vectors[i, q] = vector_at(a, b, i, step + q)
            for i, j, q in plan.products:
                x, y = multiplied(vectors[i, q]), multiplied(matrix[j, q])
                sums[i, j, q // plan.run % walkers] += x * y
        folded = tc.reduce(sums, 2, "+")
        made = tc.shared(total[count, columns])
        for i, j in folded.mapping:
            made[i, j] = folded[i, j]
        return made

    return summed


# --- GEMM where a block is many workers around a shared memory: that of GPUs --------------------
#     own = warps * repeat * fragment
#
# says who has which part of a block's result: each warp has a rectangle of fragments. The fragment is that of
# the matrix instruction that the machine has for these types, or, where it has none, a square of registers
# that are added to by fused multiply-adds. Both operands go through shared memory, a few steps of k ahead.
#
# Where an instruction runs beside its workers, warpgroups multiply and a producer loads for them; then blocks
# run over several tiles, results are stored as whole tiles, and of the largest tiles two blocks share a load of
# b. The text is the same, but for that.


def tiles(
    problem: Problem, plan: Tiling, machine: Machine
) -> tc.KernelDefinition | tc.ProgramDefinition:
    if plan.parts == 1:
        return problem.kernel(plan.own.workers, _whole(problem, plan, machine))
    (high, broad), own, k = plan.block, plan.own, problem.k
    summed = _summed(problem, plan, machine)
    steps = ceil(k / (plan.parts * plan.depth)) * plan.depth
    shape = plan.parts, problem.m, problem.n
    is_held = held_owners(problem, plan, machine) is not None

    @tc.function
    def blocks(a: Value, b: Value, sums: Value) -> None:
        for part, row, col in tc.tiles(shape, by=(1, high, broad), persistent=plan.specialize):
            acc = summed(a, b, row, col, part * steps, steps)
            if is_held:
                for j, i in own:
                    if row + i < problem.m and col + j < problem.n:
                        sums[part, row + i, col + j] = acc[j, i]
            elif plan.swap_ab:
                made = _swapped_back(plan, acc)
                tc.store(sums[part, row : row + high, col : col + broad], made)
            else:
                tc.store(sums[part, row : row + high, col : col + broad], acc)

    return in_parts(problem, plan.parts, own.workers, blocks, machine)


def _whole(problem: Problem, plan: Tiling, machine: Machine) -> Function:
    """Blocks that go through all of k."""
    m, n, k, epilogue = problem.m, problem.n, problem.k, problem.epilogue
    (high, broad), own = plan.block, plan.own
    summed = _summed(problem, plan, machine)
    is_held = held_owners(problem, plan, machine) is not None

    # Of what lies behind an edge, the last element before it.
    inside = tc.function(lambda i, j: (min(i, m - 1), min(j, n - 1)))

    @tc.function
    def store(c: Value, acc: Value, further: Values, row: Value, col: Value) -> None:
        if is_held:
            for j, i in own:
                if row + i < m and col + j < n:
                    c[row + i, col + j] = epilogue(acc[j, i], further, col + j, (row + i, col + j))
        elif plan.swap_ab:
            done = tc.tile(problem.result, own)
            for j, i in own:
                done[j, i] = epilogue(
                    acc[j, i], further, min(col + j, n - 1), inside(row + i, col + j)
                )
            made = _swapped_back(plan, done)
            tc.store(c[row : row + high, col : col + broad], made)
        elif plan.specialize:
            done = tc.tile(problem.result, own)
            for i, j in own:
                done[i, j] = epilogue(
                    acc[i, j], further, min(col + j, n - 1), inside(row + i, col + j)
                )
            tc.store(c[row : row + high, col : col + broad], done)
        else:
            for i, j in own:
                if row + i < m and col + j < n:
                    c[row + i, col + j] = epilogue(acc[i, j], further, col + j, (row + i, col + j))

    @tc.function
    def whole(a: Value, b: Value, further: Values, c: Value) -> None:
        for row, col in tc.tiles(
            (m, n),
            by=plan.block,
            order=("grouped", plan.group),
            persistent=plan.specialize,
            cluster=plan.cluster,
        ):
            acc = summed(a, b, row, col, 0, k)
            store(c, acc, further, row, col)

    return whole


@tc.function
def _swapped_back(plan: Tiling, done: Value) -> Any:
    """c's part, of its transpose."""
    made = tc.shared(done.dtype[plan.block])
    for j, i in plan.own:
        made[i, j] = done[j, i]
    return made


def _summed(problem: Problem, plan: Tiling, machine: Machine) -> Function:
    """A tile's sums over `steps` of k from `first` on."""
    multiply = _multiply(problem, plan, machine)

    @tc.function
    def summed(a: Value, b: Value, row: Value, col: Value, first: Value, steps: Value) -> Any:
        acc = tc.tile(problem.total, plan.own, 0)
        for p in tc.pipeline(
            steps,
            by=plan.depth,
            stages=plan.stages,
            specialize=plan.specialize,
            turns="tiles" if plan.consumers > 1 else None,
        ):
            if plan.swap_ab:
                multiply(acc, b, a, col, row, first + p)
            else:
                multiply(acc, a, b, row, col, first + p)
        return acc

    return summed


def _multiply(problem: Problem, plan: Tiling, machine: Machine) -> Function:
    """Multiply one step's operands, each lying as it is given, or turned, and add to the sums."""
    (tall, wide), depth, by = plan.own.shape, plan.depth, problem.by
    turned, held = is_turned(problem, machine), held_owners(problem, plan, machine)
    left_along_k, right_along_k = not problem.transpose_a, problem.transpose_b
    gathered = problem.gathered and problem.gathered.load(plan.block[0], depth)
    gathers: tuple[Any, Any] = (gathered, None)
    if plan.swap_ab:
        left_along_k, right_along_k, gathers = right_along_k, left_along_k, gathers[::-1]

    @tc.function
    def staged(
        x: Value, first: Value, q: Value, width: Value, along_k: bool, load: Function | None
    ) -> Any:
        """Some rows of an operand, or columns, and a step of k."""
        if load is not None:
            return load(x, first, q)
        elif along_k and turned:
            return tc.load((depth, width), lambda step, i: x[first + i, q + step], fill=0)
        elif along_k:
            return tc.load(x[first : first + width, q : q + depth])
        else:
            return tc.load(x[q : q + depth, first : first + width])

    @tc.function
    def multiply(acc: Value, a: Value, b: Value, row: Value, col: Value, q: Value) -> None:
        sa = staged(a, row, q, tall, left_along_k, gathers[0])
        sb = staged(b, col, q, wide, right_along_k, gathers[1])
        left = sa if left_along_k and not turned else sa.T
        right = sb.T if right_along_k and not turned else sb
        if held is not None:
            part = tc.tile(sa.dtype, held)
            for i, step in held:
                part[i, step] = left[i, step]
            tc.mma(acc, part, right, by=by)
        elif turned:
            # Written out: what later steps multiply is read beside the products of earlier ones.
            for step in tc.static(range(depth)):
                tc.mma(acc, left[:, step : step + 1], right[step : step + 1, :], by=by)
        else:
            tc.mma(acc, left, right, by=by)

    return multiply
