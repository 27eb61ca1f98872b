"""The cache: whole entries or none, only its owner's, no larger than it may be."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from taskc.backend import cache as caching
from taskc.backend.cache import Cache, key_of
from taskc.runtime.settings import cache_folder

KEY = key_of("a key")


@pytest.fixture
def kept(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "deep" / "cache")


def test_what_was_put_is_there(kept: Cache) -> None:
    assert kept.get(KEY) is None
    kept.put(KEY, b"content")
    assert kept.get(KEY) == b"content"
    assert kept.get(key_of("another key")) is None
    kept.put(KEY, b"")
    assert kept.get(KEY) == b""
    assert os.listdir(kept.folder) == [KEY]
    assert kept.folder.stat().st_mode & 0o777 == 0o700
    assert (kept.folder / KEY).stat().st_mode & 0o077 == 0


def test_keys_keep_their_parts_apart() -> None:
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("abc", "")}) == 4


@pytest.mark.parametrize("damage", ["shorter", "changed", "empty", "other", "folder"])
def test_a_damaged_entry_is_missing_and_made_again(
    kept: Cache, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept.put(KEY, b"content")
    path = kept.folder / KEY
    content = path.read_bytes()
    wrong = {
        "shorter": content[:-1],
        "changed": content[:-1] + b"!",
        "empty": b"",
        "other": b"taskc 0\n" + content[8:],
    }
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        path.write_bytes(wrong[damage])
    with caplog.at_level(logging.WARNING):
        assert kept.get(KEY) is None
    kept.put(KEY, b"again")
    if damage != "folder":
        assert "is damaged and is made again" in caplog.text
        assert kept.get(KEY) == b"again"
    else:
        assert os.listdir(kept.folder) == [KEY]  # nothing is left lying about


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_write_is_mended(
    kept: Cache, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    kept.put(KEY, b"content")
    kept.folder.chmod(mode)
    assert kept.get(KEY) == b"content"
    assert kept.folder.stat().st_mode & 0o777 == mode & 0o755
    kept.folder.chmod(mode)
    kept.put(KEY, b"other")
    assert caplog.text.count("could be written by others; now it can't") == 1
    assert kept.folder.stat().st_mode & 0o777 == mode & 0o755


def anothers(monkeypatch: pytest.MonkeyPatch, is_kind: Callable[[int], bool]) -> None:
    """What is of a kind belongs to somebody else; these tests may run as root, or not."""
    fstat = os.fstat

    def told(descriptor: int) -> os.stat_result:
        status = fstat(descriptor)
        owner = 12345 if is_kind(status.st_mode) else status.st_uid
        return os.stat_result([*status[:4], owner, *status[5:]])

    monkeypatch.setattr(caching.os, "fstat", told)


def test_a_folder_of_another_user_is_not_used(
    kept: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept.put(KEY, b"content")
    with monkeypatch.context() as patch:
        anothers(patch, stat.S_ISDIR)
        assert kept.get(KEY) is None
        kept.put(KEY, b"other")
        kept.limit = 0
        kept.prune()
        assert caplog.text.count("belongs to another user: nothing is kept there") == 1
    assert kept.get(KEY) == b"content"


def test_an_entry_of_another_user_is_made_again(
    kept: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Planted while the folder was open to others."""
    kept.put(KEY, b"content")
    anothers(monkeypatch, stat.S_ISREG)
    assert kept.get(KEY) is None
    assert "belongs to another user: it is made again" in caplog.text
    kept.put(KEY, b"again")


def test_an_entry_that_others_may_write_is_made_again(kept: Cache) -> None:
    kept.put(KEY, b"content")
    (kept.folder / KEY).chmod(0o666)
    assert kept.get(KEY) is None
    kept.put(KEY, b"again")
    assert kept.get(KEY) == b"again"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_an_entry_is_a_file(kept: Cache, kind: str, tmp_path: Path) -> None:
    kept.put(KEY, b"content")
    path = kept.folder / KEY
    path.rename(tmp_path / "elsewhere")
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    assert kept.get(KEY) is None
    kept.put(KEY, b"again")
    assert kept.get(KEY) == b"again"
    assert (tmp_path / "elsewhere").read_bytes().endswith(b"content")


def test_an_entry_of_another_name_is_none(kept: Cache) -> None:
    kept.put(KEY, b"times three")
    other = key_of("times five")
    (kept.folder / KEY).rename(kept.folder / other)
    assert kept.get(other) is None


def test_a_link_is_no_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    names = [*(f"holiday{number}.jpg" for number in range(4)), key_of("mine")]
    for name in names:
        (photos / name).write_bytes(bytes(1000))
    (tmp_path / "cpu").symlink_to(photos)
    kept = Cache(tmp_path / "cpu", limit=0)
    kept.put(KEY, b"content")
    kept.prune()
    assert kept.get(KEY) is None
    assert sorted(os.listdir(photos)) == sorted(names)
    assert "is a symbolic link: nothing is kept there" in caplog.text


def test_a_folder_that_is_exchanged_in_between(
    kept: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All goes to what was opened and looked at."""
    kept.put(KEY, b"content")
    evil = Cache(tmp_path / "evil")
    evil.put(KEY, b"evil")
    (evil.folder / "photo.jpg").write_bytes(b"")
    fstat = os.fstat

    def exchange(descriptor: int) -> os.stat_result:
        monkeypatch.setattr(caching.os, "fstat", fstat)
        kept.folder.rename(tmp_path / "aside")
        evil.folder.rename(kept.folder)
        return fstat(descriptor)

    monkeypatch.setattr(caching.os, "fstat", exchange)
    assert kept.get(KEY) == b"content"


def test_what_the_cache_has_not_made_stays(tmp_path: Path) -> None:
    kept = Cache(tmp_path, limit=0)
    own = ["letter.txt", "0" * 63, "0" * 65, "F" * 64, f"{'0' * 64}.txt"]
    for name in own:
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / ("0" * 64)).mkdir()
    broken = f"{KEY}.{'0' * 16}"  # what a crash left
    (tmp_path / broken).write_bytes(bytes(100))
    kept.put(KEY, b"content")
    assert sorted(os.listdir(tmp_path)) == sorted([*own, "0" * 64])


def test_where_folders_can_not_be_opened(kept: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "_OPENS_FOLDERS", False)
    kept.put(KEY, b"content")
    assert kept.get(KEY) == b"content"
    kept.limit = 0
    kept.prune()
    assert kept.get(KEY) is None


def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    nowhere = Cache(blocked / "cache")
    nowhere.put(KEY, b"content")
    assert nowhere.get(KEY) is None
    kept = Cache(tmp_path / "cache")
    kept.put(KEY, b"content")

    def full(*args: Any, **keywords: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caching.os, "replace", full)
    kept.put(key_of("other"), b"other")
    assert os.listdir(kept.folder) == [KEY]
    # A read-only one is still read: this test may run as root, so by what a read-only system says.
    monkeypatch.setattr(caching.os, "utime", full)
    assert kept.get(KEY) == b"content"


def test_the_oldest_entries_go_first(tmp_path: Path) -> None:
    kept = Cache(tmp_path, limit=10_000)
    keys = [key_of(str(number)) for number in range(8)]
    for number, key in enumerate(keys):
        kept.put(key, bytes(2000))
        os.utime(tmp_path / key, (number, number))
    assert kept.get(keys[0]) is not None  # and so it is the youngest
    kept.prune()
    left = {key for key in keys if (tmp_path / key).exists()}
    assert left == {keys[0], *keys[5:]}
    small = Cache(tmp_path, limit=0)
    small.prune()
    assert os.listdir(tmp_path) == []
    Cache(tmp_path / "none").prune()


def test_writers_prune_now_and_then(tmp_path: Path) -> None:
    kept = Cache(tmp_path, limit=20_000)
    for number in range(100):
        kept.put(key_of(str(number)), bytes(1000))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20_000 + 33 * 1100


def test_processes_and_threads_write_at_once(tmp_path: Path) -> None:
    program = f"""
from taskc.backend.cache import Cache, key_of
kept = Cache(__import__("pathlib").Path({str(tmp_path)!r}), limit=100_000)
for number in range(300):
    key = key_of(str(number % 10))
    content = str(number % 10).encode() * 10_000
    kept.put(key, content)
    assert kept.get(key) in (content, None)
    if number % 50 == 0:
        kept.prune()
"""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}

    def process(_: int) -> int:
        return subprocess.run([sys.executable, "-c", program], env=environment).returncode

    with ThreadPoolExecutor(3) as executor:
        assert list(executor.map(process, range(3))) == [0] * 3
    assert all(len(path.name) == 64 for path in tmp_path.iterdir())


# --- through a call --------------------------------------------------------------------------

CALL = """
import sys, time, logging
logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
import numpy as np
import taskc as tc

@tc.kernel(workers=16)
def double(x: tc.f32[64], y: tc.out[tc.f32[64]]):
    for i in tc.spatial(16).repeat(4):
        y[i] = x[i] * 2.0

x = np.ones(64, np.float32)
assert (double(x) == 2).all()
"""


@pytest.fixture
def call(tmp_path: Path) -> Any:
    (tmp_path / "call.py").write_text(CALL)

    def run(**variables: str) -> str:
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": str(root), **variables}
        ended = subprocess.run(
            [sys.executable, str(tmp_path / "call.py")],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout

    return run


def test_a_second_process_compiles_nothing(call: Any, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert call(TASKC_CACHE=str(folder)) == ""
    entries = {path: path.stat().st_mtime_ns for path in (folder / "cpu").iterdir()}
    assert len(entries) >= 1
    time.sleep(0.01)
    assert call(TASKC_CACHE=str(folder)) == ""
    assert set((folder / "cpu").iterdir()) == set(entries)
    for path in entries:
        content = bytearray(path.read_bytes())
        content[-5] ^= 255
        path.write_bytes(bytes(content))
    assert "is damaged and is made again" in call(TASKC_CACHE=str(folder))
    assert call(TASKC_CACHE=str(folder)) == ""


def test_a_call_works_where_nothing_can_be_kept(call: Any, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    call(TASKC_CACHE=str(blocked / "cache"))
    call(TASKC_CACHE="", XDG_CACHE_HOME="", HOME="/proc/nowhere")


def test_a_version_is_of_what_sources_say(tmp_path: Path) -> None:
    """Not of where they lie, nor of when they were written: a copy has the same one."""

    def version(folder: Path) -> str:
        caching.sources_version.cache_clear()
        return caching.sources_version("1", tmp_path / "kept", folder)

    def tree(name: str, **texts: str) -> Path:
        folder = tmp_path / name / "passes"
        folder.mkdir(parents=True)
        for file, text in texts.items():
            (folder / f"{file}.py").write_text(text)
        return folder

    first = tree("one", a="x = 1", b="")
    found = version(first)
    again = version(first)
    os.utime(first / "a.py", (1, 1))
    assert found == again == version(first) == version(tree("two", a="x = 1", b=""))
    changed = (
        tree("three", a="x = 2", b=""),
        tree("four", a="x = 1", c=""),
        tree("five", a="x = 1"),
    )
    versions = [version(folder) for folder in changed]
    assert len({found, *versions}) == 4


def test_the_folder_of_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKC_CACHE", "here")
    assert cache_folder() == tmp_path / "here"
    for name in ("TASKC_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    for platform, expected in (
        ("linux", "/home/somebody/.cache/taskc"),
        ("darwin", "/home/somebody/Library/Caches/taskc"),
    ):
        monkeypatch.setattr(sys, "platform", platform)
        assert str(cache_folder()) == expected
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert str(cache_folder()) == "/elsewhere/taskc"

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", staticmethod(homeless))
    temporary = cache_folder()
    assert temporary == cache_folder()
    assert temporary.stat().st_mode & 0o777 == 0o700
    assert len(temporary.name) > len("taskc-") + 6
