"""Pooling of whole images: a reduction of rows and columns."""

from __future__ import annotations

from dataclasses import replace

from taskc import KernelDefinition, Machine, ProgramDefinition
from taskc.kernels import reductions
from taskc.kernels.pooling.problem import Problem
from taskc.kernels.reductions.problem import problem_of


def whole(problem: Problem, machine: Machine) -> KernelDefinition | ProgramDefinition:
    """Of NHWC and NCHW. What is left of them, one pixel, lies the same in both."""
    operator = "mean" if problem.operator == "average" else problem.operator
    axes = (1, 2) if problem.order == "NHWC" else (2, 3)
    fold = problem_of(operator, problem.given.shape, axes, problem.dtype, keepdims=True)
    made = problem.made.reshape(*fold.made.shape)
    return reductions.build(replace(fold, made=made), None, machine)
