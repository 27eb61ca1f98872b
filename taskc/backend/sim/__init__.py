"""The simulator: a NumPy interpreter of the IR at any stage, the oracle and the checker."""
