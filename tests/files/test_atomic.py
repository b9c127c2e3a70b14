"""Whole files or none: full disks, missing permission, targets in the way, a kill in between."""

from __future__ import annotations

import errno
import os
import resource
import stat
import tempfile
from contextlib import contextmanager

import pytest

from feta.errors import FileError
from feta.files.atomic import check_writable, write_atomic


def fail(code: int):
    def raising(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return raising


@contextmanager
def files_limited_to(n_bytes: int):
    """The system itself refuses to write more: a real error in the middle of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_writes_into_a_new_folder(tmp_path):
    path = tmp_path / "deep" / "er" / "file.bin"
    write_atomic(path, b"content")
    assert path.read_bytes() == b"content"
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_permissions_are_those_of_any_new_file(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "file", b"")
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("old", [None, b"old content"], ids=["new file", "overwrite"])
@pytest.mark.parametrize("step", ["fsync", "replace", "chmod", "mkstemp"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_failure_leaves_what_was_there(monkeypatch, tmp_path, old, step, code):
    path = tmp_path / "file.bin"
    if old is not None:
        path.write_bytes(old)
    monkeypatch.setattr(tempfile if step == "mkstemp" else os, step, fail(code))
    with pytest.raises(FileError, match=f"cannot write {path}: {os.strerror(code)}"):
        write_atomic(path, b"new content")
    assert [p.name for p in tmp_path.iterdir()] == ([] if old is None else ["file.bin"])
    assert old is None or path.read_bytes() == old


@pytest.mark.parametrize("old", [None, b"old content"], ids=["new file", "overwrite"])
@pytest.mark.parametrize("size", [2000, 10**6])
def test_a_disk_that_fills_up_half_way(tmp_path, old, size):
    path = tmp_path / "file.bin"
    if old is not None:
        path.write_bytes(old)
    with files_limited_to(1000), pytest.raises(FileError, match=f"cannot write {path}: File too large"):
        write_atomic(path, bytes(size))
    assert [p.name for p in tmp_path.iterdir()] == ([] if old is None else ["file.bin"])
    assert old is None or path.read_bytes() == old


def test_an_interruption_leaves_what_was_there(monkeypatch, tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")

    def interrupted(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]


def test_a_folder_in_the_way(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(FileError, match="Is a directory"):
        write_atomic(tmp_path / "taken", b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(FileError, match=r"cannot write .*taken/file"):
        write_atomic(tmp_path / "taken" / "file", b"x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(FileError, match="Permission denied"):
            write_atomic(tmp_path / "file", b"x")
    finally:
        tmp_path.chmod(0o755)


def test_text_paths(tmp_path):
    write_atomic(str(tmp_path / "file"), b"x")
    assert (tmp_path / "file").read_bytes() == b"x"


def test_check_writable_leaves_nothing_behind(tmp_path):
    check_writable(tmp_path / "net")
    check_writable(tmp_path / "folder" / "inside" / "net")
    assert list(tmp_path.iterdir()) == []


def test_check_writable_of_a_folder_and_below_a_file(tmp_path):
    with pytest.raises(FileError, match="it is a folder"):
        check_writable(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"cannot write .*file/net: "):
        check_writable(tmp_path / "file" / "net")


def test_check_writable_without_permission(tmp_path, monkeypatch):
    def denied(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(tempfile, "TemporaryFile", denied)
    with pytest.raises(FileError, match=f"cannot write {tmp_path / 'net'}: Permission denied"):
        check_writable(tmp_path / "net")
