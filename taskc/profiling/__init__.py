"""Profiles of programs: what each call takes and moves, beside the least possible, and where the memory goes.

profile   a program is measured call by call, and counted
page      all of that as a page, with pictures
drawings  its pictures: calls over time, and the arena over the same time
"""

from __future__ import annotations
