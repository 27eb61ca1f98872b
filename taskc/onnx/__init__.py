"""ONNX models: read into a thin graph of operators, which is traced as a program.

`graph.py` has the graph, `reader.py` makes it from a model, `extract.py` cuts a part out of one, `passes/` rewrites it.
"""

from .extract import extract, extract_model
from .graph import Graph, Node, Value
from .passes.pipeline import register_pass

__all__ = ["Graph", "Node", "Value", "extract", "extract_model", "register_pass"]
