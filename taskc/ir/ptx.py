"""The rules for the text of a Snippet: PTX that computes one value from its operands.

    fma.rn.f32 %0, %1, %2, %3;
    { .reg .pred p; setp.lt.f32 p, %1, 0f00000000; selp.f32 %0, 0f00000000, %1, p; }

%0 is the result, %1 and so on the operands; each one is used. The text ends with `;` or `}`. It
touches no memory, has no control flow and asks nothing about who executes it, so that it is a
function of its operands: only that can have a meaning, and be moved as any expression. The meaning
divides no integers by what may be 0, since where it is moved to it may not be asked for.
"""

from __future__ import annotations

import re

from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.ir.types import DType

# First parts of instructions and directives, with the reason why they can't compute a value.
_REASONS: dict[str, str] = {
    word: reason
    for reason, words in (
        (
            "touches memory",
            "ld ldu st atom red cp prefetch prefetchu mbarrier membar fence tex tld4 txq suld sust"
            " sured suq ldmatrix stmatrix multimem tensormap discard applypriority alloca isspacep"
            " cvta mapa .shared .global .local .const .param .tex",
        ),
        (
            "is control flow",
            "bra brx call ret exit trap brkpt bar barrier nanosleep griddepcontrol",
        ),
        (
            "takes part in what the warp does together",
            "shfl vote match redux activemask elect movmatrix wmma mma wgmma tcgen05 setmaxnreg",
        ),
    )
    for word in words.split()
}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_INSTRUCTION = re.compile(r"(?:@!?\s*\w+\s+)?(\.?[A-Za-z_]\w*)")
_LABEL = re.compile(r"([A-Za-z_$][\w$]*)\s*:(?!:)")


def has_register(dtype: DType) -> bool:
    """Whether PTX has registers for a type: those of 16, 32 and 64 bits."""
    return dtype.kind != "bool" and dtype.bits in (16, 32, 64)


def fault_in_text(text: str, operands: int) -> str | None:
    """The error in the text of a snippet with so many operands, or None."""
    code = _COMMENT.sub(" ", text).strip()
    if not code:
        return "the text is empty"
    for match in re.finditer(r"%(\w*)", code):
        word = match[1]
        if not word.isdecimal():
            return f"'%{word}' is neither the result, %0, nor an operand"
        if int(word) > operands:
            return f"%{word} is named, and the operands end with %{operands}"
    used = {int(number) for number in re.findall(r"%(\d+)", code)}
    for number in range(operands + 1):
        if number not in used:
            return f"%{number}, {'the result' if number == 0 else 'an operand'}, isn't used"
    depth = 0
    for brace in re.findall(r"[{}]", code):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            break
    if depth:
        return "the braces don't match"
    if code[-1] not in ";}":
        return "the text doesn't end with ';'"
    for part in re.split(r"[;{}]", code):
        label = _LABEL.match(part.strip())
        if label:
            return f"'{label[1]}:' is control flow, and this computes a value"
        word = _INSTRUCTION.match(part.strip())
        if word and word[1] in _REASONS:
            return f"'{word[1]}' {_REASONS[word[1]]}, and this computes a value"
    return None


def fault_in_snippet(snippet: ir.Snippet) -> str | None:
    """The error in a snippet, except in the types of its meaning, or None."""
    for dtype in (snippet.meaning.dtype, *(parameter.dtype for parameter in snippet.parameters)):
        if not has_register(dtype):
            return f"{dtype} has no register"
    for node in walk(snippet.meaning):
        if isinstance(node, (ir.Read, ir.Address, ir.Lookup)):
            return "the meaning reads memory"
        if isinstance(node, ir.Binary) and _may_divide_by_zero(node):
            return "the meaning divides by what may be 0"
        if isinstance(node, ir.Inline):
            return "the meaning holds another snippet"
        if isinstance(node, ir.Variable) and node not in snippet.parameters:
            return f"the meaning names {node}, which is no parameter"
    return fault_in_text(snippet.text, len(snippet.parameters))


def _may_divide_by_zero(node: ir.Binary) -> bool:
    if node.operator not in ("//", "%") or not node.dtype.is_integer:
        return False
    return not isinstance(node.right, ir.Constant) or node.right.value == 0
