"""What comes from a file: rows of the tuning database. A mutant changes nothing, or is refused in one sentence."""

from __future__ import annotations

import contextlib
import json
import tempfile
from dataclasses import astuple, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from taskc.kernels.machine_facts import ProcessorFacts, with_measured
from taskc.kernels.matmul import MATMUL, matmul
from taskc.kernels.rows import ROWS, softmax
from taskc.tune.choose import choose, fingerprint, recorded, version
from taskc.tune.database import _REPLACE, Database
from taskc.tune.rows import DatabaseError, Row, RowError, now, to_line
from taskc.tune.space import Space

_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a disk would wait for each row
_VALUES = (
    *("0", "-1", "1", "7", "8.0", "1e999", "-1e999", "1e-320", "null", "true", "NaN", "[]", "{}", '""', '"x"'),
    *("1" + "0" * 400, "9223372036854775808", '{"is":"function"}', '{"is":"type","name":[]}', '{"is":["a"]}'),
    *('{"is":"mapping","text":"("}', '{"is":"mapping","text":"spatial(99999999999)*repeat(99999999999)"}'),
    *("[" * 900 + "]" * 900, '{"is":"dim","multiple":"x"}', '{"is":"Panels"}', '{"__class__":3}', "[[1]]"),
)  # fmt: skip


@cache
def _spaces() -> list[Space[Any, Any]]:
    with recorded() as found:
        matmul(48, 48, 48)
        softmax(24, 100)
    return [space for space in found.values() if space.operator in (MATMUL, ROWS)]


def _mutated(text: str, random: Random) -> str:
    """One value within a text exchanged, or a field left out, added or doubled."""
    said = json.loads(text)
    name = random.choice(sorted(said))
    value = random.choice(_VALUES)
    match random.randrange(5):
        case 0:
            del said[name]
        case 1:
            return value
        case 2:
            return text[:-1] + f',"{random.choice(["zz", name])}":{value}}}'
        case _:
            said[name] = "PLACE"
    return json.dumps(said, sort_keys=True, separators=(",", ":")).replace('"PLACE"', value)


def run_mutant_of_a_row(number: int) -> int:
    """A row, imported or put there by another program, changes no plan but to one of the space."""
    random = Random(number)
    space = random.choice(_spaces())
    chosen = random.choice(space.plans)
    good = Row(
        operator=space.operator.name, problem=space.problem_text, plan=space.text(chosen),
        machine=fingerprint(space.machine), version=version(), outcome="chosen", seconds=1e-6,
        spread=0.1, samples=3, predicted=1e-6, date=now(),
    )  # fmt: skip
    field = random.choice(("problem", "plan"))
    row = replace(good, **{field: _mutated(getattr(good, field), random)})
    odd: dict[str, Any] = {"seconds": random.choice((-1.0, 1e300, "x", b"x"))}
    slipped_in = random.random() < 0.5
    if slipped_in and random.random() < 0.2:
        row = replace(row, **odd)
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        database = Database(Path(folder, "rows"))
        if slipped_in:
            with database._changing() as connection:
                connection.execute(_REPLACE, astuple(row))
        else:
            with contextlib.suppress(RowError):
                database.import_lines([to_line(row)])
        with mock.patch("taskc.tune.choose.database", return_value=database):
            found = choose(space.operator, space.problem, space.machine)
        database.close()
    kinds = [type(value) for value in vars_of(found)]
    assert found == space.default or found == chosen, f"{row}: {found}"
    assert float not in kinds, f"{row}: {found}"
    if field == "plan" and row.plan != good.plan and space.text(found) != row.plan:
        assert found == space.default, f"{row}: {found}"
    return 1


def vars_of(plan: Any) -> list[Any]:
    return [getattr(plan, name) for name in plan.__dataclass_fields__]


# --- databases -----------------------------------------------------------------------------------

_STATEMENTS = (
    "DROP TABLE results; CREATE VIEW results AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r)"
    " SELECT 'matmul' operator, '{}' problem, '{}' plan, 'm' machine, '0.1.0' version, 'measured' outcome, 1 seconds,"
    " 0 spread, 1 samples, 1 predicted, '2026-01-31T12:30:00+00:00' date, '' note, n digest FROM r",
    "DROP TABLE facts; CREATE VIEW facts AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r)"
    " SELECT 'm' machine, 'f' || n fact, 1.0 value FROM r",
    "CREATE TRIGGER more AFTER INSERT ON facts BEGIN DELETE FROM results; END",
    "CREATE TABLE other (x)",
    "DROP INDEX fastest",
    "DROP TABLE facts; CREATE TABLE facts (machine TEXT, fact TEXT, value AS (randomblob(1000000000)))",
    "UPDATE results SET samples = 'many'",
    "UPDATE results SET problem = zeroblob(100)",
    "PRAGMA user_version = 7",
    "PRAGMA user_version = -7",
)


def hostile_database(folder: Path, number: int) -> Path:
    """A database that isn't what it seems; most are refused."""
    random = Random(number)
    path = folder / "hostile.sqlite3"
    own = Database(path)
    for plan in range(3):
        row = Row("matmul", "{}", str(plan), "m", "0.1.0", "measured", 1.0, 0.0, 1, 1.0, now())
        own.add(row)
    own.set_fact("m", "bandwidth", 1.0)
    with own._using(create=False) as connection:
        assert connection is not None
        connection.execute("PRAGMA journal_mode = DELETE")
        for statement in random.sample(_STATEMENTS, random.randint(0, 2)):
            with contextlib.suppress(Exception):
                connection.executescript(statement)
    own.close()
    if random.random() < 0.7:
        content = bytearray(path.read_bytes())
        for _ in range(random.randint(1, 40)):
            content[random.randrange(len(content))] = random.randrange(256)
        path.write_bytes(content[: random.choice((len(content), len(content), 100, 5000))])
    return path


def run_hostile_database(number: int) -> int:
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        into = Database(Path(folder, "own.sqlite3"))
        try:
            into.merge(hostile_database(Path(folder), number))
        except (DatabaseError, RowError):
            assert not into.rows()
        facts = with_measured(ProcessorFacts(), into.facts("m"))
        assert facts.bytes_per_second > 0
        into.close()
    return 1
