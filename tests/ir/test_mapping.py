"""Task mappings: what they answer."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from taskc.ir.mapping import Mapping, auto_map, mapping, repeat, replicate, spatial
from taskc.ir.mapping_forms import MappingError, Mode
from tests.counting import instructions

MATMUL = spatial(4, 2).repeat(2, 2).spatial(4, 8).repeat(4, 4)


def test_the_mapping_of_a_matmul() -> None:
    assert MATMUL.shape == (128, 128)
    assert (MATMUL.rank, MATMUL.workers, MATMUL.slots) == (2, 256, 64)
    assert MATMUL.worker_modes == (
        Mode(0, 4, 32),
        Mode(1, 2, 64),
        Mode(0, 4, 4),
        Mode(1, 8, 4),
    )
    assert MATMUL.slot_modes == (Mode(0, 2, 16), Mode(1, 2, 32), Mode(0, 4, 1), Mode(1, 4, 1))
    assert MATMUL(1)[:5] == [(0, 4), (0, 5), (0, 6), (0, 7), (1, 4)]
    assert MATMUL.owner((0, 5)) == (1, 1)
    assert MATMUL.is_bijection((128, 128))


def test_the_order_of_a_mapping_with_unit_dimensions_is_kept() -> None:
    # Hidet drops it when it removes the unit dimension.
    m = spatial(1, 2, 3, order=(0, 2, 1))
    assert [m(w) for w in range(4)] == [[(0, 0, 0)], [(0, 1, 0)], [(0, 0, 1)], [(0, 1, 1)]]
    assert m != spatial(1, 2, 3)
    assert m == spatial(1, 2, 3, order=(2, 0, 1)) == spatial(1, 1, 3) * spatial(1, 2, 1)
    assert repeat(3, 1, 2, order=(2, 1, 0))(0)[:3] == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]


def test_modes_are_normal() -> None:
    assert spatial(8) == spatial(4) * spatial(2) == spatial(1).spatial(8).repeat(1)
    assert (spatial(4) * spatial(2)).worker_modes == (Mode(0, 8, 1),)
    assert (replicate(2) * replicate(3)).worker_modes == (Mode(None, 6, 0),)
    assert repeat(2, 1) * spatial(1, 4) == spatial(1, 4) * repeat(2, 1)
    assert spatial(2, 4) != spatial(2, 4, order=(1, 0))
    assert spatial(4) != repeat(4)
    assert spatial(4) != "spatial(4)"


def test_replicate_takes_the_rank_of_its_partner() -> None:
    assert replicate(4).shape == (1,)
    m = replicate(2) * spatial(2, 3) * replicate(2)
    assert (m.shape, m.workers, m.slots) == ((2, 3), 24, 1)
    assert m(0) == m(1) == m(12) == [(0, 0)]
    assert m.owner((1, 2)) == (10, 0)
    assert m.is_replicated
    assert m.multiplicity().tolist() == [[4] * 3] * 2
    twice = mapping((1,), 1, lambda w: [(0,), (0,)])
    assert (twice * spatial(2, 2))(3) == [(1, 1), (1, 1)]


def test_enumerated_mappings() -> None:
    triangle = mapping((3, 3), 3, lambda w: [(w, i) for i in range(w + 1)])
    assert not triangle.is_composed
    assert (triangle.worker_modes, triangle.slot_modes) == (None, None)
    assert (triangle.slots, triangle(1)) == (3, [(1, 0), (1, 1)])
    assert triangle.valid.sum(axis=1).tolist() == [1, 2, 3]
    assert triangle.multiplicity().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert triangle.covers((1, 1))
    assert not triangle.covers((2, 2))
    assert not triangle.is_replicated
    assert str(triangle) == (
        "mapping((3, 3), 3, [[(0, 0)], [(1, 0), (1, 1)], [(2, 0), (2, 1), (2, 2)]])"
    )
    assert mapping((4,), 4, lambda w: [(w,)]) == spatial(4)
    assert {mapping((4,), 4, lambda w: [(w,)]), spatial(4)} == {spatial(4)}
    nothing = mapping((2,), 2, lambda w: [])
    assert (nothing.slots, nothing(0)) == (0, [])
    assert Mapping.parse(str(nothing)) == nothing


def test_a_limit_empties_slots_and_keeps_their_numbers() -> None:
    m = repeat(2, 4).within(2, 3)
    assert (m.shape, m.limit, m.iterated, m.slots) == ((2, 4), (2, 3), (2, 3), 8)
    assert m(0) == list(product(range(2), range(3)))
    assert m.owner((1, 0)) == (0, 4)
    assert m.find(0, [1, 0]) == 4
    assert m.find(0, [0, 3]) == -1
    assert m.is_bijection((2, 3))
    assert not m.covers((2, 4))
    assert m.within((2, 4)) == m
    assert repeat(2, 4).within((2, 4)).limit is None
    assert m.within((1, 4)).limit == (1, 3)
    assert m == repeat(2, 4).within([2, 3])
    # What differs may be masked.
    column_major = spatial(2, 2, order=(1, 0))
    assert spatial(2, 2).within(1, 1) == column_major.within(1, 1)
    assert spatial(2, 2).within(1, 1).same_owners(column_major.within(1, 1))
    assert spatial(2, 2).within(2, 1) != column_major.within(2, 1)
    # A composition keeps a limit where one says what is masked, and enumerates otherwise.
    assert m * spatial(1, 2) == (repeat(2, 4) * spatial(1, 2)).within(2, 6)
    assert (m * spatial(1, 2)).is_composed
    assert (repeat(3, 1) * m).is_composed
    assert not (repeat(1, 2) * m).is_composed
    assert (m * spatial(1, 2)) / spatial(1, 2) == m


def test_quotients() -> None:
    fragment = spatial(4, 8) * repeat(4, 4)
    assert MATMUL / fragment == spatial(4, 2) * repeat(2, 2)
    assert spatial(8) / spatial(2) == spatial(4)
    assert replicate(6) / replicate(3) == replicate(2)
    assert replicate(1, 2) == MATMUL / MATMUL
    # A mode of the product that has merged is split again.
    column = repeat(1, 3) * repeat(16, 1)
    assert column / repeat(4, 1) == repeat(1, 3).repeat(4, 1)


def test_owners_up_to_the_order_of_slots() -> None:
    assert (spatial(2, 1) * repeat(2, 3)).same_owners(spatial(2, 1) * repeat(2, 3, order=(1, 0)))
    assert not spatial(2, 3).same_owners(spatial(2, 3, order=(1, 0)))
    assert repeat(4).same_owners(mapping((4,), 1, lambda w: [(3,), (1,), None, (0,), (2,)]))


def test_projection() -> None:
    row = MATMUL.project((0,))
    assert row == spatial(4).replicate(2).repeat(2).spatial(4).replicate(8).repeat(4)
    assert str(row) == "spatial(4).replicate(2).repeat(2).spatial(4).replicate(8).repeat(4)"
    assert MATMUL.project((1, 0)).shape == (128, 128)
    assert spatial(2, 3).project((1, 0)) == spatial(3, 2, order=(1, 0))
    assert MATMUL.project(()) == replicate(256, rank=0)
    assert spatial(5, 7).within(4, 6).project((1,)).limit == (6,)


def test_large_mappings_are_enumerated_only_when_asked() -> None:
    m = spatial(1 << 40) * repeat(1 << 20)
    assert m.owner((3 << 20,)) == (3, 0)
    assert m.covers((1 << 60,))
    assert m / repeat(1 << 20) == spatial(1 << 40)
    assert m.find([7, 8], [[(7 << 20) + 5]]).tolist() == [5, -1]
    assert spatial(1 << 40)(123456789) == [(123456789,)]


def test_a_tile_is_enumerated_without_a_loop_over_its_tasks() -> None:
    few = spatial(1, 2).repeat(2, 1).spatial(2, 2).repeat(2, 2)
    many = spatial(4, 2).repeat(2, 4).spatial(4, 8).repeat(4, 4)
    assert (few.workers * few.slots, many.workers * many.slots) == (64, 32768)
    assert instructions(lambda: many.tasks) < 2 * instructions(lambda: few.tasks)


def test_arrays_are_read_only() -> None:
    arrays = [MATMUL.tasks, MATMUL.valid, *MATMUL.owner_table()]
    assert [array.flags.writeable for array in arrays] == [False] * 4
    assert MATMUL.tasks is MATMUL.tasks


def test_numpy_integers_are_sizes() -> None:
    assert spatial(np.int32(4), np.int64(2)) == spatial(4, 2)
    assert MATMUL.owner(np.array([0, 5])) == (1, 1)


def test_rank_zero() -> None:
    assert repeat() == spatial() == replicate(1, rank=0)
    assert repeat()(0) == [()]
    assert repeat().owner(()) == (0, 0)
    assert (replicate(4) * repeat()).workers == 4


# auto_map
@pytest.mark.parametrize(
    ("shape", "workers", "vector", "text"),
    [
        ((5, 7), 32, 1, "repeat(2, 1).spatial(4, 8).within(5, 7)"),
        ((1, 1), 32, 1, "spatial(32, 1).within(1, 1)"),
        ((16, 8), 128, 4, "spatial(64, 2).repeat(1, 4).within(16, 8)"),
        ((128, 64), 128, 4, "repeat(16, 1).spatial(8, 16).repeat(1, 4)"),
        ((64, 33), 32, 1, "repeat(16, 5).spatial(4, 8).within(64, 33)"),
        ((13,), 7, 1, "repeat(2).spatial(7).within(13)"),
        ((6, 10), 31, 1, "repeat(6, 1).spatial(1, 31).within(6, 10)"),
        ((2, 3), 1, 1, "repeat(2, 3).spatial(1, 1)"),
        ((4, 4), 16, 1, "spatial(4, 4)"),
        ((3,), 2, 8, "spatial(2).repeat(8).within(3)"),
    ],
)
def test_auto_map(shape: tuple[int, ...], workers: int, vector: int, text: str) -> None:
    assert str(auto_map(shape, workers=workers, vector=vector)) == text


def test_an_auto_map_covers_exactly_with_exactly_its_workers() -> None:
    random = np.random.default_rng(7)
    for _ in range(300):
        shape = tuple(int(n) for n in random.integers(1, 12, size=random.integers(1, 4)))
        workers, vector = int(random.integers(1, 65)), int(2 ** random.integers(0, 3))
        m = auto_map(shape, workers=workers, vector=vector)
        assert (m.workers, m.iterated) == (workers, shape)
        assert m.is_bijection(shape)
        assert not m.is_replicated
        # Each vector lies in one worker's consecutive slots, and the next worker has the next one.
        fastest = m.worker_modes[-1] if m.worker_modes else Mode(None, 1, 0)
        workers_in_row = fastest.size if fastest.dimension == m.rank - 1 else 1
        for j in range(min(workers_in_row * vector, shape[-1])):
            assert m.owner((0,) * (m.rank - 1) + (j,)) == (j // vector, j % vector)


@pytest.mark.parametrize("shape", [(64, 64), (7, 100), (1000, 3), (1, 5)])
@pytest.mark.parametrize("workers", [31, 32, 96, 256])
def test_an_auto_map_wastes_little(shape: tuple[int, int], workers: int) -> None:
    rows, columns = shape
    fewest = min(
        -(-rows // i) * -(-columns // (workers // i))
        for i in range(1, workers + 1)
        if workers % i == 0
    )
    assert 4 * auto_map(shape, workers=workers).slots <= 5 * fewest


def test_find_answers_in_the_shape_of_the_question() -> None:
    for m in (repeat(1), spatial(1), replicate(1), mapping((1,), 1, lambda w: [(0,)])):
        assert m.find(0, [[0], [0]]).tolist() == [0, 0]
        assert m.find([[0], [0]], [[0], [0], [0]]).shape == (2, 3)
        assert m.find(0, [0]).shape == ()


def test_a_number_of_too_many_digits() -> None:
    for text, column in (
        (f"spatial({'7' * 5000})", 9),
        (f"repeat(2).spatial(4, {'1' * 5000})", 22),
    ):
        with pytest.raises(
            MappingError, match=f"^column {column}: a number has 1000 digits at most$"
        ):
            Mapping.parse(text)
