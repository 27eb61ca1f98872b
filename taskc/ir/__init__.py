"""Types, nodes and mappings: what every stage of a program is made of."""

from taskc.ir.compare import difference, same_program
from taskc.ir.nodes import Kernel
from taskc.ir.printer import expression_text, statement_text, to_text
from taskc.ir.verify import verify

__all__ = [
    "difference",
    "expression_text",
    "parse",
    "same_program",
    "statement_text",
    "to_text",
    "verify",
]


def parse(text: str, file: str = "<ir>") -> Kernel:
    """The kernel that a text describes; a CompileError tells where it can't be one."""
    from taskc.ir.parser import parse as parse_text  # lark takes a while to import

    return parse_text(text, file)
