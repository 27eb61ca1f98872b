"""The proofs at stage parsed; `passes/prove.py` runs them.

accesses     every access, with its loops and conditions
enumeration  expressions over all workers and slots at once
folding      indices that were divided into rows and columns
tiles, replicas, bounds, coverage (with boxes), races (with blocks): one question each
"""
