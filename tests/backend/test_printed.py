"""Lines that kernels print."""

from __future__ import annotations

import numpy as np

from taskc.backend.printed import printed


def test_braces_are_braces() -> None:
    assert printed("{} of {{}}: {x}, }", [1, np.float32(0.5)]) == "1 of {0.5}: {x}, }"
    assert printed("{x}", []) == "{x}"
