"""Random ensembles of trees as ONNX's operators write them, and their results by walking each tree in Python."""

from __future__ import annotations

from typing import Any

import numpy as np

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_HOLDS = {
    "BRANCH_LEQ": lambda x, v: x <= v,
    "BRANCH_LT": lambda x, v: x < v,
    "BRANCH_GTE": lambda x, v: x >= v,
    "BRANCH_GT": lambda x, v: x > v,
    "BRANCH_EQ": lambda x, v: x == v,
    "BRANCH_NEQ": lambda x, v: x != v,
}


class Forest:
    """Trees of nodes; features are small integers, so that equal numbers come up."""

    def __init__(self, seed: int, *, trees: int, features: int, depth: int, modes: Any) -> None:
        self.random = np.random.default_rng(seed)
        self.features, self.modes = features, modes
        self.nodes: list[dict[str, Any]] = []
        self.roots = []
        for tree in range(trees):
            self.count = 0
            self.roots.append(len(self.nodes))
            self.grow(tree, depth)

    def grow(self, tree: int, depth: int) -> int:
        place, number = len(self.nodes), self.count
        self.count += 1
        node: dict[str, Any] = {"tree": tree, "node": number, "mode": "LEAF", "place": place}
        self.nodes.append(node)
        node["weights"] = [int(self.random.integers(1, 9)) / 16]
        if depth and (number == 0 or self.random.random() < 0.8):
            node["mode"] = str(self.random.choice(self.modes))
            node["feature"] = int(self.random.integers(self.features))
            node["value"] = float(self.random.integers(-3, 4))
            node["nan"] = int(self.random.integers(2))
            node["yes"] = self.grow(tree, depth - 1)
            node["no"] = self.grow(tree, depth - 1)
        return place

    def rows(self, count: int) -> Any:
        x = self.random.integers(-4, 5, (count, self.features)).astype(np.float32)
        x[self.random.random(x.shape) < 0.1] = np.nan
        return x

    def leaves(self, x: Any) -> list[list[dict[str, Any]]]:
        """The leaf of each row in each tree."""
        return [[self.leaf(root, row) for root in self.roots] for row in x]

    def leaf(self, place: int, row: Any) -> dict[str, Any]:
        node = self.nodes[place]
        while node["mode"] != "LEAF":
            value = row[node["feature"]]
            holds = _HOLDS[node["mode"]](value, np.float32(node["value"]))
            holds = holds or (value != value and node["nan"])
            node = self.nodes[node["yes" if holds else "no"]]
        return node

    def attributes(self) -> dict[str, Any]:
        """The attributes of a node of the model that both older operators have."""
        numbers = [(node["tree"], node["node"]) for node in self.nodes]

        def each(name: str, otherwise: Any) -> list[Any]:
            return [node.get(name, otherwise) for node in self.nodes]

        return {
            "nodes_treeids": [tree for tree, _ in numbers],
            "nodes_nodeids": [node for _, node in numbers],
            "nodes_modes": each("mode", "LEAF"),
            "nodes_featureids": each("feature", 0),
            "nodes_values": each("value", 0.0),
            "nodes_missing_value_tracks_true": each("nan", 0),
            "nodes_truenodeids": [self.nodes[at]["node"] if at is not None else 0 for at in each("yes", None)],
            "nodes_falsenodeids": [self.nodes[at]["node"] if at is not None else 0 for at in each("no", None)],
        }  # fmt: skip

    def weighted(self, prefix: str, results: int, *, sign: float = 1.0) -> dict[str, Any]:
        """A weight for some result at each leaf; `results` of them in turn."""
        leaves = [node for node in self.nodes if node["mode"] == "LEAF"]
        for number, node in enumerate(leaves):
            node["result"] = number % results
            node["weight"] = node["weights"][0] * (sign if number % 3 == 0 else 1.0)
        return {
            f"{prefix}_treeids": [node["tree"] for node in leaves],
            f"{prefix}_nodeids": [node["node"] for node in leaves],
            f"{prefix}_ids": [node["result"] for node in leaves],
            f"{prefix}_weights": [node["weight"] for node in leaves],
        }

    def sums(self, x: Any, results: int) -> Any:
        scores = np.zeros((len(x), results))
        for row, leaves in zip(scores, self.leaves(x), strict=True):
            for leaf in leaves:
                row[leaf["result"]] += leaf["weight"]
        return scores
