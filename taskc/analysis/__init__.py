"""Analyses that several passes or backends use, each in one place.

    facts        facts at a point: does a condition hold, what are an index's bounds, what divides it? Its
                 parts are known, prover and wrapping. By prove, simplify, select, overlap, layout, flatten, vectorize
                 and CUDA's emitter
    sums         the terms of a sum. By synchronize, layout, hoist, overlap, prove and the simulator
    reads        the memory that an expression reads, with the conditions. By touches and CUDA's emitter
    touches      every access of a statement, with the facts that hold there. By prove and phases
    indices      the part of an index that all workers share, and the rest for each of them. By prove, accesses
                 and lower_mappings
    accesses     may two accesses conflict, and between how many workers? By synchronize and layout
    phases       the accesses of a phase. By synchronize, layout, lower_rings and await_products
    collisions   do different agents touch one element? By prove, and by accesses
    banks        cycles of the banks of shared memory. By layout and the simulator's advice
    widths       the widest access of a place. By select, overlap, layout and the lowering of moves
    panels       shared memory in panels of columns, for matrix instructions and bulk copies. By the same passes

The linear forms of facts are in taskc/ir (affine.py), since the IR's verifier and the language compare sizes
with them. The simulator's race shadow uses nothing here: an oracle shares no code with what it checks.
"""
