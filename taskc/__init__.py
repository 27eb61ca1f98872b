"""taskc: a tensor-program compiler whose schedules are task mappings.

import taskc as tc
from taskc import f32, repeat, spatial
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from taskc.annotations import (
    bf16,
    boolean,
    f4e2m1,
    f6e2m3,
    f6e3m2,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i4,
    i8,
    i16,
    i32,
    i64,
    inout,
    out,
    tf32,
    typed,
    u4,
    u8,
    u16,
    u32,
    u64,
)
from taskc.arrays.packed import Packed, pack
from taskc.errors import CheckError, CompileError, Finding, InternalError, Location, set_renderer
from taskc.ir.mapping import Mapping, auto_map, mapping, repeat, replicate, spatial
from taskc.ir.types import DType, TensorType
from taskc.lang.definition import Definition, KernelDefinition, kernel, set_runner
from taskc.lang.elementwise import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cdiv,
    ceil,
    cos,
    cosh,
    dot_bytes,
    erf,
    exp,
    exp2,
    expm1,
    fast_exp2,
    floor,
    fma,
    fmod,
    gelu,
    hardswish,
    inf,
    isinf,
    isnan,
    leading_zeros,
    log,
    log1p,
    log2,
    mish,
    popcount,
    relu,
    reverse_bits,
    rsqrt,
    sigmoid,
    sign,
    silu,
    sin,
    sinh,
    softplus,
    sqrt,
    tan,
    tanh,
    trailing_zeros,
    trunc,
    truncdiv,
    where,
)
from taskc.lang.functions import function
from taskc.lang.names import (
    atomic_add,
    atomic_and,
    atomic_exchange,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xor,
    copy,
    load,
    local,
    mma,
    pipeline,
    print as print,
    range as range,
    reduce,
    scan,
    shared,
    static,
    store,
    sync,
    tile,
    tiles,
    worker,
)
from taskc.lang.sizes import Size, dim
from taskc.runtime.machine import Machine, machine
from taskc.runtime.settings import VERSION

if TYPE_CHECKING:
    from taskc import device, jax, onnx, torch
    from taskc.arrays.arguments import ArgumentError, CopyWarning
    from taskc.lang import cuda
    from taskc.programs.body import branch, compute, constant, empty, otherwise, steps, steps_while
    from taskc.programs.definition import ProgramDefinition, program, trace
    from taskc.runtime.checking import check
    from taskc.runtime.targets import finish_compiling
    from taskc.runtime.user_passes import register_pass
    from taskc.tune.template import tune

    # Signatures of the public names that load later.
    def compile(
        model: Any,
        target: str = "cpu",
        *,
        exact: bool = False,
        precision: str = "f32",
        threads: int | None = None,
        memory: int | None = None,
        wait: bool = False,
        states: dict[str, str] | None = None,
        capacity: int | None = None,
        first: Any = None,
    ) -> Any:
        """Compile an ONNX model: a file, its bytes, a ModelProto, or a graph of `tc.onnx`; with states a `Sequence`."""

    def load_bundle(
        path: Any,
        *,
        verify: bool = False,
        threads: int | None = None,
        memory: int | None = None,
    ) -> Any:
        """Load the model or the program of a bundle; it is called like the saved one."""

    def save_bundle(compiled: Any, path: Any, *feeds: Any) -> None:
        """Compile a model or a program for this processor into one file, which `load_bundle` reads."""

    def array(
        value: Any,
        dtype: Any = None,
        *,
        copy: bool | None = True,
        order: Any = None,
        ndmin: int = 0,
    ) -> Any:
        """An array of a copy of a value: an array of any library, nested lists or a number."""

    def gradient(program: Any, of: str = "loss", wrt: Any = ()) -> ProgramDefinition:
        """The program of the gradients of an output with respect to some inputs; it returns grad_x for an input x."""

    def value_and_gradient(program: Any, of: str = "loss", wrt: Any = ()) -> ProgramDefinition:
        """The same program, which returns the output itself before the gradients."""

    def training_step(
        program: Any, of: str = "loss", wrt: Any = (), *, optimizer: Any, clip: float | None = None
    ) -> ProgramDefinition:
        """The program of a step of training, which returns the loss and moves the weights in place."""

    def optimizer_state(optimizer: Any, **weights: Any) -> dict[str, Any]:
        """The arguments of a first step by name, besides the rate: zeros for the states and for `steps`."""

    class SGD:
        """Stochastic gradient descent with momentum."""

        def __init__(
            self, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False
        ) -> None: ...

    class Adam:
        """Adam; the decay is a part of the gradient."""

        def __init__(
            self,
            betas: tuple[float, float] = (0.9, 0.999),
            epsilon: float = 1e-8,
            weight_decay: float = 0.0,
        ) -> None: ...

    class AdamW(Adam):
        """Adam whose decay shrinks the weight itself."""

    class LAMB(Adam):
        """Adam's direction and the decay, made as long as the weight is: for large batches."""

    def jit(function: Any) -> Any:
        """Note a function's operations once per path, and replay them as compiled programs."""

    numpy: Any
    """NumPy's names over arrays that note operations."""
    op: Any
    """The operators as attributes; `dir(op)` lists them, and `help(op.Conv)` shows inputs and attributes."""


__version__ = VERSION

# Everything except `print` and `range`, which would hide Python's.
__all__ = [
    "LAMB",
    "SGD",
    "Adam",
    "AdamW",
    "ArgumentError",
    "CheckError",
    "CompileError",
    "CopyWarning",
    "DType",
    "Finding",
    "InternalError",
    "KernelDefinition",
    "Location",
    "Machine",
    "Mapping",
    "Packed",
    "ProgramDefinition",
    "Size",
    "TensorType",
    "acos",
    "acosh",
    "array",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "atomic_add",
    "atomic_and",
    "atomic_exchange",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_xor",
    "auto_map",
    "bf16",
    "boolean",
    "branch",
    "cdiv",
    "ceil",
    "check",
    "compile",
    "compute",
    "constant",
    "copy",
    "cos",
    "cosh",
    "cuda",
    "device",
    "dim",
    "dot_bytes",
    "empty",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "f4e2m1",
    "f6e2m3",
    "f6e3m2",
    "f8e4m3",
    "f8e5m2",
    "f16",
    "f32",
    "f64",
    "fast_exp2",
    "finish_compiling",
    "floor",
    "fma",
    "fmod",
    "function",
    "gelu",
    "gradient",
    "hardswish",
    "i4",
    "i8",
    "i16",
    "i32",
    "i64",
    "inf",
    "inout",
    "isinf",
    "isnan",
    "jax",
    "jit",
    "kernel",
    "leading_zeros",
    "load",
    "load_bundle",
    "local",
    "log",
    "log1p",
    "log2",
    "machine",
    "mapping",
    "mish",
    "mma",
    "numpy",
    "onnx",
    "op",
    "optimizer_state",
    "otherwise",
    "out",
    "pack",
    "pipeline",
    "popcount",
    "program",
    "reduce",
    "register_pass",
    "relu",
    "repeat",
    "replicate",
    "reverse_bits",
    "rsqrt",
    "save_bundle",
    "scan",
    "shared",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "softplus",
    "spatial",
    "sqrt",
    "static",
    "steps",
    "steps_while",
    "store",
    "sync",
    "tan",
    "tanh",
    "tf32",
    "tile",
    "tiles",
    "torch",
    "trace",
    "trailing_zeros",
    "training_step",
    "trunc",
    "truncdiv",
    "tune",
    "typed",
    "u4",
    "u8",
    "u16",
    "u32",
    "u64",
    "value_and_gradient",
    "where",
    "worker",
]


# Loaded at their first use: programs, and the driver with its targets and passes. A kernel's definition needs none.
_LOADED_LATER = {
    "ArgumentError": "taskc.arrays.arguments",
    "CopyWarning": "taskc.arrays.arguments",
    "ProgramDefinition": "taskc.programs.definition",
    "array": "taskc.numpy",
    "branch": "taskc.programs.body",
    "check": "taskc.runtime.checking",
    "compile": "taskc.onnx.session",
    "compute": "taskc.programs.body",
    "constant": "taskc.programs.body",
    "cuda": "taskc.lang.cuda",
    "device": "taskc.device",
    "empty": "taskc.programs.body",
    "finish_compiling": "taskc.runtime.targets",
    "gradient": "taskc.gradients",
    **dict.fromkeys(
        ("Adam", "AdamW", "LAMB", "SGD", "optimizer_state", "training_step"),
        "taskc.gradients.optimizers",
    ),
    "jax": "taskc.jax",
    "jit": "taskc.numpy.jit",
    "load_bundle": "taskc.onnx.bundled",
    "numpy": "taskc.numpy",
    "onnx": "taskc.onnx",
    "op": "taskc.operators.op",
    "otherwise": "taskc.programs.body",
    "program": "taskc.programs.definition",
    "register_pass": "taskc.runtime.user_passes",
    "save_bundle": "taskc.onnx.bundled",
    "steps": "taskc.programs.body",
    "steps_while": "taskc.programs.body",
    "torch": "taskc.torch",
    "trace": "taskc.programs.definition",
    "tune": "taskc.tune",
    "value_and_gradient": "taskc.gradients",
}
_MODULES = ("cuda", "device", "jax", "numpy", "onnx", "torch", "tune")


def __getattr__(name: str) -> Any:
    if name not in _LOADED_LATER:
        word = importlib.import_module("taskc.lang.names").word_for(name)
        # `from taskc import name` drops the text of an AttributeError.
        if word and sys._getframe(1).f_code.co_name == "_handle_fromlist":
            raise ImportError(f"cannot import name {name!r} from 'taskc'; {word}", name="taskc")
        hint = f"; {word}" if word else ""
        said = f"module 'taskc' has no attribute {name!r}{hint}"
        # Python adds a hint of its own, unless the error has no name.
        raise AttributeError(said, name=None if word else name, obj=sys.modules[__name__])
    module = importlib.import_module(_LOADED_LATER[name])
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def _run(definition: Definition, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return importlib.import_module("taskc.runtime.driver").call(definition, args, keywords)


def _picture(definition: Definition) -> str:
    return str(importlib.import_module("taskc.notebooks").html(definition))


def _render(subject: object, form: str, *options: object) -> str:
    drawn: str = importlib.import_module("taskc.pictures").render(subject, form, *options)
    return drawn


set_runner(_run, _picture)
set_renderer(_render)
