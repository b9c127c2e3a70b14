"""Records: one line per run, traceable, and readable after a kill."""

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

import feta
from feta.errors import FileError
from feta_lab import records
from feta_lab.records import append, identity, latest, read, record


def line(number: int) -> dict[str, object]:
    return record("test", {"n": number}, seed=number, metrics={"accuracy": 90.5})


def test_what_was_appended_is_read(tmp_path):
    path = tmp_path / "deep" / "records.jsonl"
    lines = [line(n) for n in range(3)]
    for entry in lines:
        append(path, entry)
    assert read(path) == lines
    assert len(path.read_text().splitlines()) == 3


def test_a_record_says_what_made_it():
    entry = record("prune", {"method": "threshold"}, 7, {"accuracy": 90.5})
    assert set(entry) == {"kind", "key", "time", "config", "seed", "metrics", "environment"}
    assert (entry["kind"], entry["config"], entry["seed"]) == ("prune", {"method": "threshold"}, 7)
    assert entry["key"] == {"method": "threshold", "seed": 7}
    assert entry["time"].endswith("+00:00")
    environment = entry["environment"]
    assert environment["feta"] in (feta.__version__, "source")
    assert all(isinstance(value, str) and value for value in environment.values())
    assert {"commit", "python", "torch", "numpy", "processor", "cores", "threads", "gpu"} <= set(environment)
    text = json.dumps(entry)  # it does not name the machine
    for private in (str(Path.home()), str(Path.cwd()), str(Path(feta.__file__).parent)):
        assert private not in text
    assert socket.gethostname() not in re.split(r"[^\w.-]+", text)


@pytest.mark.parametrize("cut", [1, 20, 200, -1])
def test_a_last_line_cut_by_a_kill_is_left_out_and_written_over(tmp_path, cut):
    path = tmp_path / "records.jsonl"
    for number in range(3):
        append(path, line(number))
    whole = path.read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    path.write_bytes(whole[: start + cut] if cut > 0 else whole[:cut])
    left = [0, 1] if cut > 0 else [0, 1, 2]  # a line that lacks nothing but its end is kept
    assert [entry["seed"] for entry in read(path)] == left
    append(path, line(3))
    assert [entry["seed"] for entry in read(path)] == [*left, 3]


@pytest.mark.parametrize(
    "content", [b"PK\x03\x04 a\nrest", b"# Notes\n\nwithout an end", b'{\n  "a": 1\n}', b'{"a": 1,\n"b"', b"\n"]
)
def test_a_file_of_anything_else_is_not_touched(tmp_path, content):
    path = tmp_path / "inputs.npz"
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"inputs.npz must be a file of records that feta has written"):
        append(path, line(0))
    assert path.read_bytes() == content


@pytest.mark.parametrize("begun", [b"", b"{", b'{"kind": "te'])
def test_a_first_line_cut_by_a_kill_is_written_over(tmp_path, begun):
    path = tmp_path / "records.jsonl"
    path.write_bytes(begun)
    append(path, line(0))
    assert [entry["seed"] for entry in read(path)] == [0]


@pytest.mark.parametrize("bad", [b'{"seed": 1, "kin\n', b"\n", b"\xff\xfe\x00\n", b"7\n"])
@pytest.mark.parametrize("last", [False, True])
def test_a_bad_line_that_is_whole_is_an_error_that_names_it(tmp_path, bad, last):
    path = tmp_path / "records.jsonl"
    append(path, line(0))
    with path.open("ab") as file:
        file.write(bad)
    if not last:
        append(path, line(2))
    with pytest.raises(FileError, match=rf"{path}, line 2: must be a JSON object"):
        read(path)


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(FileError, match=r"cannot read records .*none.jsonl: No such file or directory"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="cannot add a record to"):
        append(tmp_path / "file" / "records.jsonl", line(0))
    with pytest.raises(ValueError, match="not JSON compliant"):
        append(tmp_path / "x", {"accuracy": float("nan")})
    assert not (tmp_path / "x").exists()


def test_a_disk_that_takes_half_a_line_is_an_error(tmp_path, monkeypatch):
    path, whole = tmp_path / "records.jsonl", os.write
    append(path, line(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, content: whole(handle, content[: len(content) // 2]))
        with pytest.raises(FileError, match=r"cannot add a record to .*No space left on device"):
            append(path, line(1))
    append(path, line(2))
    assert [entry["seed"] for entry in read(path)] == [0, 2]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with one commit, and the package inside it."""

    def git(*words):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org", *words]
        subprocess.run(command, check=True)

    package = tmp_path / "src" / "feta_lab" / "records.py"
    for path in (package, tmp_path / "results" / "records.jsonl"):
        path.parent.mkdir(parents=True)
        path.write_text("1\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "x")):
        git(*words)
    monkeypatch.setattr(records, "__file__", str(package))
    return tmp_path


def test_a_changed_tree_can_be_told_from_its_commit_and_from_other_changes(checkout, monkeypatch):
    clean = records._commit()
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (checkout / "results" / "records.jsonl").write_text("2\n")  # a run adds to its records
    assert records._commit() == clean
    found = []
    for name, text in (("src/feta_lab/records.py", "2\n"), ("new.py", "1\n"), ("new.py", "2\n")):
        (checkout / name).write_text(text)
        found.append(records._commit())
        assert re.fullmatch(f"{clean}-dirty-[0-9a-f]{{8}}", found[-1])
        assert records._commit() == found[-1]
    assert len(set(found)) == 3
    # Installed into an environment inside somebody's repository, feta must not report that one's commit.
    package = checkout / ".venv" / "lib" / "site-packages" / "feta_lab" / "records.py"
    monkeypatch.setattr(records, "__file__", str(package))
    assert records._commit() == "unknown"


def test_a_cell_is_named_by_kind_and_key_whatever_their_order():
    one, two = {"net": "a", "seed": 0, "layers": ["x"]}, {"layers": ("x",), "seed": 0, "net": "a"}
    assert identity("fig2", one) == identity("fig2", two) != identity("bench", one)
    lines = [{"kind": "fig2", "key": one, "n": 0}, {"n": 1}, {"kind": "fig2", "key": two, "n": 2}]
    assert [found["n"] for found in latest(lines).values()] == [2]


def test_every_record_of_the_repository_says_what_it_is():
    for path in (Path(__file__).parents[2] / "results").glob("*/*.jsonl"):
        lines = read(path)
        assert all(entry["kind"] and entry["key"] and entry["environment"]["commit"] for entry in lines)
        flat = [{name: entry.get(name, value) for name, value in entry["key"].items()} for entry in lines]
        assert flat == [entry["key"] for entry in lines]
        assert len(latest(lines)) == len(lines)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="it is a pipe"):
        append(tmp_path / "pipe", {"kind": "x"})
