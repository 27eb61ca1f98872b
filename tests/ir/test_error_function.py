"""The error function, held to mpmath."""

import mpmath
import numpy as np

from taskc.ir.arithmetic import erf, erfc
from tests.ir.exact import assert_same


def test_error_function_against_mpmath():
    random = np.random.default_rng(6)
    x = np.concatenate(
        [random.uniform(-7, 7, 600), random.uniform(-27, 27, 300), [0.46875, 4.0, -4.0]]
    )
    x = np.concatenate([x, 10.0 ** random.uniform(-300, 0, 100)])
    with mpmath.workdps(40):
        exact = [float(mpmath.erf(v)) for v in x.tolist()]
        complement = [float(mpmath.erfc(v)) for v in x.tolist()]
    np.testing.assert_allclose(erf(x), exact, rtol=1e-15, atol=0)
    np.testing.assert_allclose(erfc(x), complement, rtol=2e-15, atol=1e-305)
    special = np.array([np.inf, -np.inf, -0.0, np.nan])
    assert_same(erf(special), [1, -1, -0.0, np.nan])
    assert_same(erfc(special), [0, 2, 1, np.nan])
