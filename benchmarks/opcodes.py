"""The instructions of a GPU kernel's main loop, by opcode, with its registers, spills and the assembler's remarks.

    python benchmarks/opcodes.py attention                 those families of gpu_cases.py that have this in their name
    python benchmarks/opcodes.py attention --target sm_80

No GPU is needed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

from gpu_cases import FAMILIES

import taskc as tc
from taskc.backend.cuda.compile import compile_kernel, main_loop, sass_of
from taskc.passes.pipeline import lower
from taskc.programs.ir import Program, kernels_of
from taskc.runtime.checking import for_target


def by_opcode(loop: Sequence[str]) -> Counter[str]:
    """Without modifiers, but for those that say which function or which pipe."""
    names = [".".join(name.split(".")[: 2 if name.startswith("MUFU") else 1]) for name in loop]
    return Counter(names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", help="a part of its name")
    parser.add_argument("--target", default="sm_90a")
    options = parser.parse_args()
    for family in FAMILIES:
        if options.family not in family.name:
            continue
        size = (family.sizes or family.checks)[0]
        made = family.build(tc.machine(options.target), *size).ir
        for kernel in kernels_of(made).values() if isinstance(made, Program) else [made]:
            found = compile_kernel(lower(for_target(kernel, options.target)))
            loop, taken = main_loop(sass_of(found.cubin)), found.resources
            spilled = taken.spill_stores + taken.spill_loads
            print(
                f"{family.name} {size}, {kernel.name}: {len(loop)} instructions in the loop,"
                f" {taken.registers} registers, {spilled} bytes spilled"
            )
            counts = by_opcode(loop).most_common()
            print("  " + ", ".join([f"{name} {count}" for name, count in counts]))
            for remark in taken.remarks:
                print(f"  {remark}")


if __name__ == "__main__":
    main()
