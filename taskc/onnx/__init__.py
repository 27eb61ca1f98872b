"""ONNX models: read into a thin graph of operators, which is traced as a program.

`graph.py` has the graph, `reader.py` makes it from a model, `extract.py` cuts a part out of one.
"""
