"""What several passes or backends ask of a program, each question answered in one place.

    facts        what is known at a point: does a condition hold, what are an index's bounds, what divides it? Its
                 parts are known, prover and wrapping. By prove, simplify, select, overlap, layout, flatten, vectorize
                 and CUDA's emitter
    sums         what does a sum add up? By synchronize, layout, hoist, overlap, prove and the simulator
    reads        which memory does an expression read, and under which conditions? By touches and CUDA's emitter
    touches      every access of a statement, with what is known there. By prove and phases
    indices      what do all workers share of an index, and what is the rest, for each of them? By prove, accesses
                 and lower_mappings
    accesses     may two accesses conflict, and of how many workers? By synchronize and layout
    phases       the accesses of a phase. By synchronize, layout, lower_rings and await_products
    collisions   do different agents touch one element? By prove, and by accesses
    banks        how many cycles do the banks of shared memory take? By layout and the simulator's advice
    widths       how many elements may one access take? By select, overlap, layout and what lowers moves
    panels       shared memory in panels of columns, as matrix instructions and bulk copies take it. By the same

The linear forms that facts are made of are in taskc/ir (affine.py): the IR's verifier and the language compare sizes
by them. The simulator's race shadow asks nothing here: an oracle shares no code with what it checks.
"""
