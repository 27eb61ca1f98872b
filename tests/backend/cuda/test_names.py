"""Names in CUDA C++: unique, nobody else's, and as they were in the kernel where that is possible."""

from __future__ import annotations

import random
import re

import pytest

from taskc.backend.cuda.prelude import UniqueNames, function_name
from taskc.ir import nodes as ir
from taskc.ir.types import f32


def test_any_text_becomes_a_name_that_no_other_has() -> None:
    pick, names = random.Random(5), UniqueNames()
    alphabet = "ab_1é-. "
    taken = set(names.taken)
    made = []
    for _ in range(2000):
        made.append(names.fresh("".join(pick.choices(alphabet, k=pick.randint(0, 4)))))
    assert len(set(made)) == len(made)
    assert not taken & set(made)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_]*", name) for name in made)
    assert not any("__" in name or name[0].isdigit() for name in made)


@pytest.mark.parametrize(
    ("wanted", "made"),
    [
        ("row", "row"),
        ("if", "if_1"),
        ("float", "float_1"),
        ("f32", "f32_1"),
        ("threadIdx", "threadIdx_1"),
        ("fmaf", "fmaf"),
        ("", "x"),
        ("__", "x"),
        ("2nd", "x2nd"),
        ("a__b", "a_b"),
        ("größe", "gr_e"),
    ],
)
def test_names_stay_what_they_were_where_they_can(wanted: str, made: str) -> None:
    assert UniqueNames().fresh(wanted) == made


def test_each_thing_keeps_its_name() -> None:
    names = UniqueNames()
    one, other = (ir.Variable("i") for _ in range(2))
    tensor = ir.Tensor("i", f32, (4,), ir.GLOBAL)
    assert [names[thing] for thing in (one, other, tensor, one)] == ["i", "i_1", "i_2", "i"]
    names.fresh("i_3")
    assert names[ir.Variable("i")] == "i_4"


@pytest.mark.parametrize("wanted", ["main", "sin", "sinf", "malloc", "lgammaf", "norm3df"])
def test_a_kernel_is_none_of_cs_functions(wanted: str) -> None:
    assert function_name(wanted) == f"{wanted}_kernel"
    assert function_name(f"my_{wanted}") == f"my_{wanted}"
