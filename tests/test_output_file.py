"""What is written is there whole or not at all, and nothing but regular files is replaced."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

import taskc as tc
from taskc import f32
from taskc.cli import main
from taskc.output_file import replacing, write_whole

posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")


@tc.program
def doubled(x: f32[4], y: tc.out[f32[4]]):
    tc.compute(4, lambda i: x[i] * 2, out=y)


@pytest.mark.parametrize("before", [None, b"before"])
def test_a_disk_that_is_full_leaves_what_was_there(tmp_path: Path, before: bytes | None) -> None:
    path = tmp_path / "a"
    if before is not None:
        path.write_bytes(before)
        path.chmod(0o640)

    def write() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        write()
    assert [one.read_bytes() for one in tmp_path.iterdir()] == ([] if before is None else [before])
    write_whole(path, "after")
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"after"]
    if before is not None:
        assert path.stat().st_mode & 0o777 == 0o640


@posix
def test_a_link_stays_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there")
    write_whole(tmp_path / "link", "one")
    write_whole(tmp_path / "link", "two")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_text() == "two"
    os.mkfifo(tmp_path / "pipe")
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_whole(tmp_path / "pipe", "three")
    reader.join()
    assert found == ["three"]
    assert (tmp_path / "pipe").is_fifo()


@posix
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "link to a device"])
def test_a_bundle_takes_the_place_of_files_only(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.taskc"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/full")
    else:
        path.symlink_to("/dev/full")
    before = path.lstat()
    with pytest.raises(OSError, match="no regular file, and isn't replaced"):
        tc.save_bundle(doubled, path)
    assert path.lstat().st_ino == before.st_ino
    with pytest.raises(tc.CompileError, match="no regular file"):
        tc.load_bundle(path)


def test_commands_leave_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    assert main(["map", "spatial(4)", "--svg", "picture.svg"]) == 1
    assert "No space" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
    with pytest.raises(OSError, match="No space"):
        tc.save_bundle(doubled, "a.taskc")
    assert not [*tmp_path.iterdir()]
    assert np.array_equal(doubled(np.ones(4, np.float32)), np.full(4, 2, np.float32))
