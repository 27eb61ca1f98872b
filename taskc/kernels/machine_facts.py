"""Facts that the costs of plans count with, beside `Machine`: rates of machines, and what pays on them.

There is one value for processors and one for GPUs. What another machine could want otherwise is a field here, not a
constant of an algorithm, so that a calibration can put a machine's own value in its place.

What is said of processors was measured on two cores of an AMD EPYC with AVX-512, which has 32 vector registers; the
tables for 16 registers were counted by their loads, and the clock and the bandwidth are round numbers. Rates that were
measured of other processors come with the database, and take their place. What is said of GPUs orders plans as an
H100 did; its seconds are guesses. A share is how much of the peak a tile of registers reaches where nothing else is in
its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, fields, replace
from math import prod
from typing import Any

from taskc import Machine, TensorType, machine
from taskc.dataclass import dataclass
from taskc.ir.target import DotInstruction, TileInstruction
from taskc.tune.choose import processor
from taskc.tune.database import database
from taskc.tune.space import Work

UNMEASURED_SHARE = 0.01  # of what no table has, so that tuning meets it last

Extents = tuple[int, int]
Tiles = dict[tuple[Extents, Extents], float]  # shares, by warps and by fragments of a warp


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorFacts:
    cycles_per_second: float = 3e9
    bytes_per_second: float = 2e10  # that all threads read
    fused_per_cycle: float = 1  # multiply-adds of vectors
    # Of vectors, and of single numbers for all lanes: fitted to tiles of 6 to 30 rows, on one that could do two.
    loads_per_cycle: float = 1.5
    fused_latency: float = 4  # cycles until a multiply-add's sum may be added to
    registers_to_pick: int = 3  # to a sum, whose lanes are of several groups
    tile_cycles: float = 40  # for beginning and ending a tile of registers
    panel_tile_cycles: float = 10  # the same of a tile of a GEMM
    broadcast_cycles: float = 1.4  # for a pack of a pixel's channels, on all lanes
    copy_cycles: float = 3  # for a vector that isn't as wide as a register
    step_bytes: int = 64  # of a pixel's channels, that are copied to lie beside each other
    scan_cycles: float = 12  # for the prefixes of a vector's lanes
    sum_cycles: float = 2  # for adding a vector to a sum
    gathered_cycles: float = 2  # for a number of a vector whose lanes lie apart
    step_seconds: float = 5e-6  # until all threads have the next call of a program
    # Bytes of a cycle that a core reads from its nearest cache, from its own, and from the one that it shares: of these
    # it reads ahead.
    near_bytes: int = 1 << 15
    near_bytes_per_cycle: float = 64
    own_bytes_per_cycle: float = 32
    shared_bytes_per_cycle: float = 32
    shared_bytes: int = 1 << 25
    kept_share: float = 0.9  # of a core's own cache, which keeps what is needed again
    ways: int = 8  # lines in a set of a core's caches
    missed_cycles: float = 3  # of a step, for a row that the nearest cache doesn't keep
    rows_ahead: int = 12  # that a core reads ahead side by side
    late_cycles: float = 0.5  # of a step, for a row beyond these
    # Rows of a matrix that are read in short runs: cycles for finding a row's page, where a core remembers it, and
    # where it doesn't; and for a run that is in no cache of its own, since nothing reads that ahead.
    page_bytes: int = 1 << 12
    pages_found_fast: int = 2400
    page_cycles: float = 3
    search_cycles: float = 70
    fetch_cycles: float = 24
    copied_bytes_per_cycle: float = 12  # into a panel
    widening_cycles: float = 1  # of a vector of shorter numbers that is loaded
    overlap_power: float = 3  # what goes on at the same time takes a root of a sum of such powers

    # Shares, by vector registers, of tiles of rows and vectors that leave room for a pack of b in each vector, one of
    # a, and the sums of signed products.
    pack_tile_shares: dict[int, dict[Extents, float]] = field(
        default_factory=lambda: {
            32: {
                (12, 2): 1.0,
                (8, 3): 0.97,
                (8, 2): 0.95,
                (6, 4): 0.9,
                (4, 4): 0.85,
                (4, 2): 0.7,
                (2, 4): 0.7,
                (1, 8): 0.6,
                (1, 4): 0.5,
            },
            16: {(4, 2): 1.0, (3, 2): 0.95, (2, 3): 0.85, (1, 4): 0.6},
        }
    )
    # The same of fragments of tile registers, whose instructions do several times as much: of their loads and
    # products, how many are products, times their advantage.
    tile_register_shares: dict[Extents, float] = field(
        default_factory=lambda: {(2, 2): 7.0, (1, 3): 6.0, (3, 1): 6.0, (1, 1): 4.5}
    )
    # Rows and vectors of attention's tiles that leave room for a row of queries and an element, the best first.
    attention_tiles: dict[int, tuple[Extents, ...]] = field(
        default_factory=lambda: {32: ((4, 4), (8, 2), (16, 1)), 16: ((4, 2), (8, 1))}
    )

    blocks_per_thread: int = 4  # so that no thread waits long for another one
    cached_panel_rows: int = 1 << 12  # of b, whose panel stays in a core's own cache
    # Of a block of few rows; wide rows matter more than the nearest cache.
    cached_sum_bytes: int = 1 << 17
    attention_step_keys: int = 128  # whose powers stay in the nearest caches

    # that the compiler writes out: a row of constant length in more is a loop
    unrolled_steps: int = 16
    # Of powers of neighbouring columns, that the nearest caches keep; of longer ones they are computed again.
    cached_power_bytes: int = 1 << 16
    transposed_squares: int = 16  # along each side of a block, which share their cache lines

    def beside(self, one: float, other: float) -> float:
        """Cycles of what a core does at the same time, as far as it can."""
        power = self.overlap_power
        return float((one**power + other**power) ** (1 / power))

    def rate(self, nbytes: float, machine: Machine) -> float:
        """Bytes of a cycle, where so many are read again and again."""
        if nbytes <= self.near_bytes / 2:
            return self.near_bytes_per_cycle
        if nbytes <= machine.fast_memory / 2:
            return self.own_bytes_per_cycle
        if nbytes <= self.shared_bytes / 2:
            return self.shared_bytes_per_cycle
        return self.bytes_per_second / self.cycles_per_second / machine.threads


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """Registers are a worker's, cycles and bytes of a cycle a multiprocessor's."""

    cycles_per_second: float = 1.5e9
    bytes_per_second: float = 2e12  # of memory, for all multiprocessors
    byte_products_per_cycle: int = 2048  # multiply-adds by instructions on operands of a byte
    fused_per_cycle: int = 128  # multiply-adds by workers
    operand_bytes_per_cycle: int = 64  # that products load
    step_cycles: int = 300  # of a block, from one load's operands to the next one's
    part_bytes_per_cycle: int = 10  # of parts of sums, stored or loaded
    result_bytes_per_cycle: int = 32  # that leave with a tile, or are added to it
    unpacked_per_cycle: int = 48  # weights of 4 bits, by whole words, in a multiprocessor
    unpacked_before_per_cycle: int = 16  # weights that are unpacked one by one, before a barrier
    reading_warps: int = 4  # of a multiprocessor, that have memory busy
    next_kernel_cycles: int = 3000  # until the kernel runs that adds parts up
    cache_bytes: int = 1 << 25  # that the second cache surely keeps
    line_bytes: int = 128  # by which memory is read
    access_bytes: int = 16  # of the widest one
    bank_bytes: int = 128  # of shared memory, that are read at one time
    swizzle_bytes: int = 128  # of k in each row of what bulk copies load, by the widest swizzle

    # Shares of tiles. A fragment of an instruction is 16 x 8, of fused multiply-adds 16 x 32.
    instruction_tiles: Tiles = field(
        default_factory=lambda: {
            ((2, 4), (4, 8)): 1.0,
            ((2, 2), (4, 8)): 0.95,
            ((2, 2), (4, 4)): 0.8,
            ((2, 2), (2, 4)): 0.6,
            ((1, 4), (1, 4)): 0.4,
            ((1, 4), (1, 2)): 0.3,
            ((2, 2), (1, 2)): 0.25,
        }
    )
    fused_tiles: Tiles = field(
        default_factory=lambda: {
            ((4, 2), (2, 2)): 0.95,
            ((2, 2), (4, 1)): 0.9,
            ((2, 2), (2, 2)): 0.9,
            ((2, 2), (2, 1)): 0.75,
            ((2, 2), (1, 1)): 0.5,
            ((1, 2), (1, 1)): 0.3,
        }
    )
    # Columns of a warpgroup's fragment, and warpgroups, of instructions that run beside their workers.
    warpgroup_tiles: dict[Extents, float] = field(
        default_factory=lambda: {
            (256, 2): 2.0,
            (192, 2): 1.9,
            (128, 2): 1.65,
            (64, 2): 1.0,
            (256, 1): 1.65,
            (128, 1): 1.06,
            (64, 1): 0.7,
            (32, 1): 0.4,
        }
    )
    # By two consumers in turn: columns of a fragment, and fragments of a warpgroup, one below the other.
    tiles_in_turn: tuple[Extents, ...] = ((128, 2),)
    least_steps_in_turn: int = 4  # of k: what has fewer is bound by memory, not by who multiplies
    share_without_producer: float = 0.9  # of that where workers load for themselves
    # An operand of tf32 that lies across k may be held in registers: columns that would be multiplied while these are
    # filled, and rows of a from which on a copy that lies along k takes less.
    held_columns: int = 24
    turned_rows: int = 6144
    transposed_share: float = 1.3  # where the instruction's columns are the rows of a

    step_bytes: int = 64  # of k in each row of what workers load
    # behind each row of what isn't loaded whole by instructions, for the banks
    padded_row_bytes: int = 32
    most_parts: int = 16  # of k
    least_part_steps: int = 256  # of k
    shortest_copied_extent: int = 512  # of matrices whose copies are little beside their product
    part_blocks: int = 4  # to a multiprocessor, of attention to few queries
    least_part_keys: int = 256
    # For sums, scores and powers, where a producer gives up its own; the same beside a mask.
    attention_registers: int = 176
    attention_registers_beside_mask: int = 128
    keys_of_step: int = 24  # a step of attention takes as long as so many keys more than it has
    # of the time of attention whose warpgroups take no turns, where there are three; two gain nothing
    alternating_share: float = 0.95
    first_keys_cycles: int = 2500  # from a block's launch until its first keys are there
    attention_registers_for_third: int = 56  # of these, where three warpgroups multiply and not two

    block_workers: int = 256  # eight such blocks fill a multiprocessor
    scan_workers: int = 512  # of a long line, who wait for each other at each step
    bytes_in_flight: int = 128  # of a worker that streams, and accesses where they are narrow
    accesses_in_flight: int = 32
    least_blocks: int = 4  # to a multiprocessor, before a worker has more than one access
    streaming_blocks: int = 4  # to a multiprocessor, that keep its memory busy
    vector_blocks: int = 2  # to a multiprocessor, of parts of a sum that another kernel adds up
    workers_along: int = 64  # an axis whose extent is known only at a call
    least_part_accesses: int = 4  # steps of a reduction's block that are worth a part of its own
    # Elements that a worker has of a row that stays in registers: where a warp is enough for a row nothing waits for
    # other warps; beyond that fewer, so that more workers have something under way, up to as many workers as can
    # fold what each of them has found without more reads of it than of the row.
    row_elements_of_warp: int = 32
    row_elements_of_block: int = 16
    most_row_elements: int = 32
    row_workers: int = 512
    square_side: int = 8  # elements of a side of the square that a worker has in registers
    run_rows: int = 64  # of short rows, so that a warp's workers have them in different banks
    longest_run_bytes: int = 1 << 15


_LEAST_FACT, _MOST_FACT = 1e-3, 1e18  # what can have been measured of any machine


def with_measured(facts: ProcessorFacts, measured: Mapping[str, float]) -> ProcessorFacts:
    """The facts, with what was measured of a machine in their place."""
    known = {item.name for item in fields(facts) if item.type == "float"}
    taken: dict[str, Any] = {
        name: value
        for name, value in measured.items()
        if name in known and _LEAST_FACT <= value <= _MOST_FACT
    }
    return replace(facts, **taken)


def _calibrated() -> Mapping[str, float]:
    """Facts measured on this processor, now or earlier; works without LLVM."""
    try:
        here = machine()
    except ImportError:
        return {}
    return database().facts(processor(here))


PROCESSOR = with_measured(ProcessorFacts(), _calibrated())
GPU = GpuFacts()


def seconds_of_bytes(nbytes: float, machine: Machine) -> float:
    """As long as memory takes to be read and written, by blocks that are many."""
    facts = PROCESSOR if machine.is_processor else GPU
    return nbytes / facts.bytes_per_second


# --- The least that a problem takes on a machine: what the tuner's results are compared with ----


Types = Iterable[TensorType]


def work_of_products(
    products: int, multiplied: tuple[object, object, object], operands: Types, machine: Machine
) -> Work:
    """Of so many multiply-adds, of numbers of these types, into a sum of the third one."""
    facts = PROCESSOR if machine.is_processor else GPU
    rate = 2 * products_per_second(multiplied, machine)
    return Work(2 * products, _bytes(operands), rate, facts.bytes_per_second)


def products_per_second(multiplied: tuple[object, object, object], machine: Machine) -> float:
    """Multiply-adds at the peak of the widest instruction that there is for such numbers."""
    rows = [row for row in machine.products if row.types == multiplied]
    if not machine.is_processor:
        width = getattr(multiplied[0], "nbytes", 4)
        per_cycle = GPU.byte_products_per_cycle / width if rows else GPU.fused_per_cycle
        return per_cycle * machine.threads * GPU.cycles_per_second
    width = getattr(multiplied[2], "nbytes", 4)
    in_vector = machine.vector_bytes / width * PROCESSOR.fused_per_cycle
    packs = [row.pack for row in rows if isinstance(row, DotInstruction)]
    tiles = [16.0 * row.pack for row in rows if isinstance(row, TileInstruction)]
    per_cycle = in_vector * max([1.0, *packs, *tiles])
    return per_cycle * machine.threads * PROCESSOR.cycles_per_second


def _bytes(operands: Types) -> int:
    return sum(
        item.dtype.bytes_of(prod(n for n in item.shape if isinstance(n, int))) for item in operands
    )
