"""A processor's features, and LLVM's description of it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from taskc.dataclass import dataclass
from taskc.ir.target import TARGETS

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma")
_AMX = ("amx-tile", "amx-int8", "amx-bf16")
_AVX2 = ("avx2", "fma", "f16c")
_FAST_BF16 = "fast-bf16"  # not a feature of LLVM: products of bf16 are faster than of f32

_ARM = ("aarch64", "arm64")  # prefixes of triples

# The features that each target needs, by LLVM's names; the best target first.
_TARGETS = (
    ("avx512_amx", (*_AVX512, "avx512vnni", *_AMX)),
    ("avx512_bf16", (*_AVX512, "avx512vnni", "avx512bf16", _FAST_BF16)),
    ("avx512_vnni", (*_AVX512, "avx512vnni")),
    ("avx512", _AVX512),
    ("avx2_vnni", (*_AVX2, "avxvnni")),
    ("avx2", _AVX2),
    ("neon", ("neon",)),
)


# For each target a processor that LLVM knows: triple and name.
_LINUX = "x86_64-unknown-linux-gnu"
_TYPICAL = {
    "avx512_amx": (_LINUX, "sapphirerapids"),
    "avx512_bf16": (_LINUX, "znver4"),
    "avx512_vnni": (_LINUX, "cascadelake"),
    "avx512": (_LINUX, "x86-64-v4"),
    "avx2_vnni": (_LINUX, "gracemont"),
    "avx2": (_LINUX, "x86-64-v3"),
    "sse2": (_LINUX, "x86-64"),
    "neon": ("aarch64-unknown-linux-gnu", "generic"),
}


# Instructions that LLVM emits only for intrinsics, which taskc never uses; machines of one kind often differ in them.
_BY_NAME = frozenset(
    """aes cldemote clflushopt clwb clzero enqcmd fsgsbase hreset invpcid kl mwaitx movdir64b movdiri pconfig pku
    prefetchi ptwrite prfchw rdpid rdpru rdrnd rdseed rtm serialize sgx sha shstk tsxldtrk uintr usermsr vaes waitpkg
    wbnoinvd widekl xsave xsavec xsaveopt xsaves""".split()
)


@dataclass(frozen=True, slots=True)
class Processor:
    """`features` decide the code that is emitted, as LLVM may not know the processor's name.

    target   the name of what ir/target.py says about it
    machine  LLVM's; quick_machine: the same, generating code without optimization
    """

    target: str
    name: str
    triple: str
    layout: str
    features: str
    machine: Any
    quick_machine: Any

    @property
    def lanes(self) -> int:
        """Number of f32 lanes in a vector."""
        return TARGETS[self.target].warp

    @property
    def vector_bits(self) -> int:
        return 32 * self.lanes

    @property
    def has_fused(self) -> bool:
        """Whether it has instructions for fused multiply-adds."""
        return "fma" in self._has or self.triple.startswith(_ARM)

    @property
    def permutes_bytes(self) -> bool:
        """Whether it has instructions that permute the bytes of two registers."""
        return self.lanes == 16 and "avx512vbmi" in self._has

    @property
    def register(self) -> str:
        """The constraint letter for any vector register in inline assembly."""
        if self.triple.startswith(_ARM):
            return "w"
        return "v" if TARGETS[self.target].vectors > 16 else "x"

    @property
    def fingerprint(self) -> str:
        """Everything about the processor that compiled code depends on."""
        return f"{self.target} {self.triple} {self.name} {self.features} {llvmlite.__version__}"

    @property
    def described(self) -> dict[str, Any]:
        """A description by which another process decides whether it can run code compiled for this processor."""
        has = [name for name in self._has if name not in _BY_NAME]
        return {"name": self.name, "triple": self.triple, "features": has}

    @property
    def _has(self) -> list[str]:
        return [name[1:] for name in self.features.split(",") if name.startswith("+")]

    def problem_of(self, described: Mapping[str, Any]) -> str:
        """The reason why this processor can't run code compiled for the described one; empty where it can."""
        required, native = (_system(triple) for triple in (described["triple"], self.triple))
        if required != native:
            return f"it is for {required}, and this is {native}"
        missing = [name for name in described["features"] if name not in self._has]
        if missing:
            return f"'{described['name']}' has {', '.join(missing)}, and '{self.name}' has not"
        return ""


def _system(triple: str) -> str:
    """The triple without the version of its system: programs run on later versions, too."""
    return triple.rstrip("0123456789.")


# The system call of x86-64 Linux and its arguments that request tile data.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@cache
def host() -> Processor:
    """The processor that this process runs on."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # the pool contains inline assembly
    try:
        features = llvm.get_host_cpu_features()
    except RuntimeError:
        features = {}
    if any(features.get(name) for name in _AMX) and not may_use_tiles():
        features = {name: there and name not in _AMX for name, there in features.items()}
    return processor(llvm.get_process_triple(), llvm.get_host_cpu_name(), features)


def may_use_tiles() -> bool:
    """Ask Linux to permit tile registers for all threads of this process; unpermitted use would kill it."""
    if sys.platform != "linux":
        return False
    try:
        status: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
        return status == 0
    except (OSError, AttributeError):
        return False


def typical(target: str) -> Processor:
    """A processor with little more than a target needs, independent of this machine."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, name = _TYPICAL[target]
    needs = (feature for feature in dict(_TARGETS).get(target, ()) if feature != _FAST_BF16)
    return processor(triple, name, dict.fromkeys(needs, True))


def processor(triple: str, name: str, features: Mapping[str, bool]) -> Processor:
    """A processor with exactly these features; LLVM may not know its name.

    LLVM can't detect features on every system; every 64-bit Arm has NEON, and every 64-bit x86 SSE2.
    """
    has = {feature for feature, there in features.items() if there}
    is_arm = triple.startswith(_ARM)
    if is_arm:
        has.add("neon")
    basic = "neon" if is_arm else "sse2"
    known = {*has, _FAST_BF16} if name.startswith("znver") else has
    target = next((target for target, needs in _TARGETS if known.issuperset(needs)), basic)
    listed = ",".join(
        f"{'+' if feature in has else '-'}{feature}" for feature in sorted({*has, *features})
    )
    machine, quick_machine = (
        llvm.Target.from_triple(triple).create_target_machine(
            cpu=name, features=listed, opt=level, reloc="pic", codemodel="default"
        )
        for level in (2, 0)
    )
    layout = str(machine.target_data)
    return Processor(target, name, triple, layout, listed, machine, quick_machine)
