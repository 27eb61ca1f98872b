"""Abuse: many cases that no user would write on purpose, each of which must end in a right result or in one
sentence. `python -m tests.abuse` runs them in processes of their own, so that a crash or a hang costs one case.
"""
