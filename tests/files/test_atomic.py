"""Whole files or none: full disks, missing permission, targets in the way, a kill in between."""

import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from feta.errors import FileError
from feta.files.atomic import check_writable, replacing, write_atomic


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
    with pytest.raises(FileError, match="it is a folder"):
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


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "circle", "device"])
def test_only_files_are_written_to(tmp_path, kind):
    path = tmp_path / "place"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as there:
            there.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "circle":
        path.symlink_to(path)
    else:
        path.symlink_to("/dev/null")  # a link to a device stands for the device
    before = os.lstat(path).st_ino
    for refuse in (check_writable, lambda place: write_atomic(place, b"x")):
        with pytest.raises(FileError, match=f"cannot write {path}: it is a .*; choose another name"):
            refuse(path)
    assert os.lstat(path).st_ino == before
    assert [p.name for p in tmp_path.iterdir()] == ["place"]
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path, there):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "file", tmp_path / "link"
    if there:
        target.write_bytes(b"old")
    link.symlink_to(target)
    check_writable(link)
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["far", "file", "link"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o666])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path, mode):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(mode)
    write_atomic(path, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", mode)


def test_a_read_only_file_is_found_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"kept")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write what is read-only
    with pytest.raises(FileError, match="it is read-only"):
        check_writable(tmp_path / "file")


@pytest.mark.parametrize("name", ["n" * 255, "n" * 250, "é" * 120])
def test_a_long_name_is_as_good_as_a_short_one(tmp_path, name):
    write_atomic(tmp_path / name, b"x")
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["n" * 256, "zero\0byte"])
def test_a_name_that_no_file_can_have(tmp_path, name):
    for refuse in (check_writable, lambda place: write_atomic(place, b"x")):
        with pytest.raises(FileError, match="cannot write"):
            refuse(f"{tmp_path}/{name}")


WRITER = """
import sys, time
from pathlib import Path
from feta.files.atomic import replacing
with replacing(Path(sys.argv[1])) as part:
    part.write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_writer_left_is_removed_by_the_next_and_what_a_living_one_has_is_not(tmp_path):
    path = tmp_path / "file"
    living, killed = (subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=-1) for _ in range(2))
    try:
        for process in (living, killed):
            assert process.stdout.readline() == b"writing\n"
        killed.kill()
        killed.wait()
        assert len(list(tmp_path.iterdir())) == 2
        (tmp_path / ".file.mine.part").touch()  # not one of ours: it stays
        write_atomic(path, b"whole")
        left = [p for p in tmp_path.iterdir() if p.is_dir()]
        assert [(p / "file").read_bytes() for p in left] == [b"half"]
    finally:
        living.kill()
        for process in (living, killed):
            process.communicate()
    write_atomic(path, b"again")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".file.mine.part", "file"]


def test_a_folder_that_is_replaced_hands_on_its_mode(tmp_path):
    place = tmp_path / "place"
    place.mkdir(mode=0o750)
    place.chmod(0o750)
    with replacing(place, folder=True) as part:
        part.mkdir()
        (part / "file").touch()
    assert stat.S_IMODE(place.stat().st_mode) == 0o750
    assert [path.name for path in place.iterdir()] == ["file"]
