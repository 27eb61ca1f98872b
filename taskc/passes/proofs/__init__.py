"""The proofs at stage parsed; `passes/prove.py` runs them.

program      every access, with its loops and conditions
enumeration  expressions over all workers and slots at once
tiles, replicas, bounds, coverage (with boxes), races (with blocks): one question each
wording      names of workers, tasks and elements in findings
"""
