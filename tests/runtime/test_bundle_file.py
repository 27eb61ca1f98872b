"""The file of a bundle: what is written comes back, and whatever else is in a file is an error."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskc.runtime import bundle
from taskc.runtime.bundle import BundleError, BundleFile, Sections

_PARTS = (b"code", bytes(100), b"", b"weights" * 50, b"code")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.taskc"


def written(path: Path) -> bytes:
    sections = Sections()
    numbers = [sections.add(part) for part in _PARTS]
    sections.write(path, {"numbers": numbers, "name": "é"})
    return path.read_bytes()


def read(path: Path) -> tuple[Any, list[bytes]]:
    found = BundleFile.open(path)
    return found.content, [bytes(found.section(n)) for n in range(found.sections)]


def with_manifest(path: Path, text: bytes, rest: bytes = bytes(4096)) -> None:
    """A file whose manifest says whatever this text says, under its own hash."""
    head = bundle._HEAD.pack(
        bundle._MAGIC, bundle.FORMAT, 0, len(text), hashlib.sha256(text).digest()
    )
    path.write_bytes(head + text + rest)


def test_what_was_written_comes_back_and_equal_sections_are_one(path: Path) -> None:
    written(path)
    content, sections = read(path)
    assert content == {"numbers": [0, 1, 2, 3, 0], "name": "é"}
    assert sections == [*_PARTS[:4]]


def test_sections_begin_at_multiples_of_64_bytes(path: Path) -> None:
    whole = written(path)
    rows = json.loads(whole[64 : 64 + int.from_bytes(whole[24:32], "little")])["sections"]
    assert [offset % 64 for offset, _, _ in rows] == [0, 0, 0, 0]
    assert rows[-1][0] + rows[-1][1] == len(whole)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = written(path)
    opened = BundleFile.open(path)

    def pieces(self: Sections, content: object) -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Sections, "pieces", pieces)
        with pytest.raises(KeyboardInterrupt):
            Sections().write(path, None)
    assert path.read_bytes() == before
    assert [it.name for it in path.parent.iterdir()] == [path.name]
    Sections().write(path, "another")
    assert bytes(opened.section(3)) == _PARTS[3]


def test_no_flipped_bit_goes_by(path: Path) -> None:
    whole = written(path)
    expected = read(path)
    unseen, draw = 0, random.Random(0)
    for _ in range(1500):
        place, bit = draw.randrange(len(whole)), 1 << draw.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            assert read(path) == expected  # what fills up to 64 bytes
            unseen += 1
        except BundleError:
            pass
    assert 0 < unseen < 450


def test_a_file_that_was_cut_off_is_no_bundle(path: Path) -> None:
    whole = written(path)
    for size in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(BundleError):
            BundleFile.open(path)


_HASH = "0" * 64


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ([[512, 64, _HASH], [512, 64, _HASH]], "lie over one another"),
        ([[512, 128, _HASH], [576, 64, _HASH]], "lie over one another"),
        ([[0, 64, _HASH]], "lie over one another"),
        ([[513, 64, _HASH]], "lie over one another"),
        ([[512, -1, _HASH]], "lie over one another"),
        ([[1 << 70, 64, _HASH]], "bytes of"),
        ([[512, 1 << 70, _HASH]], "bytes of"),
        ([[512, 1e400, _HASH]], "says what it can't"),
        ([[512, 64]], "says what it can't"),
        ([512], "says what it can't"),
        ({"a": 1}, "says what it can't"),
        (None, "says what it can't"),
    ],
)
def test_sections_lie_one_after_another_within_the_file(
    path: Path, sections: object, message: str
) -> None:
    with_manifest(path, json.dumps({"sections": sections, "content": 0}).encode())
    with pytest.raises(BundleError, match=message):
        BundleFile.open(path)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff", b"[]", b"{}", b"[" * 100_000, b'{"sections": []}', b"1" * 5000]
)
def test_a_manifest_is_of_the_kind_that_it_has_to_be(path: Path, text: bytes) -> None:
    with_manifest(path, text)
    with pytest.raises(BundleError, match="says what it can't"):
        BundleFile.open(path)


def test_another_format_and_other_files_are_told(path: Path) -> None:
    whole = written(path)
    path.write_bytes(whole[:16] + b"\x01" + whole[17:])
    with pytest.raises(BundleError, match="has the format 1, and this taskc reads 3") as caught:
        BundleFile.open(path)
    assert caught.value.hint is not None
    assert "compile it anew" in caught.value.hint
    assert caught.value.location.file == str(path)
    path.write_bytes(b"\x08\x09" + bytes(1000))
    with pytest.raises(BundleError, match="doesn't begin as one"):
        BundleFile.open(path)
    path.write_bytes(whole[:24] + b"\xff" * 8 + whole[32:])
    with pytest.raises(BundleError, match="ends within its manifest"):
        BundleFile.open(path)


def test_a_section_is_held_to_its_hash_only_where_that_is_asked(path: Path) -> None:
    whole = written(path)
    place = whole.index(b"weightsweights")
    path.write_bytes(whole[:place] + b"W" + whole[place + 1 :])
    found = BundleFile.open(path)
    assert bytes(found.section(3, verify=False))[:7] == b"Weights"
    with pytest.raises(BundleError, match="section 3 of the bundle is damaged"):
        found.section(3)
