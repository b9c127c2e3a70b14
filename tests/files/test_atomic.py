"""Whole files or none: full disks, missing permission, targets in the way, a kill in between."""

import errno
import os
import stat
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from feta.errors import FileError
from feta.files.atomic import check_writable, write_atomic


@pytest.fixture(params=[None, b"old content"], ids=["new file", "overwrite"])
def path(tmp_path, request):
    """A file that cannot be written: what was there before stays, and nothing is left beside it."""
    path = tmp_path / "file.bin"
    if request.param is not None:
        path.write_bytes(request.param)
    yield path
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if request.param is None else [request.param])


def test_writes_into_a_new_folder(tmp_path):
    for path in (tmp_path / "deep" / "er" / "file.bin", f"{tmp_path}/text/file.bin"):
        write_atomic(path, b"content")
        assert [p.read_bytes() for p in Path(path).parent.iterdir()] == [b"content"]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_permissions_are_those_of_any_new_file(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "file", b"")
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("step", ["fsync", "replace", "mkdir"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_failure_leaves_what_was_there(monkeypatch, path, step, code):
    monkeypatch.setattr(os, step, Mock(side_effect=OSError(code, os.strerror(code))))
    with pytest.raises(FileError, match=f"cannot write {path}: {os.strerror(code)}"):
        write_atomic(path, b"new content")


@pytest.mark.parametrize("size", [2000, 10**6])
def test_a_disk_that_fills_up_half_way(path, size, files_limited_to):
    with files_limited_to(1000), pytest.raises(FileError, match=f"cannot write {path}: File too large"):
        write_atomic(path, bytes(size))


def test_an_interruption_leaves_what_was_there(monkeypatch, path):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")


def test_a_folder_in_the_way_and_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(FileError, match="Is a directory"):
        write_atomic(tmp_path / "taken", b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"cannot write .*file/inside"):
        write_atomic(tmp_path / "file" / "inside", b"x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(FileError, match="Permission denied"):
            write_atomic(tmp_path / "file", b"x")
    finally:
        tmp_path.chmod(0o755)


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
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    monkeypatch.setattr(tempfile, "TemporaryFile", Mock(side_effect=denied))
    with pytest.raises(FileError, match=f"cannot write {tmp_path / 'net'}: Permission denied"):
        check_writable(tmp_path / "net")
