"""A worker whose process crashes or hangs in kernels of certain names."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from taskc.lang.definition import Definition
from taskc.tune.worker import Parcel, Worker, serve


class Planted(Worker):
    def definition(self, parcel: Parcel) -> Definition:
        made = super().definition(parcel)
        if made.name == "crashes":
            ctypes.string_at(0)
        if made.name == "hangs":
            time.sleep(1000)
        if made.name == "prints":
            libc: Any = ctypes.CDLL(None)
            libc.puts(b'{"error": 0}')
            libc.fflush(None)
        return made

    def compile(self, request: dict[str, Any]) -> dict[str, Any]:
        self.definition(Parcel.parse(request["parcel"]))
        return super().compile(request)


if __name__ == "__main__":
    serve(Planted())
