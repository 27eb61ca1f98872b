"""What the processor at hand can do, and LLVM's description of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

# LLVM's names of what a kernel needs, and the target (a name of ir/target.py) that has it, best first.
_TARGETS = (
    ("avx512", ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma")),
    ("avx2", ("avx2", "fma", "f16c")),
    ("neon", ("neon",)),
)
_VECTOR_BITS = {"avx512": 512, "avx2": 256, "neon": 128}


@dataclass(frozen=True, slots=True)
class Processor:
    """`features` decide what is emitted: LLVM may not know the processor's name."""

    target: str
    triple: str
    layout: str
    features: str
    machine: Any

    @property
    def vector_bits(self) -> int:
        return _VECTOR_BITS[self.target]

    @property
    def lanes(self) -> int:
        return self.vector_bits // 32


@cache
def host() -> Processor:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # the pool has a line of it
    features = llvm.get_host_cpu_features()
    has = {name for name, there in features.items() if there}
    target = next((name for name, needs in _TARGETS if has.issuperset(needs)), "neon")
    triple = llvm.get_process_triple()
    name = llvm.get_host_cpu_name()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=name, features=features.flatten(), opt=2, reloc="pic", codemodel="default"
    )
    return Processor(target, triple, str(machine.target_data), features.flatten(), machine)
