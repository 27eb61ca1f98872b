"""The operator library: what every front end calls, by ONNX's names and with its meaning.

    op.Softmax(x, axis=-1)                    in a user's program (`op.py`)
    a node of a model                         `onnx/importer.py`

Both make a `Call` and hand it to `built` (`build.py`), which finds the operator's builder: a function that runs while a
program is traced (`call.py`). Each family of operators is a file; `signatures.jsonl` lists their inputs and attributes.
"""
