"""What the cost of a plan asks about a machine, beside `Machine`: rates, and shares of the peak.

What another machine could want otherwise is a row here, not a constant of an algorithm. A share says how much of the
peak a tile of registers reaches where nothing else is in its way: of processors they were measured; of GPUs they order
tiles by what they load for a product, and were never measured. What no table has counts as slow, so that tuning meets
it last.
"""

from __future__ import annotations

UNMEASURED = 0.01  # of the peak

CLOCK = 3e9  # cycles of a processor in a second
BANDWIDTH = 2e10  # bytes that a processor reads in a second
GPU_CLOCK = 1.5e9
GPU_BANDWIDTH = 2e12

# Of processors, by their vector registers: rows and vectors of a tile that leaves room for a row of b.
PANELS = {
    32: {
        (8, 3): 1.0,
        (6, 4): 0.99,
        (12, 2): 0.97,
        (14, 2): 0.95,
        (4, 4): 0.9,
        (2, 8): 0.85,
        (1, 8): 0.6,
        (1, 4): 0.5,
    },
    16: {(4, 3): 1.0, (6, 2): 1.0, (3, 4): 0.95, (2, 4): 0.85, (1, 8): 0.6, (1, 4): 0.5},
}
# The same of tiles that leave room for a pack of b in each vector, one of a, and the sums of signed products.
PACKS = {
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
# Fragments of tile registers: of their loads and products, how many are products, times their advantage.
TILE_REGISTERS = {(2, 2): 7.0, (1, 3): 6.0, (3, 1): 6.0, (1, 1): 4.5}

BLOCKS_OF_A_THREAD = 4  # so that no thread waits long for another one
DEEPEST_PANEL = 1 << 12  # rows of b whose panel stays in a core's own cache
# A core finds so many pages of memory fast. Where the rows of b are in more of them, panels beside each other are
# filled from some rows before it goes on to the next, unless many rows of a make up for the search.
PAGES, PAGE = 1280, 1 << 12
ROWS_OF_PAGES, PANELS_BESIDE, ROWS_THAT_MAKE_UP = 512, 8, 1 << 10
NEAR_SUMS = 1 << 15  # of a block of few rows; wide rows matter more than the nearest cache

# Of GPUs: warps of a block, and fragments of a warp, rows by columns. A fragment of an instruction is 16 x 8, of
# fused multiply-adds 16 x 32.
FRAGMENTS = {
    ((2, 4), (4, 8)): 1.0,
    ((2, 2), (4, 8)): 0.95,
    ((2, 2), (4, 4)): 0.8,
    ((2, 2), (2, 4)): 0.6,
    ((1, 4), (1, 4)): 0.4,
    ((1, 4), (1, 2)): 0.3,
    ((2, 2), (1, 2)): 0.25,
}
SQUARES = {
    ((4, 2), (2, 2)): 1.0,
    ((2, 2), (2, 2)): 0.8,
    ((2, 2), (2, 1)): 0.6,
    ((2, 2), (1, 1)): 0.4,
    ((1, 2), (1, 1)): 0.25,
}
# Columns of a warpgroup's fragment, and warpgroups, of instructions that run beside their workers.
WARPGROUPS = {
    (256, 2): 1.7,
    (192, 2): 1.6,
    (128, 2): 1.5,
    (64, 2): 1.3,
    (256, 1): 1.3,
    (128, 1): 1.1,
    (64, 1): 0.9,
    (32, 1): 0.6,
}
# The same of convolutions in groups.
FRAGMENTS_OF_GROUPS = {
    ((2, 4), (4, 8)): 1.0,
    ((2, 2), (4, 8)): 0.95,
    ((2, 2), (4, 4)): 0.8,
    ((2, 2), (2, 4)): 0.6,
    ((4, 1), (2, 4)): 0.55,
    ((1, 4), (1, 2)): 0.3,
    ((2, 2), (1, 2)): 0.25,
}
SQUARES_OF_GROUPS = {
    ((4, 2), (2, 2)): 1.0,
    ((2, 2), (2, 2)): 0.8,
    ((2, 2), (2, 1)): 0.6,
    ((2, 2), (1, 1)): 0.4,
    ((2, 1), (1, 1)): 0.25,
}
WARPGROUPS_OF_GROUPS = {(128, 2): 1.5, (64, 2): 1.3, (128, 1): 1.1, (64, 1): 0.9, (32, 1): 0.6}
WITHOUT_PRODUCER = 0.9  # of that where workers load for themselves
TURNED = 1.0  # where the instruction's columns are the rows of a

# Of a multiprocessor in a cycle: multiply-adds by instructions on operands of a byte, by workers, bytes of
# operands that it loads, and of parts that it stores or loads. Cycles until the kernel runs that adds them.
MULTIPLIED, FUSED, LOADED, CARRIED, NEXT_KERNEL = 2048, 64, 48, 32, 3000

# Bytes of k in each row of a block's operands: of what workers load, and of the widest swizzle.
LINE, WIDEST_LINE = 64, 128
BANK_SPREAD = 32  # bytes behind each row of what isn't loaded whole by instructions
MOST_PARTS, LEAST_PART = 16, 256  # of k, and steps of one
SHORTEST_COPIED = 512  # extents of matrices whose copies are little beside their product

MEMORY_LINE = 128  # bytes by which memory is read
BYTES_UNDER_WAY, ACCESSES_UNDER_WAY = (
    128,
    32,
)  # of a worker that streams; accesses where they are narrow
BLOCKS_THAT_STREAM = 4  # to a multiprocessor, of parts of k

# Of attention on processors, by vector registers: rows and vectors of tiles that leave room for a row of queries
# and an element. Keys at a time whose powers stay in the nearest caches.
ATTENTION_TILES = {32: ((4, 4), (8, 2), (16, 1)), 16: ((4, 2), (8, 1))}
KEYS_OF_A_STEP = 128

GPU_CACHE = 1 << 25  # bytes that its second cache surely keeps
BLOCKS_OF_PARTS, LEAST_KEYS_OF_A_PART = 4, 256  # of a multiprocessor; of attention to few queries
# Registers of a worker for sums, scores and powers, where a producer gives up its own; the same beside a mask.
HELD_REGISTERS, HELD_BESIDE_MASK = 176, 128

WORKERS = 256  # of a GPU's block: eight of them fill a multiprocessor
ACCESS = 16  # bytes of the widest one
LEAST_BLOCKS = 4  # to a multiprocessor, before a worker has more than one access
WORKERS_BESIDE = 64  # where an extent is known only at a call
STEPS_OF_A_PART = 4  # of a reduction's block, that are worth a part of its own

# Elements that a worker has of a row that stays in registers: where a warp is enough for a row nothing
# waits for other warps; beyond that fewer, so that more workers have something under way, up to as many as
# can fold what each of them has found without more reads of it than of the row.
OF_A_WARP, OF_A_BLOCK, MOST_OF_A_ROW, ENOUGH_WORKERS = 32, 16, 32, 512

# Of rows on processors. More steps than the compiler writes out: a row of constant length stays a loop. The powers of
# so many elements are kept, where the nearest caches hold them; of longer rows they are computed again. A row of so
# many, its powers and the result of the row before stay in the nearest caches; and the most rows of a block.
STEPS_OF_A_ROW, KEPT, PAIRED, PAIRED_ROWS = 17, 1 << 14, 1 << 13, 16

# Of transposes: squares along each side of a processor's block; elements of a side of the square that a worker of a
# GPU has in registers; bytes of shared memory that are read at one time. Of short rows: rows of a run, so that
# neighbours among a warp's workers have them in different banks, and the bytes of the longest one.
SQUARES_OF_A_BLOCK, SIDE_OF_A_SQUARE, BANKS = 16, 8, 128
ROWS_OF_A_RUN, LONGEST_RUN = 64, 1 << 15
