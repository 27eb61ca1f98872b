"""recognize_attention: two products with a softmax between them are attention.

    t = Transpose(k, perm=[0, 1, 3, 2])
    s = MatMul(q, t)
    a = Mul(s, 0.125)                    ->     y = taskc.Attention(q, k, v, mask, scale=0.125, axis=-1)
    b = Add(a, mask)
    p = Softmax(b, axis=-1)
    y = MatMul(p, v)

The scores are then never stored. Any scale matches, of the scores or of q and k. A mask may be added, or Where picks
the score or a number far below all scores. IsNaN and Where after Softmax, which give zeros to a query that sees no key,
are redundant: attention does that. Without them such a query also gets zeros now, and not NaN. PyTorch writes the usual
scale, of the width of a head, as factors of q and k that are computed from the shape of q. Keys and values that
Unsqueeze, Expand and Reshape repeat for several heads are read without repeating them. Whether the shapes fit is known
only when the node is built; if they don't, the products are computed as before.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from taskc.dataclass import dataclass
from taskc.onnx.passes.formulas import Rewriting, Tensors, replaced
from taskc.operators.graph import Graph, Node

_BEYOND = 1 << 30  # an end of a slice that is after all axes
_UNSEEN = -1e30  # replacing a score by this, or adding it, gives the same result


def recognize_attention(graph: Graph) -> Graph:
    rewriting = Rewriting(graph)
    for node in graph.nodes:
        is_product = node.operator == "MatMul" and not node.domain
        match = _found(rewriting.tensors, node) if is_product else None
        rewriting.nodes.append(node if match is None else _attention(rewriting, node, match))
    return rewriting.graph


@dataclass(frozen=True, slots=True)
class _Mask:
    """A mask: an offset of scores, or booleans that tell which keys are seen.

    picked  a Where of scores or a number, for which there is no mask tensor yet
    """

    name: str = ""
    picked: Node | None = None


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys by rows: a tensor, transposed by `order` and reshaped to `shape` if these aren't empty."""

    name: str
    order: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    q: str
    k: _Keys
    v: str
    mask: _Mask
    scale: float | None  # None: the usual one
    axis: int


def _found(tensors: Tensors, node: Node) -> _Found | None:
    """The attention whose last product is this node, or None."""
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
    if (usual := _by_width(tensors, *product.inputs)) is None:
        of_q, q = _unscaled(tensors, product.inputs[0])
        of_k, columns = _unscaled(tensors, product.inputs[1])
        scale *= of_q * of_k
    else:
        q, columns = usual
        if scale != 1:
            return None
    k, v = _turned(tensors, columns), node.inputs[1]
    if k is None:
        return None
    few_k, few_v = _of_groups(tensors, k.name, k.shape), _of_groups(tensors, v)
    if not k.order and few_k and few_v:
        k, v = _Keys(few_k), few_v
    return _Found(q, k, v, mask, scale if usual is None else None, axis)


def _attention(made: Rewriting, node: Node, found: _Found) -> Node:
    """The attention node, added after the nodes that make its keys and its mask."""
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
    attributes: dict[str, Any] = {"axis": found.axis}
    if found.scale is not None:
        attributes["scale"] = found.scale
    return replaced(node, "Attention", inputs, domain="taskc", version=1, **attributes)


def _softmax(tensors: Tensors, name: str) -> Node | None:
    """The softmax of shares that nothing else reads; a query that sees nothing may have zeros."""
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
    """The scores without their mask, and the mask."""
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
    """The booleans of the keys that are seen, if a mask is 0 for these and minus infinity for others."""
    picked = tensors.made_by("Where", mask)
    if picked is None:
        return None
    numbers = [tensors.number(name) for name in picked.inputs[1:]]
    return picked.inputs[0] if numbers == [0, -inf] else None


def _unscaled(tensors: Tensors, name: str) -> tuple[float, str]:
    """A factor, and the tensor that is scaled by it."""
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


def _by_width(tensors: Tensors, *scaled: str) -> tuple[str, str] | None:
    """Queries and keys that are each scaled by sqrt(1 / sqrt(width of the queries))."""
    plain = []
    for name in scaled:
        product = tensors.made_by("Mul", name)
        factor = product and tensors.made_by("Sqrt", product.inputs[1])
        inverse = factor and tensors.made_by("Div", _uncast(tensors, factor.inputs[0]))
        root = inverse and tensors.made_by("Sqrt", inverse.inputs[1])
        if product is None or inverse is None or root is None:
            return None
        plain.append(product.inputs[0])
        width = _slice_of_shape(tensors, _uncast(tensors, root.inputs[0]))
        if tensors.number(inverse.inputs[0]) != 1 or width != (plain[0], -1, None):
            return None
    return plain[0], plain[1]


def _uncast(tensors: Tensors, name: str) -> str:
    while (cast := tensors.made_by("Cast", name)) is not None:
        name = cast.inputs[0]
    return name


def _turned(tensors: Tensors, columns: str) -> _Keys | None:
    """Keys by rows, of four axes, from a tensor that has them by columns."""
    if (node := tensors.made_by("Transpose", columns)) is not None:
        order = node.attributes.get("perm")
        if not isinstance(order, list) or len(order) != 4:
            return None
        turned = (*order[:2], order[3], order[2])
        return _Keys(node.inputs[0], () if turned == (0, 1, 2, 3) else turned)
    # PyTorch transposes a stack of all heads, of three axes.
    apart = tensors.made_by("Reshape", columns)
    stack = apart and tensors.made_by("Transpose", apart.inputs[0])
    joined = stack and tensors.made_by("Reshape", stack.inputs[0])
    if apart is None or stack is None or joined is None:
        return None
    x, is_turned = joined.inputs[0], stack.attributes.get("perm") == [0, 2, 1]
    second, last = (x, -2, -1), (x, -1, None)
    sizes = [_sizes(tensors, node.inputs[1]) for node in (joined, apart)]
    if is_turned and sizes == [[-1, second, last], [(x, 0, -2), last, second]]:
        return _Keys(x)
    shape, parts = tensors.integers(joined.inputs[1]), tensors.integers(apart.inputs[1])
    if not is_turned or shape is None or parts is None:
        return None
    if len(shape) != 3 or len(parts) != 4 or shape[1:] != parts[:1:-1] or min(parts) < 1:
        return None
    return _Keys(joined.inputs[0], shape=(*parts[:2], parts[3], parts[2]))


_Sizes = list[int | tuple[str, int, int | None] | None]


def _sizes(tensors: Tensors, name: str) -> _Sizes:
    """The joined parts of a computed shape: numbers, and the slices of tensors' shapes."""
    joined = tensors.made_by("Concat", name)
    sizes: _Sizes = []
    for part in () if joined is None else joined.inputs:
        sizes += tensors.integers(part) or [_slice_of_shape(tensors, part)]
    return sizes


def _slice_of_shape(tensors: Tensors, name: str) -> tuple[str, int, int | None] | None:
    """The tensor, the first axis, and the one after the last, from which a slice of a shape is."""
    part = tensors.made_by("Slice", name)
    shape = part and tensors.made_by("Shape", part.inputs[0])
    if part is None or shape is None or shape.attributes.get("start") or "end" in shape.attributes:
        return None
    bounds = [tensors.integers(name) for name in part.inputs[1:]]
    match bounds:
        case [[first], [end], *rest] if rest in ([], [[0]], [[0], [1]]):
            return (
                shape.inputs[0],
                max(first, 0) if first < -_BEYOND else first,
                None if end >= _BEYOND else end,
            )
    return None


def _of_groups(tensors: Tensors, name: str, needed: tuple[int, ...] = ()) -> str | None:
    """Keys or values of fewer heads, from a tensor of the needed shape that repeats them for neighbours."""
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
