"""Nodes in an order in which each comes after those that make what it reads."""

from __future__ import annotations

import heapq

from taskc.onnx.written import WrittenNode


def in_order(nodes: tuple[WrittenNode, ...]) -> list[WrittenNode]:
    """The nodes of one graph, in their own order as far as that is possible."""
    makers = {name: at for at, item in enumerate(nodes) for name in item.node.outputs if name}
    needs = [{makers[name] for name in item.reads if name in makers} for item in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for at, needed in enumerate(needs):
        for maker in needed:
            users[maker].append(at)
    waits = list(map(len, needs))
    ready = [at for at, count in enumerate(waits) if not count]
    order: list[int] = []
    while ready:
        at = heapq.heappop(ready)
        order.append(at)
        for user in users[at]:
            waits[user] -= 1
            if not waits[user]:
                heapq.heappush(ready, user)
    if len(order) < len(nodes):
        circle = _circle(needs, waits)
        titles = ", ".join(nodes[at].node.title for at in circle[1:5])
        more = f" and {len(circle) - 5} more" if len(circle) > 5 else ""
        way = f", by way of the {titles}{more}" if titles else ""
        raise nodes[circle[0]].node.error(f"it needs what it makes itself{way}")
    return [nodes[at] for at in order]


def _circle(needs: list[set[int]], waits: list[int]) -> list[int]:
    """Nodes of which each needs the next, and the last the first; all nodes that wait need one that waits."""
    path: list[int] = []
    seen: dict[int, int] = {}
    at = next(at for at, count in enumerate(waits) if count)
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = min(need for need in needs[at] if waits[need])
    return path[seen[at] :]
