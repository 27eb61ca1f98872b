"""What a kernel of the library is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Same = Callable[..., np.ndarray]


@pytest.fixture
def same_bits(monkeypatch: pytest.MonkeyPatch) -> Same:
    """`same_bits(make, *arguments)`: what a call returns, which is the simulator's result to the bit."""

    def check(make: Callable[[], Any], *arguments: Any) -> np.ndarray:
        made: np.ndarray = make()(*arguments)
        with monkeypatch.context() as patch:
            patch.setenv("TASKC_TARGET", "sim")
            expected = make()(*arguments)
        assert made.dtype == expected.dtype
        assert made.tobytes() == expected.tobytes()
        return made

    return check
