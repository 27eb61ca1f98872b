"""Names in CUDA C++: the kernel's own, made unique, and as stable as the kernel's text."""

from __future__ import annotations

import math
import re

from taskc.ir.types import DTYPES

_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const
    consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do
    double dynamic_cast else enum explicit export extern false float for friend goto if inline int long main
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using virtual void
    volatile wchar_t while xor xor_eq
    threadIdx blockIdx blockDim gridDim warpSize printf assert memcpy shared_memory status arrivals tc WARP
    expf exp2f expm1f logf log2f log1pf sinf cosf tanf asinf acosf atanf atan2f sinhf coshf tanhf asinhf acoshf atanhf
    erff powf sqrtf rsqrtf floorf ceilf rintf truncf fabsf fmodf
    exp exp2 expm1 log log2 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh
    erf pow sqrt rsqrt floor ceil rint trunc fabs fmod fma min max abs
    linux unix i386
""".split()
# Functions of C that the compiler has built in, which a kernel would overload.
_BUILT_IN = frozenset(
    """
    main abort exit free malloc memset labs j0 j1 y0 y1 rint round lrint llrint lround llround nearbyint
    ilogb logb scalbn scalbln fdim tgamma remquo nexttoward norm norm3d norm4d rhypot rcbrt normcdf sincos
    """.split()
) | frozenset([name for name in dir(math) if callable(getattr(math, name))])

_RESERVED = frozenset([*_KEYWORDS, *DTYPES])


class Names:
    def __init__(self) -> None:
        self.of: dict[object, str] = {}
        self.taken = set(_RESERVED)
        self.counts: dict[str, int] = {}

    def __getitem__(self, named: object) -> str:
        """The name of a Variable, Tensor, Table or Snippet."""
        name = self.of.get(named)
        if name is None:
            name = self.of[named] = self.fresh(str(getattr(named, "name", named)))
        return name

    def fresh(self, wanted: str) -> str:
        base = re.sub(r"[^A-Za-z0-9_]", "_", wanted)
        base = (
            re.sub(r"__+", "_", base).strip("_") or "x"
        )  # names with __ are reserved for the compiler
        base = f"x{base}" if base[0].isdigit() else base
        name, count = base, self.counts.get(base, 0)
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.counts[base] = count
        self.taken.add(name)
        return name


def function_name(wanted: str) -> str:
    """A kernel's name, before it is made unique."""
    return (
        f"{wanted}_kernel"
        if wanted in _BUILT_IN or wanted.removesuffix("f") in _BUILT_IN
        else wanted
    )
