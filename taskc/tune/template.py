"""`@tc.tune`: a user's template with tuned choices.

@tc.tune(bk=[8, 16, 32], stages=[2, 3])
def matmul(m, n, k, *, bk=8, stages=2):
    ...
    return kernel

matmul(1024, 1024, 1024)                 # a kernel with the choices measured as best, or the defaults
matmul(1024, 1024, 1024, bk=16)          # a call's own choices; the others are the defaults
matmul.tune(1024, 1024, 1024)            # measure, and return the results
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import update_wrapper
from itertools import product
from pathlib import Path
from typing import Any

from taskc.dataclass import dataclass
from taskc.errors import CompileError
from taskc.lang.definition import Definition
from taskc.runtime.machine import Machine, machine
from taskc.tune.choose import choose
from taskc.tune.space import Operator, Space

Cost = Callable[..., float]


@dataclass(frozen=True, slots=True)
class Choices:
    """Values of a template's tuned keywords."""

    values: tuple[tuple[str, Any], ...]

    def cost(self, problem: Arguments, machine: Machine) -> float:
        """The author's cost in seconds; without one, the default comes first, and others are equal."""
        cost = problem.template.cost
        if cost is not None:
            return cost(**dict(problem.given), **dict(self.values))
        return float(dict(self.values) != problem.template.defaults())

    def variations(self, problem: Arguments, machine: Machine) -> tuple[Choices, ...]:
        return ()

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.values)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a template's call, without the tuned choices.

    source  a digest of the template's text, since measurements of another text don't count
    """

    template: Template = field(compare=False)
    source: str
    given: tuple[tuple[str, Any], ...]


class Template:
    """A Python function that returns a kernel or a program, and its tuned choices."""

    def __init__(
        self,
        function: Callable[..., Definition],
        choices: Mapping[str, Sequence[Any]],
        where: Callable[..., bool] | None,
        cost: Cost | None,
        reference: Callable[..., Any] | None,
    ) -> None:
        self.function, self.choices, self.where = function, choices, where
        self.cost, self.reference = cost, reference
        self.signature = inspect.signature(function)
        update_wrapper(self, function)
        # A module's name depends on whether its file is imported or run, so the file's name is used.
        name = f"{Path(inspect.getfile(function)).stem}.{function.__qualname__}"
        self.operator = Operator(name, _candidates, _build, (Choices,), None, cost is not None)

    def __call__(self, *args: Any, **keywords: Any) -> Definition:
        """Build with the choices measured as best; if the call makes some itself, the others are the defaults."""
        said = {name: keywords.pop(name) for name in list(keywords) if name in self.choices}
        if said:
            return self.function(*args, **keywords, **{**self.defaults(), **said})
        plan = choose(self.operator, self.arguments(*args, **keywords), machine())
        return self.function(*args, **keywords, **dict(plan.values))

    def space(self, *args: Any, **keywords: Any) -> Space[Arguments, Choices]:
        """All choices for a call."""
        return Space(self.operator, self.arguments(*args, **keywords), machine())

    def tune(self, *args: Any, **options: Any) -> Any:
        """Measure choices for a call with these arguments, and store the best for later calls.

        strategy, budget, most, seed, afresh, progress  as for `taskc.tune.tuned`; all other keywords are the template's
        """
        from taskc.tune.bench import OPTIONS, tuned

        how = {name: options.pop(name) for name in list(options) if name in OPTIONS}
        return tuned(self.space(*args, **options), reference=self.reference, **how)

    def arguments(self, *args: Any, **keywords: Any) -> Arguments:
        """A call's arguments, checked against the function's parameters."""
        for name in self.choices:
            if name in keywords:
                raise TypeError(f"{name} is what tuning chooses")
        bound = self.signature.bind(*args, **keywords, **self.defaults())
        bound.apply_defaults()
        values = {
            name: value for name, value in bound.arguments.items() if name not in self.choices
        }
        try:
            source = inspect.getsource(self.function)
        except OSError:
            source = ""
        digest = hashlib.sha256(source.encode()).hexdigest()[:16]
        return Arguments(self, digest, tuple(values.items()))

    def defaults(self) -> dict[str, Any]:
        """The function's own defaults, or else the first value of each choice."""
        parameters = self.signature.parameters
        return {
            name: values[0]
            if parameters[name].default is inspect.Parameter.empty
            else parameters[name].default
            for name, values in self.choices.items()
        }


def tune(
    *,
    where: Callable[..., bool] | None = None,
    cost: Cost | None = None,
    reference: Callable[..., Any] | None = None,
    **choices: Sequence[Any],
) -> Callable[[Callable[..., Definition]], Template]:
    """Make a template whose keywords are tuned; each choice is a keyword of the function with its values.

    where      a function of all choices, or of some, that returns whether they go together
    cost       a function of the call's arguments and the choices, in seconds: plans of least cost are measured first
    reference  a function of the kernel's inputs, NumPy arrays, that returns the right outputs; by default the
               defaults compute them
    """
    named = {name: tuple(values) for name, values in choices.items()}
    for name, values in named.items():
        if not values:
            raise CompileError(f"the choice {name!r} has no values")

    def decorate(function: Callable[..., Definition]) -> Template:
        parameters = inspect.signature(function).parameters
        for name in named:
            if name not in parameters:
                raise CompileError(f"{function.__name__} has no parameter {name!r} to choose")
        return Template(function, named, where, cost, reference)

    return decorate


def _candidates(problem: Arguments, machine: Machine) -> Iterator[Choices]:
    template = problem.template
    defaults = template.defaults()
    yield Choices(tuple(defaults.items()))
    for values in product(*template.choices.values()):
        named = dict(zip(template.choices, values, strict=True))
        if named != defaults and _go_together(template.where, named):
            yield Choices(tuple(named.items()))


def _go_together(where: Callable[..., bool] | None, named: dict[str, Any]) -> bool:
    if where is None:
        return True
    wanted = inspect.signature(where).parameters
    return where(**{name: value for name, value in named.items() if name in wanted})


def _build(problem: Arguments, plan: Choices, machine: Machine) -> Definition:
    return problem.template.function(**dict(problem.given), **dict(plan.values))
