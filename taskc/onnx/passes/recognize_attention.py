"""recognize_attention: two products with a softmax between them are attention.

    t = Transpose(k, perm=[0, 1, 3, 2])
    s = MatMul(q, t)
    a = Mul(s, 0.125)                    ->     y = taskc.Attention(q, k, v, mask, scale=0.125, axis=-1)
    b = Add(a, mask)
    p = Softmax(b, axis=-1)
    y = MatMul(p, v)

The scores are never stored then. Any scale matches, of the scores or of q and k; masks are added, or Where picks the
scores or a number that no score comes near; IsNaN and Where behind Softmax, which give zeros to a query that sees no
key, are what attention does. Where they are missing such a query gets zeros, too, and not NaN. Keys and values that
Unsqueeze, Expand and Reshape repeat for several heads are read where they are. What the shapes don't fit is found when
they are known: there the products are as they were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from taskc.onnx.passes.formulas import Rewriting, Tensors
from taskc.operators.graph import Graph, Node

_UNSEEN = -1e30  # a score that this is picked for, or added to, is the same as any other such


def recognize_attention(graph: Graph) -> Graph:
    made = Rewriting(graph)
    for node in graph.nodes:
        is_product = node.operator == "MatMul" and not node.domain
        found = _found(made.tensors, node) if is_product else None
        made.nodes.append(node if found is None else _attention(made, node, found))
    return made.graph


@dataclass(frozen=True, slots=True)
class _Mask:
    """What is added to scores, or says which keys are seen.

    picked  a node that picks scores or a number instead, for which there is no such tensor yet
    """

    name: str = ""
    picked: Node | None = None


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys by rows: a tensor, turned in an order of axes where there is one, and of a shape where there is one."""

    name: str
    order: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    q: str
    k: _Keys
    v: str
    mask: _Mask
    scale: float
    axis: int


def _found(tensors: Tensors, node: Node) -> _Found | None:
    """The attention that ends with a product."""
    softmax = _softmax(tensors, node.inputs[0])
    if softmax is None:
        return None
    axis = softmax.attributes.get("axis", -1 if softmax.version >= 13 else 1)
    if axis not in (-1, 3):
        return None
    masked, mask = _unmasked(tensors, softmax.inputs[0])
    scale, scores = _unscaled(tensors, masked)
    product = tensors.made_by("MatMul", scores)
    if product is None:
        return None
    of_q, q = _unscaled(tensors, product.inputs[0])
    of_k, columns = _unscaled(tensors, product.inputs[1])
    k, v = _turned(tensors, columns), node.inputs[1]
    if k is None:
        return None
    few_k, few_v = _of_groups(tensors, k.name, k.shape), _of_groups(tensors, v)
    if not k.order and few_k and few_v:
        k, v = _Keys(few_k), few_v
    return _Found(q, k, v, mask, scale * of_q * of_k, axis)


def _attention(made: Rewriting, node: Node, found: _Found) -> Node:
    """The node for it, behind those that make its keys and its mask."""
    k, mask, picked = found.k.name, found.mask.name, found.mask.picked
    if found.k.order:
        k = made.add(node, "Transpose", [k], perm=[*found.k.order])
    if found.k.shape:
        shape = made.constant(f"{node.outputs[0]}/shape", np.array(found.k.shape, np.int64))
        k = made.add(node, "Reshape", [k, shape])
    if picked is not None:
        condition, _, number = picked.inputs
        nothing = made.tensors.graph.constants[number]
        zero = made.constant(f"{node.outputs[0]}/zero", np.zeros_like(nothing))
        mask = made.add(picked, "Where", [condition, zero, number])
    inputs = (found.q, k, found.v, *([mask] if mask else []))
    attributes: dict[str, object] = {"scale": found.scale, "axis": found.axis}
    return replace(
        node, operator="Attention", domain="taskc", inputs=inputs, attributes=attributes, version=1
    )


def _softmax(tensors: Tensors, name: str) -> Node | None:
    """The softmax that makes shares which nothing else reads; a query that sees nothing may have zeros."""
    if tensors.reads[name] != 1:
        return None
    guard = tensors.made_by("Where", name)
    if guard is None:
        return tensors.made_by("Softmax", name)
    condition, zero, shares = guard.inputs
    question = tensors.made_by("IsNaN", condition)
    if question is None or question.inputs[0] != shares or tensors.reads[shares] != 2:
        return None
    return tensors.made_by("Softmax", shares) if tensors.number(zero) == 0 else None


def _unmasked(tensors: Tensors, name: str) -> tuple[str, _Mask]:
    """Scores without their mask, and the mask."""
    if (added := tensors.made_by("Add", name)) is not None:
        for scores, mask in (added.inputs, added.inputs[::-1]):
            if tensors.made_by("MatMul", _unscaled(tensors, scores)[1]) is not None:
                return scores, _Mask(_seen(tensors, mask) or mask)
    if (picked := tensors.made_by("Where", name)) is not None:
        condition, scores, other = picked.inputs
        number = tensors.number(other)
        if number is not None and number <= _UNSEEN:
            return scores, _Mask(condition) if number == -inf else _Mask(picked=picked)
    return name, _Mask()


def _seen(tensors: Tensors, mask: str) -> str | None:
    """What says which keys are seen, where a mask is 0 for these and minus infinity for others."""
    picked = tensors.made_by("Where", mask)
    if picked is None:
        return None
    numbers = [tensors.number(name) for name in picked.inputs[1:]]
    return picked.inputs[0] if numbers == [0, -inf] else None


def _unscaled(tensors: Tensors, name: str) -> tuple[float, str]:
    """A number, and what the tensor is the product of it with."""
    if (node := tensors.made_by("Mul", name)) is not None:
        for x, by in (node.inputs, node.inputs[::-1]):
            if (number := tensors.number(by)) is not None:
                factor, inner = _unscaled(tensors, x)
                return number * factor, inner
    if (node := tensors.made_by("Div", name)) is not None and (
        number := tensors.number(node.inputs[1])
    ):
        factor, inner = _unscaled(tensors, node.inputs[0])
        return factor / number, inner
    return 1.0, name


def _turned(tensors: Tensors, columns: str) -> _Keys | None:
    """Keys by rows, of four axes, that a tensor has by columns."""
    if (node := tensors.made_by("Transpose", columns)) is not None:
        order = node.attributes.get("perm")
        if not isinstance(order, list) or len(order) != 4:
            return None
        turned = (*order[:2], order[3], order[2])
        return _Keys(node.inputs[0], () if turned == (0, 1, 2, 3) else turned)
    # PyTorch turns a stack of all heads, of three axes.
    apart = tensors.made_by("Reshape", columns)
    stack = apart and tensors.made_by("Transpose", apart.inputs[0])
    joined = stack and tensors.made_by("Reshape", stack.inputs[0])
    if apart is None or stack is None or joined is None:
        return None
    shape, parts = tensors.integers(joined.inputs[1]), tensors.integers(apart.inputs[1])
    if stack.attributes.get("perm") != [0, 2, 1] or shape is None or parts is None:
        return None
    if len(shape) != 3 or len(parts) != 4 or shape[1:] != parts[:1:-1] or min(parts) < 1:
        return None
    return _Keys(joined.inputs[0], shape=(*parts[:2], parts[3], parts[2]))


def _of_groups(tensors: Tensors, name: str, needed: tuple[int, ...] = ()) -> str | None:
    """Keys or values of fewer heads, which the tensor, of the needed shape, has repeated for neighbours."""
    joined = tensors.made_by("Reshape", name)
    repeated = joined and tensors.made_by("Expand", joined.inputs[0])
    parted = repeated and tensors.made_by("Unsqueeze", repeated.inputs[0])
    if joined is None or repeated is None or parted is None:
        return None
    axes = parted.attributes.get("axes")
    if len(parted.inputs) > 1:
        axes = tensors.integers(parted.inputs[1])
    shape, whole = tensors.integers(repeated.inputs[1]), tensors.integers(joined.inputs[1])
    if axes not in ([2], [-3]) or shape is None or whole is None or len(shape) != 5:
        return None
    is_joined = whole == [shape[0], shape[1] * shape[2], *shape[3:]] and min(shape) > 0
    is_joined = is_joined and (not needed or whole == [*needed])
    return parted.inputs[0] if is_joined else None
