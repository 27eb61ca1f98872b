"""Analyses that several passes or backends use, each in one place.

    facts        facts at a point: does a condition hold, what are an index's bounds, what divides it? By prove,
                 simplify, select, overlap, layout, flatten, vectorize and CUDA's emitter
    prover       the proofs of facts, and the terms of a sum. By facts, synchronize, layout, hoist, overlap, prove and
                 the simulator
    touches      every access of a statement or an expression, with the facts that hold there, and loops that end
                 before their range does. By prove, synchronize, phases and the backends
    indices      the part of an index that all workers share, and the rest for each of them. By prove, accesses
                 and lower_mappings
    accesses     may two accesses conflict, and between how many workers? By synchronize, layout and prove
    phases       the accesses of a phase. By synchronize, layout, lower_rings and await_products
    coalescing   the banks, the widest access and the panels of memory. By select, overlap, layout, the lowering of
                 moves and the simulator's advice

The linear forms of facts are in taskc/ir (affine.py), since the IR's verifier and the language compare sizes
with them. The simulator's race shadow uses nothing here: an oracle shares no code with what it checks.
"""
