"""What is proved at stage parsed; `passes/prove.py` runs all of it.

program      every access, with the loops and conditions that it is under
enumeration  expressions over all workers and slots at once
tiles, replicas, bounds, coverage (with boxes), races (with blocks): one question each
wording      how findings name workers, tasks and elements
"""
