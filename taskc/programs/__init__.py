"""The compiler of programs: it traces them, fuses them, schedules their computations, and plans their calls.

docs/passes.md goes through the files in processing order; `pipeline.py` is the table of contents of the passes.
"""

from taskc.ir import add_names

add_names("taskc.programs.printer", "calls_text")
add_names("taskc.programs.parser", "parse_program")
