"""The tuner: which plan an operator takes, and how the best one is found.

space       what there is to choose from: an operator's plans for a problem
choose      what a call takes, without measuring
strategies  which plans are measured, and in what order
tuner       the loop: built, compiled, checked and timed once each
bench       worker processes that do it (worker, workers, parcel, timing)
database    what was measured, on disk
template    `@tc.tune`: choices of a user's template

The package is that decorator, too: `taskc.tune(bk=[8, 16])`.
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
