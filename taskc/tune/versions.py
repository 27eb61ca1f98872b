"""What a measurement is valid for: the machine it was made on, and the version of what compiles."""

from __future__ import annotations

from functools import cache

from taskc.runtime.machine import Machine
from taskc.runtime.settings import VERSION
from taskc.runtime.targets import compiler_version


def fingerprint(machine: Machine) -> str:
    """The name of a machine in the database, by which plans are kept."""
    return f"{machine.name}, {machine.threads} threads, {machine.fast_memory >> 10} KiB"


def processor(machine: Machine) -> str:
    """The same however many threads there are: facts are kept by it."""
    return f"{machine.name}, {machine.fast_memory >> 10} KiB"


@cache
def version() -> str:
    """taskc's, and of all that compiles: another where one of its files is."""
    return f"{VERSION}+{compiler_version()[:12]}"
