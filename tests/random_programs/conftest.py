"""Prints what the random programs of a run covered, whichever processes they ran in."""

from __future__ import annotations

import pytest

from tests.random_programs.coverage import Coverage


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total = Coverage()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "random programs" and getattr(report, "when", "") == "call":
                    total.merge(Coverage.from_json(value))
    if total.programs:
        terminalreporter.section("random programs")
        terminalreporter.write_line(total.table())
