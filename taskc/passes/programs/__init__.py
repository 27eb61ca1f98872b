"""Passes over programs: Program -> Program, one a file."""
