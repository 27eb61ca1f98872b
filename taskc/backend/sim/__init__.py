"""The simulator: a NumPy interpreter of the IR at any stage, which is both the oracle and the checker."""

from taskc.backend.sim.breakpoints import Stop
from taskc.backend.sim.report import AccessTraffic, Report
from taskc.backend.sim.run import run

__all__ = ["AccessTraffic", "Report", "Stop", "run"]
