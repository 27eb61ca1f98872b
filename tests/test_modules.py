"""Each module of taskc has its tests at the same place: `taskc/ir/types.py` has `tests/ir/test_types.py`.

What has no file of its name stands in `ELSEWHERE`, beside the file that tests it. Not asked for are packages, and
`taskc/kernels`, where an operator is tested as a whole.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
MODULES = TESTS.parent / "taskc"

# Parts that show only in what they are parts of: by the file that tests the whole, the modules of its folder.
ELSEWHERE = {
    "test_cli.py": "__main__",
    "runtime/test_driver.py": "runtime/targets",
    "backend/cuda/test_streams.py": "device",
    # The facts of a program are what is known, and what a search finds.
    "analysis/test_facts.py": "analysis/prover",
    "passes/test_synchronize.py": "analysis/accesses analysis/phases",
    # A program's text is printed, and parsed back.
    "ir/test_text.py": "ir/forms ir/parser_expressions ir/text_rules ir/printer_expressions",
    "ir/test_verify.py": "ir/nodes ir/specification ir/verify_expressions",
    "ir/test_mapping.py": "ir/mapping_forms",
    "passes/test_lower_mappings.py": "ir/build",
    "passes/test_select_scans.py": "ir/scan_order",
    "backend/test_operations.py": "ir/operations",
    "test_mutation.py": "mutation/changes",
    "programs/test_planning.py": "programs/plan",
    "programs/test_parser.py": "programs/printer",
    "programs/test_assumptions.py": "programs/sizes",
    "programs/test_drop_dead.py": "programs/redundancy",
    "programs/test_fuse_into_loads.py": "programs/fuse_into_kernels",
    "programs/test_retracing.py": "programs/trace_program",
    "programs/test_branches.py": "programs/body",
    "programs/test_launches.py": "programs/specialize",
    "test_notebooks.py": "pictures",
    "test_torch.py": "backward",
    "gradients/test_rules.py": "gradients/rules_images",
    "gradients/test_walk.py": "gradients/straight gradients/computations",
    "test_jax.py": "jax/xla",
    "numpy/test_array.py": "numpy/ending numpy/functions numpy/methods numpy/segment numpy/shapes",
    "numpy/test_imperative.py": "numpy/calls numpy/operators",
    "tune/test_choose.py": "tune/space",
    "tune/test_report.py": "markup",
    "tune/test_session.py": "tune/bench",
    "commands/test_tune.py": "commands/best",
    # A model is read, and seen in the graph that comes out.
    "backend/cpu/test_limits.py": "backend/limits",
    "onnx/test_reader.py": "onnx/resolve onnx/schemas",
    "onnx/test_control.py": "onnx/stages",
    "onnx/test_session.py": "onnx/model",
    "onnx/test_states.py": "onnx/sequences",
    "onnx/test_text.py": "commands/generate",
    "onnx/test_tensors.py": "onnx/serialized",
    "operators/test_microsoft.py": "operators/microsoft_attention operators/microsoft_experts"
    " operators/microsoft_quantized operators/microsoft_states operators/microsoft_weights",
    "operators/test_op.py": "operators/build operators/graph",
    "onnx/test_node_cases.py": "operators/control operators/fourier"
    " operators/movement operators/resizing operators/shapes"
    " operators/attention operators/norms operators/operands"
    " operators/reductions",
    "onnx/test_convolutions.py": "operators/convolutions operators/pooling operators/windows",
    "onnx/test_indices.py": "operators/scattering",
    "onnx/test_integer_products.py": "operators/quantization",
    "onnx/test_products.py": "operators/products",
    "onnx/test_random_images.py": "operators/sampling",
    "onnx/test_selections.py": "operators/selections",
    "onnx/passes/test_blocked_images.py": "onnx/passes/convolutions operators/tensors",
    "onnx/passes/test_recognize_gelu.py": "onnx/passes/formulas onnx/passes/recognize_formulas",
    "onnx/test_recurrent.py": "operators/recurrent",
    # The language is tested by what a kernel says: names, arithmetic, loops and memory.
    "lang/test_expressions.py": "lang/builtins lang/operators",
    "lang/test_statements.py": "lang/context lang/conversions lang/memory lang/parser",
    "lang/test_blocks.py": "lang/values lang/views",
    "lang/test_definition.py": "lang/names",
    "test_annotations.py": "lang/cuda lang/elementwise",
    "programs/test_definition.py": "programs/inlining programs/ir programs/record_call programs/tracing",
    "lang/test_parameters.py": "ir/signature lang/calls",
    # The proofs' parts: what they say of a whole program.
    "passes/proofs/test_symbolic.py": "passes/proofs/accesses",
    "passes/proofs/test_coverage.py": "passes/proofs/enumeration",
    "passes/proofs/test_races.py": "passes/proofs/blocks",
    # Parts of passes.
    "programs/test_schedule.py": "programs/blocks programs/templates",
    "passes/test_overlap.py": "passes/transports",
    "passes/test_select_reductions.py": "backend/sim/operations lang/operations",
    "passes/test_select_products.py": "passes/lower_instructions",
    "passes/test_product_groups.py": "passes/await_products",
    # Programs, fused and as they are written, give the same bits.
    "programs/test_lookalikes.py": "programs/indices programs/pairs",
    "programs/test_fuse_in_loops.py": "programs/calls",
    "backend/cpu/test_tiles.py": "backend/cpu/emit",
    # What the CPU's backend makes of a kernel is run: random programs, and extremes of each kind of operation.
    "backend/cpu/test_programs.py": "backend/cpu/flow backend/cpu/memory"
    " backend/cpu/operations backend/cpu/values",
    "backend/cpu/test_examples.py": "backend/cpu/compile backend/cpu/target",
    "backend/cpu/test_extremes.py": "backend/cpu/native",
    "backend/cpu/test_jit.py": "backend/cpu/module",
    "backend/cpu/test_cost.py": "backend/cpu/block_count",
    "backend/cpu/test_math.py": "backend/cpu/math/exponential backend/cpu/math/notation"
    " backend/cpu/math/trigonometric",
    # What CUDA's backend emits is compiled, for a GPU and for this machine, and run on the latter.
    "backend/cuda/test_compile.py": "backend/cuda/compiled backend/cuda/emit",
    "backend/cuda/test_on_host.py": "backend/cuda/matrices backend/cuda/operations backend/cuda/prelude"
    " backend/cuda/statements",
    "backend/cuda/test_calls.py": "backend/cuda/target",
    "backend/cuda/test_api.py": "backend/cuda/context",
    "backend/cuda/test_parking.py": "backend/cuda/libraries",
    # The simulator: what it computes, and what it reports of a corpus of mistakes.
    "backend/sim/test_phases.py": "backend/sim/accesses backend/sim/expressions backend/sim/loops"
    " backend/sim/memory backend/sim/run backend/sim/statements"
    " backend/sim/tiles",
    "backend/sim/test_schedule.py": "backend/sim/machine backend/sim/synchronization",
    "backend/sim/test_races.py": "backend/sim/shadow",
    "backend/sim/test_barriers.py": "lang/barriers",
    "backend/sim/test_statistics.py": "backend/sim/report",
    "backend/sim/test_bulk.py": "backend/sim/copies",
    "backend/sim/test_waiting.py": "backend/sim/analysis",
    "lang/test_warpgroups.py": "backend/sim/products",
    "test_corpus.py": "backend/sim/asynchronous backend/sim/recording",
    "commands/test_demo.py": "commands/demo_programs",
    "tune/test_workers.py": "tune/worker",
    "analysis/test_banks.py": "analysis/coalescing",
    "passes/test_select_fragments.py": "passes/select_moves",
    "onnx/passes/test_quantized_products.py": "onnx/passes/products",
    "onnx/test_trees.py": "operators/trees operators/linear_models onnx/passes/separate_labels",
}
_ELSEWHERE = [module for modules in ELSEWHERE.values() for module in modules.split()]


def modules() -> list[str]:
    paths = [path.relative_to(MODULES).with_suffix("") for path in MODULES.rglob("*.py")]
    return [
        str(path)
        for path in sorted(paths)
        if path.name != "__init__" and path.parts[0] != "kernels"
    ]


def has_its_own(module: str) -> bool:
    path = TESTS / module
    return path.with_name(f"test_{path.name}.py").exists()


def test_each_module_is_tested_by_a_file_of_its_name_or_stands_in_the_table() -> None:
    missing = [one for one in modules() if not has_its_own(one) and one not in _ELSEWHERE]
    assert not missing, f"without a test file, and not in ELSEWHERE: {', '.join(missing)}"


def test_the_table_has_nothing_that_it_need_not_have() -> None:
    there = modules()
    assert [one for one in _ELSEWHERE if one not in there] == []
    assert [one for one in _ELSEWHERE if has_its_own(one)] == []
    assert [one for one in _ELSEWHERE if _ELSEWHERE.count(one) > 1] == []
    assert [file for file in ELSEWHERE if not (TESTS / file).exists()] == []


def test_files_that_docstrings_and_comments_name_exist() -> None:
    """A file of a user's, as in `kernels.py:matmul`, is followed by a colon."""
    known = {path.name for path in MODULES.parent.rglob("*.py")}
    missing = [
        f"{path.relative_to(MODULES)}: {name}"
        for path in sorted(MODULES.rglob("*.py"))
        for name in re.findall(r"\b(\w+\.py)\b(?![:\w])", path.read_text(encoding="utf-8"))
        if name not in known
    ]
    assert not missing, f"named and not there: {', '.join(missing)}"
