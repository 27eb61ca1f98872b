"""The program compiler: Program -> Program -> plan. Passes are a file each; `pipeline.py` is the table of contents."""
