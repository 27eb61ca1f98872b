"""The tuner: choose an operator's plan, and search for the best one.

space       the plans of an operator for a problem
choose      the choice of a plan at a call, without measuring
strategies  the order in which plans are measured
tuner       the loop: each plan is built, compiled, checked and timed once
bench       worker processes for that (worker, workers, stages, timing)
database    measurements on disk
template    `@tc.tune`: tuned choices of a user's template

The package is also that decorator: `taskc.tune(bk=[8, 16])`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A module that can be called: `tc.tune` names the decorator and the package."""

    def __call__(self, **options: Any) -> Any:
        from taskc.tune.template import tune

        return tune(**options)


sys.modules[__name__].__class__ = _Package
