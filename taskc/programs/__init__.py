"""The program compiler: Program -> Program -> plan. Passes are a file each; `pipeline.py` is the table of contents."""

from taskc.ir import add_names

add_names("taskc.programs.ir", "calls_text")
add_names("taskc.programs.parser", "parse_program")
