"""The downloader against a server on this machine: resumed, dropped, lied to, absent."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import struct
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from feta.errors import DataError
from feta_lab import data
from feta_lab.data import catalog, download, fetching
from feta_lab.data.catalog import CIFAR_ROW, Archive, DataFile, Entry
from feta_lab.data.fetching import fetch_entry

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 28, 28), dtype=np.uint8)
LABELS = np.arange(40, dtype=np.uint8) % 10
IMAGES_GZ = "train-images-idx3-ubyte.gz"


@dataclass
class Site:
    """What the server has, how it misbehaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    drops: list[int] = field(default_factory=list)  # bytes after which the next answers break off
    content_range: str | None = None  # a lie about where the bytes start
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        site: Site = self.server.site  # type: ignore[attr-defined]
        wanted = self.headers.get("Range")
        site.asked.append((self.path.lstrip("/"), wanted))
        body = site.files.get(self.path.lstrip("/"))
        if body is None:
            return self.send_error(404)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and site.ranges else 0
        if start >= len(body):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            lie = site.content_range
            self.send_header("Content-Range", lie or f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : start + (site.drops.pop(0) if site.drops else len(body))])
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def site() -> Iterator[Site]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Site(url=f"http://127.0.0.1:{server.server_port}/")
        server.site = made  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield made
        server.shutdown()
        thread.join()


def idx(values: np.ndarray) -> bytes:
    return b"\0\0\x08" + struct.pack(f">B{values.ndim}I", values.ndim, *values.shape) + values.tobytes()


@pytest.fixture
def small(site: Site) -> Entry:
    """A data set of four small IDX files, and the site that has them."""
    files = []
    for prefix in ("train", "t10k"):
        for name, values in (
            (f"{prefix}-images-idx3-ubyte", PIXELS),
            (f"{prefix}-labels-idx1-ubyte", LABELS),
        ):
            raw = idx(values)
            site.files[f"{name}.gz"] = gzip.compress(raw)
            files.append(DataFile(name, "idx", values.shape, hashlib.sha256(raw).hexdigest()))
    return Entry("small", "Small", "small", tuple(files[:2]), tuple(files[2:]), sites=(site.url,))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_fetches_every_file_and_tells_how_far_it_is(small, site, tmp_path):
    told = []
    folder = fetch_entry(small, tmp_path, lambda *step: told.append(step))
    assert names(folder) == set(site.files)
    size = len(site.files[IMAGES_GZ])
    assert (IMAGES_GZ, size, size) in told


def test_what_is_there_is_not_fetched_again(small, site, tmp_path):
    fetch_entry(small, tmp_path)
    site.asked.clear()
    fetch_entry(small, tmp_path)
    assert site.asked == []


def test_goes_on_from_a_part_of_an_earlier_try(small, site, tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / f"{IMAGES_GZ}.part").write_bytes(site.files[IMAGES_GZ][:1000])
    folder = fetch_entry(small, tmp_path)
    assert site.asked[0] == (IMAGES_GZ, "bytes=1000-")
    assert (folder / IMAGES_GZ).read_bytes() == site.files[IMAGES_GZ]


def test_a_complete_part_needs_no_more_bytes(small, site, tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / f"{IMAGES_GZ}.part").write_bytes(site.files[IMAGES_GZ])
    assert IMAGES_GZ in names(fetch_entry(small, tmp_path))
    assert [path for path, _ in site.asked].count(IMAGES_GZ) == 1


@pytest.mark.parametrize("ranges", [True, False])
def test_a_part_of_other_bytes_is_thrown_away(small, site, tmp_path, ranges):
    site.ranges = ranges
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / f"{IMAGES_GZ}.part").write_bytes(b"x" * 500)
    folder = fetch_entry(small, tmp_path)
    assert (folder / IMAGES_GZ).read_bytes() == site.files[IMAGES_GZ]


def test_a_server_that_drops_half_way_is_asked_for_the_rest(small, site, tmp_path):
    site.drops = [3000, 2000]
    folder = fetch_entry(small, tmp_path)
    assert [wanted for path, wanted in site.asked if path == IMAGES_GZ] == [
        None,
        "bytes=3000-",
        "bytes=5000-",
    ]
    assert (folder / IMAGES_GZ).read_bytes() == site.files[IMAGES_GZ]


def test_a_server_that_keeps_dropping_leaves_a_part_for_the_next_try(small, site, tmp_path):
    site.drops = [100] * 20
    with pytest.raises(DataError, match="connection dropped; 500 bytes are kept"):
        fetch_entry(small, tmp_path)
    assert names(tmp_path / "small") == {f"{IMAGES_GZ}.part"}
    site.drops = []
    fetch_entry(small, tmp_path)
    assert names(tmp_path / "small") == set(site.files)


def test_a_server_that_sends_from_elsewhere_is_refused(small, site, tmp_path):
    site.drops, site.content_range = [100], "bytes 0-99/100"
    with pytest.raises(DataError, match="must send the bytes from 100 on, sends 'bytes 0-99/100'"):
        fetch_entry(small, tmp_path)
    assert names(tmp_path) == {".feta-fetch.lock"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (gzip.compress(idx(PIXELS[::-1])), "SHA-256 of the unpacked bytes must be"),
        (gzip.compress(idx(PIXELS))[:-20], "the gzip data is cut or corrupt"),
        (b"<html>moved</html>", "must be 00 00 to be an IDX file"),
    ],
    ids=["other bytes", "cut", "a web page"],
)
def test_wrong_bytes_leave_nothing_behind(small, site, tmp_path, body, message):
    site.files[IMAGES_GZ] = body
    with pytest.raises(DataError, match=message):
        fetch_entry(small, tmp_path)
    assert names(tmp_path) == {".feta-fetch.lock"}


def test_more_bytes_than_the_file_can_have(small, site, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "SLACK", -40_000)
    with pytest.raises(DataError, match="sends more than"):
        fetch_entry(small, tmp_path)
    assert names(tmp_path) == {".feta-fetch.lock"}


def test_the_next_site_is_tried_and_every_failure_is_told(small, site, tmp_path):
    gone = f"{site.url}gone/"
    folder = fetch_entry(replace(small, sites=(gone, site.url)), tmp_path)
    assert names(folder) == set(site.files)
    with pytest.raises(DataError) as caught:
        fetch_entry(replace(small, sites=(gone, f"{site.url}lost/")), tmp_path / "b")
    assert f"{gone}{IMAGES_GZ}: HTTP 404 Not Found" in str(caught.value)
    assert f"{site.url}lost/{IMAGES_GZ}: HTTP 404 Not Found" in str(caught.value)


def test_a_file_in_the_way_is_not_overwritten(small, tmp_path):
    (tmp_path / "small").mkdir()
    mine = tmp_path / "small" / "train-images-idx3-ubyte"
    mine.write_bytes(idx(PIXELS[::-1]))
    with pytest.raises(DataError, match="is in the way: move it away and fetch again"):
        fetch_entry(small, tmp_path)
    assert mine.read_bytes() == idx(PIXELS[::-1])


def test_a_folder_that_cannot_be_made(small, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot be written: .*; give another --data-dir or set FETA_CACHE"):
        fetch_entry(small, tmp_path / "file")


def test_load_downloads_into_the_cache(small, site, tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "CATALOG", {"small": small})
    monkeypatch.setenv("FETA_CACHE", str(tmp_path))
    monkeypatch.delenv("FETA_DATA", raising=False)
    with pytest.raises(DataError, match="was not found"):
        data.load("small", download=False)
    with pytest.raises(DataError, match="was not found"):
        data.load("small", tmp_path / "explicit")
    assert site.asked == []
    loaded = data.load("small")
    assert loaded.source == str(tmp_path / "small")
    assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (40, 20, 20)


def test_two_at_once_fetch_each_file_once(small, site, tmp_path):
    threads = [threading.Thread(target=fetch_entry, args=(small, tmp_path)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path for path, _ in site.asked) == sorted(site.files)


def test_offline_fails_at_once_and_says_what_where_and_how(monkeypatch, tmp_path):
    def unreachable(*args: object, **options: object) -> socket.socket:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    monkeypatch.setenv("FETA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FETA_DATA", str(tmp_path / "env"))
    with pytest.raises(DataError) as caught:
        data.load("fashion-mnist")
    for words in (
        str(tmp_path / "env" / "fashion-mnist"),
        str(tmp_path / "cache" / "fashion-mnist"),
        "/usr/share/datasets/fashion-mnist",
        "train-images-idx3-ubyte",
        "amazonaws.com/train-images-idx3-ubyte.gz: Name or service not known",
    ):
        assert words in str(caught.value)
    with pytest.raises(DataError, match=f"put them into {tmp_path / 'else' / 'mnist'}") as caught:
        data.fetch("mnist", tmp_path / "else")
    assert "yann.lecun.com" in str(caught.value)
    assert "ossci-datasets" in str(caught.value)


def test_a_silent_network_fails_in_time(monkeypatch, tmp_path, small):
    woken = threading.Event()

    def silent(*args: object, **options: object) -> socket.socket:
        woken.wait(10)
        raise TimeoutError

    monkeypatch.setattr(download, "CONNECT_SECONDS", 0.05)
    monkeypatch.setattr(socket, "create_connection", silent)
    start = time.perf_counter()
    with pytest.raises(DataError, match=r"no connection within 0\.05 s"):
        fetch_entry(small, tmp_path)
    assert time.perf_counter() - start < 5
    woken.set()


@pytest.fixture
def packed(site: Site) -> Entry:
    """A CIFAR-like set of two batches, in an archive with members that must not get out."""
    rows = np.random.default_rng(2).integers(0, 10, (2, 6, CIFAR_ROW), dtype=np.uint8)
    files, buffer = [], io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:

        def add(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> None:
            member = tarfile.TarInfo(name)
            member.size, member.type, member.linkname = len(content), kind, "/etc/passwd"
            tar.addfile(member, io.BytesIO(content))

        add("../escaped", b"x")
        add("/feta-escaped", b"x")
        add("bins/../../escaped", b"x")
        add("bins/readme.html", b"x")
        add("bins/test_batch.bin", b"", tarfile.SYMTYPE)
        for name, batch in zip(("data_batch_1.bin", "test_batch.bin"), rows, strict=True):
            add(f"bins/{name}", batch.tobytes())
            files.append(DataFile(name, "cifar", batch.shape, hashlib.sha256(batch.tobytes()).hexdigest()))
    site.files["bins.tar.gz"] = buffer.getvalue()
    archive = Archive("bins.tar.gz", hashlib.md5(buffer.getvalue(), usedforsecurity=False).hexdigest())
    return Entry("packed", "Packed", "bins", tuple(files[:1]), tuple(files[1:]), (site.url,), archive)


def test_an_archive_is_unpacked_to_its_wanted_files_alone(packed, site, tmp_path):
    root = tmp_path / "a" / "b"
    site.drops = [5000]
    folder = fetch_entry(packed, root)
    assert names(folder) == {"data_batch_1.bin", "test_batch.bin"}
    assert names(root) == {"bins", ".feta-fetch.lock"}
    assert names(tmp_path) == {"a"}
    assert not Path("/feta-escaped").exists()
    assert all(path.is_file() and not path.is_symlink() for path in folder.iterdir())
    fetch_entry(packed, root)
    assert len(site.asked) == 2


def test_an_archive_with_another_checksum(packed, tmp_path):
    with pytest.raises(DataError, match="MD5 must be 00, got"):
        fetch_entry(replace(packed, archive=Archive("bins.tar.gz", "00")), tmp_path)
    assert names(tmp_path) == {".feta-fetch.lock"}


def test_an_archive_that_lacks_a_file(packed, tmp_path):
    other = replace(packed.test[0], name="other.bin")
    with pytest.raises(DataError, match=r"must hold .*bins/other\.bin"):
        fetch_entry(replace(packed, test=(other,)), tmp_path)
    assert names(tmp_path / "bins") == set()
