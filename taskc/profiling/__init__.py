"""Profiles of programs: the time and traffic of each call against the least possible, and the use of memory.

profile   measurements and counts of a program, call by call
page      the profile as a page, with pictures of calls and of the arena over time
"""

from __future__ import annotations
