"""Calls: a kernel or a program is compiled for a target (`driver.py`), and the compiled code is cached."""
