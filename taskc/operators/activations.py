"""The activation functions of recurrent cells, by the names that models use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import taskc as tc
from taskc.operators.call import Call

Function = Callable[..., Any]

# Each with its default alpha and beta; None where it takes none.
_FUNCTIONS: dict[str, tuple[Function, float | None, float | None]] = {
    "affine": (lambda x, alpha, beta: alpha * x + beta, 1.0, 0.0),
    "elu": (lambda x, alpha, beta: x if x >= 0 else alpha * tc.expm1(x), 1.0, None),
    "hardsigmoid": (lambda x, alpha, beta: min(max(alpha * x + beta, 0), 1), 0.2, 0.5),
    "leakyrelu": (lambda x, alpha, beta: x if x >= 0 else alpha * x, 0.01, None),
    "relu": (lambda x, alpha, beta: max(x, 0), None, None),
    "scaledtanh": (lambda x, alpha, beta: alpha * tc.tanh(beta * x), 1.0, 1.0),
    "sigmoid": (lambda x, alpha, beta: tc.sigmoid(x), None, None),
    "softplus": (lambda x, alpha, beta: tc.softplus(x), None, None),
    "softsign": (lambda x, alpha, beta: x / (1 + abs(x)), None, None),
    "tanh": (lambda x, alpha, beta: tc.tanh(x), None, None),
    "thresholdedrelu": (lambda x, alpha, beta: x if x >= alpha else 0, 1.0, None),
}


def activations_of(call: Call, usual: list[str], directions: int) -> list[list[Function]]:
    """The functions of the cell for each direction. Alphas and betas are used up in order."""
    names = call.attribute("activations") or usual * directions
    if len(names) < len(usual) * directions:
        raise call.node.error(f"it names {len(names)} activations, for {directions} directions")
    alphas = iter(call.attribute("activation_alpha") or [])
    betas = iter(call.attribute("activation_beta") or [])
    clip = call.attribute("clip", 0.0)
    functions = [
        _activation(call, name, alphas, betas, clip) for name in names[: len(usual) * directions]
    ]
    return [functions[n : n + len(usual)] for n in range(0, len(functions), len(usual))]


def _activation(
    call: Call, name: str, alphas: Iterator[float], betas: Iterator[float], clip: float
) -> Function:
    """One activation function with its alpha and beta; `clip` bounds its argument."""
    if name.lower() not in _FUNCTIONS:
        raise call.node.error(f"taskc has no activation '{name}'")
    function, alpha, beta = _FUNCTIONS[name.lower()]
    if alpha is not None:
        alpha = next(alphas, alpha)
    if beta is not None:
        beta = next(betas, beta)
    of = tc.function(function)
    if not clip:
        return tc.function(lambda x: of(x, alpha, beta))
    return tc.function(lambda x: of(min(max(x, -clip), clip), alpha, beta))
