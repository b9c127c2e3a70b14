"""The downloader against a server on this machine: resumed, dropped, lied to, absent."""

import gzip
import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest

from feta.errors import DataError
from feta_lab import data
from feta_lab.data import catalog, download
from feta_lab.data.catalog import CIFAR_ROW, DataFile, Entry

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 28, 28), dtype=np.uint8)
LABELS = np.arange(40, dtype=np.uint8) % 10
IMAGES_GZ = "train-images-idx3-ubyte.gz"


@dataclass
class Site:
    """What the server has, how it misbehaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    drops: list[int] = field(default_factory=list)  # bytes after which the next answers break off
    shift: int = 0  # how far from the wanted byte the answers to a Range start
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
        start += site.shift if start else 0
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : start + (site.drops.pop(0) if site.drops else len(body))])
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Site(url=f"http://127.0.0.1:{server.server_port}/")
        server.site = made  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield made
        server.shutdown()
        thread.join()


@pytest.fixture
def fetch(monkeypatch, tmp_path):
    """Fetch a set that a test made up as if it were in the catalogue."""

    def fetch(known, root=tmp_path, progress=None):
        monkeypatch.setattr(catalog, "CATALOG", {known.name: known})
        return data.fetch(known.name, root, progress)

    return fetch


@pytest.fixture
def small(site: Site) -> Entry:
    """A data set of four small IDX files, which the site has."""
    files = []
    for name, values in (("images-idx3", PIXELS), ("labels-idx1", LABELS)) * 2:
        part = "train" if len(files) < 2 else "t10k"
        file = DataFile(f"{part}-{name}-ubyte", "idx", values.shape, "")
        raw = file.header + values.tobytes()
        site.files[f"{file.name}.gz"] = gzip.compress(raw)
        files.append(replace(file, sha256=hashlib.sha256(raw).hexdigest()))
    return Entry("small", "Small", "small", tuple(files[:2]), tuple(files[2:]), sites=(site.url,))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_fetches_every_missing_file_once_and_tells_how_far_it_is(fetch, small, site):
    told = []
    folder = fetch(small, progress=lambda *step: told.append(step))
    assert names(folder) == set(site.files)
    assert (IMAGES_GZ, len(site.files[IMAGES_GZ]), len(site.files[IMAGES_GZ])) in told
    site.asked.clear()
    fetch(small)
    assert site.asked == []


@pytest.mark.parametrize(
    ("part", "site_is", "asked"),
    [
        (lambda right: right[:1000], {}, ["bytes=1000-"]),
        (lambda right: right, {}, ["bytes={size}-"]),
        (lambda right: b"x" * 500, {}, ["bytes=500-", None]),
        (lambda right: b"x" * 500, {"ranges": False}, ["bytes=500-"]),
        (lambda right: b"", {"drops": [3000, 2000]}, [None, "bytes=3000-", "bytes=5000-"]),
        (lambda right: b"", {"drops": [100], "shift": 7}, [None, "bytes=100-", None]),
    ],
    ids=["begun", "complete", "other bytes", "other bytes, no ranges", "it drops", "it goes on elsewhere"],
)
def test_goes_on_from_the_bytes_that_are_there(fetch, small, site, tmp_path, part, site_is, asked):
    right = site.files[IMAGES_GZ]
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / f"{IMAGES_GZ}.part").write_bytes(part(right))
    for name, value in site_is.items():
        setattr(site, name, value)
    assert (fetch(small) / IMAGES_GZ).read_bytes() == right
    got = [wanted for path, wanted in site.asked if path == IMAGES_GZ]
    assert got == [wanted and wanted.format(size=len(right)) for wanted in asked]


def test_a_server_that_keeps_dropping_leaves_a_part_for_the_next_try(fetch, small, site, tmp_path):
    site.drops = [100] * 20
    with pytest.raises(DataError, match="connection dropped; the bytes so far are kept"):
        fetch(small)
    assert names(tmp_path / "small") == {f"{IMAGES_GZ}.part"}
    site.drops = []
    assert names(fetch(small)) == set(site.files)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda right: gzip.compress(gzip.decompress(right)[:-1] + b"!"), "SHA-256 of the unpacked bytes"),
        (lambda right: right[:-20], "the gzip data is cut or corrupt"),
        (lambda right: b"<html>moved</html>", "must start with the IDX header"),
        (lambda right: right + bytes(download.SLACK), "sends more than"),
    ],
    ids=["other bytes", "cut", "a web page", "too long"],
)
def test_wrong_bytes_leave_nothing_behind(fetch, small, site, tmp_path, body, message):
    site.files[IMAGES_GZ] = body(site.files[IMAGES_GZ])
    with pytest.raises(DataError, match=message):
        fetch(small)
    assert names(tmp_path / "small") == set()


def test_the_next_site_is_tried_and_every_failure_is_told(fetch, small, site, tmp_path):
    gone, lost = f"{site.url}gone/", f"{site.url}lost/"
    assert names(fetch(replace(small, sites=(gone, site.url)))) == set(site.files)
    with pytest.raises(DataError) as caught:
        fetch(replace(small, sites=(gone, lost)), tmp_path / "b")
    for url in (gone, lost):
        assert f"{url}{IMAGES_GZ}: HTTP Error 404: Not Found" in str(caught.value)


def test_what_is_in_the_way_is_not_overwritten(fetch, small, tmp_path):
    mine = tmp_path / "small" / "train-images-idx3-ubyte"
    mine.parent.mkdir()
    other = small.files[0].header + PIXELS[::-1].tobytes()
    mine.write_bytes(other)
    with pytest.raises(DataError, match="is in the way: move it away and fetch again"):
        fetch(small)
    assert mine.read_bytes() == other
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file cannot be written .*; set --data-dir or FETA_CACHE"):
        fetch(small, tmp_path / "file")


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


def test_two_at_once_fetch_each_file_once(fetch, small, site):
    threads = [threading.Thread(target=fetch, args=(small,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path for path, _ in site.asked) == sorted(site.files)


def test_offline_says_what_was_searched_and_tried(monkeypatch, tmp_path):
    def unreachable(*args: object, **options: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(download, "urlopen", unreachable)
    monkeypatch.setenv("FETA_CACHE", str(tmp_path))
    tried = r"amazonaws\.com/train-images-idx3-ubyte\.gz: <urlopen error no network>"
    with pytest.raises(DataError, match=rf"(?s)'fashion-mnist' was not found.*{tmp_path}.*{tried}"):
        data.load("fashion-mnist")
    with pytest.raises(DataError, match=r"(?s)yann\.lecun\.com.*ossci-datasets.*--data-dir"):
        data.fetch("mnist", tmp_path)


def test_a_silent_network_fails_in_time(fetch, monkeypatch, small):
    woken = threading.Event()
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(download, "urlopen", lambda *args, **options: woken.wait(10))
    with pytest.raises(DataError, match="TimeoutError"):
        fetch(small)
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
        add("bins/readme.html", b"x")
        add("bins/test_batch.bin", b"", tarfile.SYMTYPE)
        for name, batch in zip(("data_batch_1.bin", "test_batch.bin"), rows, strict=True):
            add(f"bins/{name}", batch.tobytes())
            files.append(DataFile(name, "cifar", batch.shape, hashlib.sha256(batch.tobytes()).hexdigest()))
    site.files["bins.tar.gz"] = buffer.getvalue()
    return Entry("packed", "Packed", "bins", (files[0],), (files[1],), (site.url,), "bins.tar.gz")


def test_an_archive_is_unpacked_to_its_wanted_files_alone(fetch, packed, site, tmp_path):
    root = tmp_path / "a" / "b"
    site.drops = [5000]
    folder = fetch(packed, root)
    assert names(folder) == {"data_batch_1.bin", "test_batch.bin"}
    assert names(root) == {"bins", ".feta-fetch.lock"}
    assert names(tmp_path) == {"a"}
    assert not Path("/feta-escaped").exists()
    assert all(path.is_file() and not path.is_symlink() for path in folder.iterdir())
    fetch(packed, root)
    assert len(site.asked) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [({"name": "other.bin"}, r"must hold bins/data_batch_1\.bin, bins/other\.bin"), ({"sha256": "00"}, "must be 00")],
    ids=["lacks a file", "other bytes"],
)
def test_an_archive_of_other_files_leaves_nothing_behind(fetch, packed, tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        fetch(replace(packed, test=(replace(packed.test[0], **change),)))
    assert names(tmp_path) == {"bins", ".feta-fetch.lock"}
    assert names(tmp_path / "bins") == set()


def test_a_pipe_in_the_way_is_not_waited_for(fetch, small, tmp_path):
    (tmp_path / "small").mkdir()
    os.mkfifo(tmp_path / "small" / f"{IMAGES_GZ}.part")
    with pytest.raises(DataError, match="it is a pipe"):
        fetch(small)


def test_what_a_killed_unpacking_left_is_removed(tmp_path):
    """It unpacks into a folder with a name that the next one knows."""
    file = DataFile("a.bin", "cifar", (1, CIFAR_ROW), hashlib.sha256(bytes(CIFAR_ROW)).hexdigest())
    left = tmp_path / ".rows.abcd1234.part"
    left.mkdir()
    (left / "half").touch()
    (tmp_path / "rows").mkdir()
    with tarfile.open(tmp_path / "rows.tar.gz.part", "w:gz") as tar:
        entry = tarfile.TarInfo("rows/a.bin")
        entry.size = CIFAR_ROW
        tar.addfile(entry, io.BytesIO(bytes(CIFAR_ROW)))
    download._extract([file], tmp_path / "rows", tmp_path / "rows.tar.gz.part")
    assert names(tmp_path) == {"rows", "rows.tar.gz.part"}
    assert names(tmp_path / "rows") == {"a.bin"}
