"""Gradients of programs: reverse mode over the calls of a traced program, as a program of its own.

    gradient = tc.gradient(loss, wrt=["w", "b"])          grad_w, grad_b = gradient(x, w, b)

derivatives.py  a table of the derivatives of expressions
index_maps.py   from the elements that a computation reads to those that read them
straight.py     a program as calls that each write memory of their own
rules.py        the gradients of templates, by their problems; rules_images.py: of convolutions and poolings
walk.py         the calls backwards
"""

from __future__ import annotations

from collections.abc import Sequence

from taskc.gradients import rules_images  # noqa: F401 (registers its rules)
from taskc.gradients.walk import differentiated
from taskc.programs.definition import ProgramDefinition

__all__ = ["gradient", "value_and_gradient"]


def gradient(
    program: ProgramDefinition, of: str = "loss", wrt: Sequence[str] = ()
) -> ProgramDefinition:
    """The program of the gradients of an output with respect to some inputs; it returns grad_x for an input x.

    It takes what the program takes. If the output `y` has several elements, it also takes grad_y: the gradient, with
    respect to them, of what is computed of them.

    of   the name of the output
    wrt  the names of the inputs
    """
    return differentiated(program, of, wrt, with_value=False)


def value_and_gradient(
    program: ProgramDefinition, of: str = "loss", wrt: Sequence[str] = ()
) -> ProgramDefinition:
    """The same program, which returns the output itself before the gradients."""
    return differentiated(program, of, wrt, with_value=True)
