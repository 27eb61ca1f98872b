"""What disturbs a measurement: other processes, a quota of processor time that runs out, a clock that changes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from taskc.tune.timing import DRIFT

_BUSY = 0.25  # of a processor
_LEAST = 0.2  # seconds: a shorter time has few of the ticks that the system counts
_QUOTAS = ("", "cpu/", "cpu,cpuacct/")  # folders of the system's control groups, of version 2 and 1


@dataclass(frozen=True, slots=True)
class Disturbances:
    """Numbers that the system doesn't tell are None.

    others     how many processors other processes kept busy, on average
    throttled  how many times the quota ran out
    discarded  the share of samples during which the clock was off by more than 5%
    slower     by how much of its time the clock's probe took longer than it ever did
    """

    others: float | None = None
    throttled: int | None = None
    discarded: float = 0.0
    slower: float = 0.0

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each that makes times doubtful."""
        found = []
        if self.others is not None and self.others > _BUSY:
            found.append(f"the machine is busy: others used {self.others:.1f} processors")
        if self.throttled:
            found.append(f"the quota of processor time ran out {self.throttled} times")
        if self.discarded > 0.25:
            found.append(
                f"the clock is restless: {self.discarded:.0%} of the samples were off by more than"
                f" {DRIFT:.0%}"
            )
        if self.slower > DRIFT:
            found.append(f"the clock is slow: it has been {self.slower:.0%} faster")
        return tuple(found)


class Watch:
    """It looks at the system when it is made, and again when it is asked."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.busy = _busy()
        self.own = time.process_time()
        self.throttled = _throttled()

    def disturbances(self, discarded: float = 0.0, slower: float = 0.0) -> Disturbances:
        elapsed = time.perf_counter() - self.start
        others = throttled = None
        now = _busy()
        if now is not None and self.busy is not None and elapsed >= _LEAST:
            own = time.process_time() - self.own
            others = max(0.0, (now - self.busy - own) / elapsed)
        times = _throttled()
        if times is not None and self.throttled is not None:
            throttled = times - self.throttled
        return Disturbances(others, throttled, discarded, slower)


def _busy(file: Path = Path("/proc/stat")) -> float | None:
    """Seconds for which processors have worked, all together."""
    try:
        first = file.read_text().partition("\n")[0]
        user, nice, system, _, _, irq, softirq, *_ = map(int, first.split()[1:])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _throttled(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """How often a quota has made the processes here wait."""
    for place in _QUOTAS:
        try:
            text = (folder / place / "cpu.stat").read_text()
        except OSError:
            continue
        for line in text.splitlines():
            if line.startswith("nr_throttled "):
                return int(line.split()[1])
    return None
