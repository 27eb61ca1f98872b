"""What random programs reach: IR nodes and their kinds, branches of passes, rewrite rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import prod

from taskc.ir import nodes as ir
from taskc.ir.rewrite import EXPRESSION_TYPES, STATEMENT_TYPES, tensors_of, walk, walk_statements
from taskc.passes.simplify_rules import counting_rules, rules

# Of 2,000 programs; of fewer, half of the proportional part, since chance weighs more.
LEAST, PROGRAMS = 20, 2000

NODES = tuple(
    sorted(
        kind.__name__
        # Peers are below phases, where no random program is: tests/backend/sim/test_clusters.py.
        for kind in (STATEMENT_TYPES | EXPRESSION_TYPES) - {ir.Peer}
    )
)
# What passes decide, as `kinds_of` names it.
KINDS = (
    "For serial", "For unroll", "For vector",
    "ring registers", "ring cp.async", "ring tma", "roles",
    "Barrier warp", "Barrier role", "Barrier block",
    "padded layout", "swizzled layout", "shared bytes", "guarded Move", "Move by user",
    "table of tasks", "replicated Each", "masked Each", "enumerated Each", "Each on worker",
    "persistent Grid", "ordered Grid", "grouped Grid", "symbolic extent",
    "shuffle", "matrix instruction", "exclusive Scan", "Let in Each", "divergent If",
)  # fmt: skip


class Coverage:
    """Counts how often each thing was met: nodes by the stage, kinds and rules over all."""

    def __init__(self) -> None:
        self.programs = 0
        self.nodes: Counter[tuple[str, str]] = Counter()
        self.kinds: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()

    @contextmanager
    def program(self) -> Iterator[None]:
        """Counts the rules that fire while one program is compiled."""
        self.programs += 1
        with counting_rules() as fired:
            yield
        self.rules.update(fired)

    def see(self, stage: str, kernel: ir.Kernel, before: ir.Kernel | None) -> None:
        """Takes note of a kernel, after a pass that changed it."""
        del stage
        nodes = list(walk(kernel.body))
        types = Counter(map(type, nodes))
        for kind in _kinds_of(kernel, [node for node in nodes if type(node) in STATEMENT_TYPES]):
            self.kinds[kind] += 1
        self.kinds["table of tasks"] += ir.Lookup in types
        if before is None or before.stage != kernel.stage or kernel.stage == "lean":
            for found, count in types.items():
                self.nodes[found.__name__, kernel.stage] += count

    def merge(self, other: Coverage) -> None:
        self.programs += other.programs
        self.nodes.update(other.nodes)
        self.kinds.update(other.kinds)
        self.rules.update(other.rules)

    def missing(self) -> list[str]:
        """What was met too rarely."""
        found = Counter[str]()
        for (name, _), count in self.nodes.items():
            found[name] += count
        lacking = [f"{name}: {found[name]}" for name in NODES if found[name] < LEAST]
        lacking += [f"{kind}: {self.kinds[kind]}" for kind in KINDS if self.kinds[kind] < LEAST]
        lacking += [
            f"rule {rule.name}: {self.rules[rule.name]}"
            for rule in rules()
            if self.rules[rule.name] < LEAST
        ]
        return lacking

    # As text, for a person and for another process.

    def table(self) -> str:
        lines = [
            f"{self.programs} programs",
            "",
            "node".ljust(12) + "".join(s.rjust(14) for s in ir.STAGES),
        ]
        for name in NODES:
            row = [self.nodes[name, stage] for stage in ir.STAGES]
            lines.append(name.ljust(12) + "".join(str(n or "").rjust(14) for n in row))
        lines.append("")
        lines += [f"{self.kinds[kind]:8} {kind}" for kind in KINDS]
        lines.append("")
        lines += [f"{self.rules[rule.name]:8} {rule.name}" for rule in rules()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        nodes = {f"{name}/{stage}": count for (name, stage), count in self.nodes.items()}
        return {
            "programs": self.programs, "nodes": nodes,
            "kinds": dict(self.kinds), "rules": dict(self.rules),
        }  # fmt: skip

    @staticmethod
    def from_json(data: dict[str, object]) -> Coverage:
        made = Coverage()
        made.programs = data["programs"]  # type: ignore[assignment]
        for key, count in data["nodes"].items():  # type: ignore[attr-defined]
            name, stage = key.split("/")
            made.nodes[name, stage] = count
        made.kinds.update(data["kinds"])  # type: ignore[arg-type]
        made.rules.update(data["rules"])  # type: ignore[arg-type]
        return made


def _kinds_of(kernel: ir.Kernel, nodes: Iterable[ir.Statement]) -> set[str]:
    found: set[str] = set()
    shared: list[tuple[int, int]] = []
    if kernel.dimensions:
        found.add("symbolic extent")
    for node in nodes:
        match node:
            case ir.For():
                found.add(f"For {node.kind}")
            case ir.RingStep():
                found.add(f"ring {node.ring.transport}")
            case ir.Roles():
                found.add("roles")
            case ir.Barrier():
                found.add(f"Barrier {node.scope}")
            case ir.Move():
                if node.guard is not None:
                    found.add("guarded Move")
                if node.by is not None and kernel.stage == "parsed":
                    found.add("Move by user")
            case ir.Each():
                found |= _kinds_of_loop(node)
            case ir.Grid():
                if node.persistent:
                    found.add("persistent Grid")
                if node.order:
                    found.add("grouped Grid" if node.order[0] == "grouped" else "ordered Grid")
            case ir.Do():
                if node.operation.startswith("shuffle"):
                    found.add("shuffle")
            case ir.Mma(how=str()):
                found.add("matrix instruction")
            case ir.Scan(exclusive=True):
                found.add("exclusive Scan")
            case ir.Allocate():
                for tensor in tensors_of(node):
                    if tensor.layout is not None:
                        found.add("padded layout")
                    if tensor.swizzle is not None:
                        found.add("swizzled layout")
                    if tensor.scope == ir.SHARED and tensor.offset is not None:
                        count = tensor.layout.slots if tensor.layout else prod(tensor.shape)  # type: ignore[arg-type]
                        shared.append((tensor.offset, tensor.offset + count * tensor.dtype.nbytes))
    shared.sort()
    if any(a[1] > b[0] for a, b in pairwise(shared)):
        found.add("shared bytes")
    return found


def _kinds_of_loop(loop: ir.Each) -> set[str]:
    found = set()
    if loop.mapping.is_replicated:
        found.add("replicated Each")
    if loop.mapping.limit is not None:
        found.add("masked Each")
    if not loop.mapping.is_composed:
        found.add("enumerated Each")
    if loop.worker is not None:
        found.add("Each on worker")
    for node in walk_statements(loop.body):
        if isinstance(node, ir.Let):
            found.add("Let in Each")
        elif isinstance(node, ir.If):
            found.add("divergent If")
    return found
