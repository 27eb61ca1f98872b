"""Calls: a kernel or a program and a target make something that runs (`driver.py`), and what was made is kept."""
