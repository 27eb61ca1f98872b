"""Two registers of 16 bits that get the halves of a word get it whole.

    right[0] = bitcast((word & 65535).to(u16), f16)
    right[1] = bitcast((word >> 16).to(u16), f16)       ->   tc::store_word(&right[0], word);

Apart, each half would be taken out by an instruction and put back by another one, in front of the product that reads
both.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskc.ir import nodes as ir
from taskc.ir.affine import Affine, SymbolTable
from taskc.ir.nodes import REGISTER, Binary, Bitcast, Cast, Constant, Expression, Statement
from taskc.ir.types import u16, u32


def word_of_halves(statements: Sequence[Statement], scope: SymbolTable) -> Expression | None:
    """The word whose lower half the first of two statements stores, and whose upper one the second."""
    match statements:
        case [
            ir.Store(tensor=tensor, indices=(first,), value=lower),
            ir.Store(tensor=other, indices=(second,), value=upper),
        ] if tensor is other and tensor.scope == REGISTER:
            word = _lower(lower)
            if word is None or word.dtype is not u32 or word != _upper(upper):
                return None
            return word if scope.form(second) - scope.form(first) == Affine(1, {}, 0) else None
    return None


def _lower(value: Expression) -> Expression | None:
    match _bits(value):
        case Binary(operator="&", left=word, right=Constant(value=0xFFFF)):
            return word
    return None


def _upper(value: Expression) -> Expression | None:
    match _bits(value):
        case Binary(operator=">>", left=word, right=Constant(value=16)):
            return word
    return None


def _bits(value: Expression) -> Expression | None:
    """The value that is cut off to 16 bits and perhaps reinterpreted as a float."""
    value = value.operand if isinstance(value, Bitcast) else value
    return value.operand if isinstance(value, Cast) and value.dtype is u16 else None
