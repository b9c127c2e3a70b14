"""Commands that are killed at random moments, and just before every call that changes a file or starts a process.

Afterwards the output is not there or whole, no process is left, the same command succeeds, and then no file is left
but those that it is meant to write.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import feta
from feta.errors import FetaError
from feta_lab import data as datasets
from feta_lab import networks, records, store
from soak.tally import Tally

COUNT = 460  # half of them enough for every call of every command
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)
GONE = 30.0  # seconds in which every process of a command that was killed must have ended; a machine may be busy


@dataclass(frozen=True)
class Command:
    """A command line, the files it writes, and what reads one of them."""

    words: tuple[str, ...]
    files: tuple[str, ...]
    check: Callable[[Path], Any] = store.load


def run(count: int, seed: int) -> Tally:
    """Half of the kills come at random moments, half at calls, one after the other."""
    tally, draw = Tally("kills"), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder).resolve()) as runner:
        names = list(runner.commands)
        steps = ((name, step) for step in range(1, 10_000) for name in names if step <= runner.usual(name)[1])
        for number in range(count):
            how = draw.choice(SIGNALS)
            if number % 2:
                name, step = next(steps)
                how = signal.SIGKILL if draw.random() < 0.5 else how
                said, asked = f"at call {step}", {"step": step, "signal": int(how)}
            else:
                name = names[number // 2 % len(names)]
                after = runner.usual(name)[0] * draw.uniform(0, 1.1)
                said, asked = f"after {after:.3f} s", {"after": after}
            if problem := runner.killed(name, f"{number}", how, **asked):
                tally.wrong.append(f"{name}, {how.name} {said} (number {number} of seed {seed}): {problem}")
            tally.tried += 1
        print("kills: calls of", ", ".join(f"{name} {calls}" for name, (_, calls) in runner.known.items()))
    return tally


class Runner:
    """Commands, the process that runs them, and what they need."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.known: dict[str, tuple[float, int]] = {}

    def __enter__(self) -> "Runner":
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.place)}
        command = [sys.executable, "-m", "soak._commands"]
        root = Path(__file__).parents[1]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.server = subprocess.Popen(command, env=env, cwd=root, **pipes)
        return self

    def __exit__(self, *error: object) -> None:
        self.server.communicate()  # it ends with its input

    @cached_property
    def commands(self) -> dict[str, Command]:
        dense, trained = self.place / "dense.safetensors", self.place / "networks"
        data = datasets.load("mnist-mini")
        model = networks.build("30FC-30FC-10SM", data.shape, seed=0)
        info = store.NetworkInfo("30FC-30FC-10SM", data.shape, "mnist-mini", data.normalisation)
        store.save(store.Network(model, info), dense)  # what is tested is not its accuracy
        store.save(store.Network(model, info), trained / "dense-mnist-mnist-mini-seed0.safetensors")
        out, prune = (
            ("--records", "feta-records.jsonl", "--force", "-o", "out.safetensors"),
            ("prune", str(dense), "--sparsity", "0.9", "--samples", "200"),
        )
        both = ("feta-records.jsonl", "out.safetensors")
        bench = ("bench", "--nets", "dense-mnist", "--data", "mnist-mini", "--methods", "threshold,wanda")
        bench += ("--seeds", "1", "--sparsity", "0.9", "--samples", "100", "--jobs", "2", "--no-compensate")
        found = {
            "prune": Command((*prune, "--method", "alps", *out), both),
            "train": Command(("train", "30FC-10SM", "--data", "mnist-mini", "--epochs", "2", *out), both),
            "resume": Command((*prune, "--method", "feta", "--resume", *out), both),
            "export": Command(
                ("export", str(dense), "--safetensors", "out.safetensors", "--force"), both[1:], _plain
            ),
            "speed": Command(
                ("speed", str(dense), "--batch", "1", "--report", "out.html", "--force"), ("out.html",), _page
            ),
            "bench": Command((*bench, "--networks", str(trained), "-o", "bench"), BENCH, _page),
        }
        if folder := self._transformer():
            words = ("prune", str(folder), "--method", "threshold", "--sparsity", "0.5", "-o", "out")
            found["folder"] = Command(words, FOLDER, lambda path: feta.load(path.parent))
        return found

    def _transformer(self) -> Path | None:
        try:
            import transformers
        except ImportError:
            return None
        sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
        config = transformers.LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=16)
        torch.manual_seed(0)
        feta.save(transformers.LlamaForCausalLM(config), self.place / "llama")
        return self.place / "llama"

    def usual(self, name: str) -> tuple[float, int]:
        """The seconds and the calls of a command that is left alone."""
        if name not in self.known:
            started = time.monotonic()
            if problem := self._run(name, self._fresh(f"{name}-first")):
                raise RuntimeError(f"feta {name} must work before it is killed, got {problem}")
            steps = (self.place / f"{name}-first.steps").read_text()
            self.known[name] = (time.monotonic() - started, int(steps))
        return self.known[name]

    def killed(self, name: str, where: str, how: signal.Signals, after: float | None = None, **step: int) -> str:
        """What is wrong after a kill and after the same command again; nothing where all is right."""
        place = self._fresh(where)
        pid = self._start(name, place, **step)
        if after is not None:
            time.sleep(after)
            os.kill(pid, how)
        sent = time.monotonic()
        code, said = self._end(place)
        if after is not None and time.monotonic() - sent > GONE:
            return f"it went on for {time.monotonic() - sent:.0f} s"
        # Python's own answer to Ctrl-C when the command is over and it ends itself.
        if "Traceback" in said and not (how is signal.SIGINT and "ignored in atexit" in said):
            return f"a traceback: {said[-300:]}"
        if code not in (0, -how, 128 + how):
            return f"it ended with {code}: {said[-300:]}"
        if problem := self._broken(name, place):
            return f"after the kill {problem}"
        until = time.monotonic() + GONE
        while left := _processes(pid):
            if time.monotonic() > until:
                return f"processes {left} are left"
            time.sleep(0.05)
        problem = self._run(name, place)
        shutil.rmtree(place)
        return problem

    def _run(self, name: str, place: Path) -> str:
        self._start(name, place)
        code, said = self._end(place)
        # A folder that was whole before the kill is not written again.
        if code and not (name == "folder" and "must be a new or an empty folder" in said):
            return f"the command, left alone, ended with {code}: {said[-300:]}"
        if problem := self._broken(name, place):
            return f"after the run that was left alone {problem}"
        found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
        found |= {str(path.relative_to(place)) for path in (place / "tmp").rglob("*")}
        found |= {path.name for path in place.iterdir() if path.name.endswith((".part", ".resume"))}
        right = set(self.commands[name].files)
        return "" if found == right else f"files are left or missing: {sorted(found ^ right)}"

    def _fresh(self, name: str) -> Path:
        (self.place / name / "tmp").mkdir(parents=True)
        return self.place / name

    def _start(self, name: str, place: Path, **step: int) -> int:
        request = {"words": self.commands[name].words, "place": str(place), **step}
        assert self.server.stdout is not None
        self._say(json.dumps(request))
        return int(self.server.stdout.readline())

    def _say(self, line: str) -> None:
        assert self.server.stdin is not None
        self.server.stdin.write(line + "\n")
        self.server.stdin.flush()

    def _end(self, place: Path) -> tuple[int, str]:
        assert self.server.stdout is not None
        self._say("")
        code = int(self.server.stdout.readline())
        errors = Path(f"{place}.err")
        return code, errors.read_text(errors="replace") if errors.exists() else ""

    def _broken(self, name: str, place: Path) -> str:
        command = self.commands[name]
        try:
            if (place / command.files[-1]).exists():
                command.check(place / command.files[-1])
            for path in place.rglob("*records.jsonl"):
                records.read(path)
        except (FetaError, ValueError) as error:
            return f"a file is broken: {error}"
        return ""


def _plain(path: Path) -> None:
    feta.load_into(networks.build("30FC-30FC-10SM", datasets.load("mnist-mini").shape, seed=0), path)


def _page(path: Path) -> None:
    if not path.read_text(encoding="utf-8").rstrip().endswith("</html>"):
        raise ValueError("the page has no end")


def _processes(session: int) -> list[int]:
    """Processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, *numbers = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(numbers[2]) == session and state not in "ZX":
            found.append(int(entry.name))
    return found


FOLDER = ("out/README.md", "out/config.json", "out/generation_config.json", "out/model.safetensors")
BENCH = ("bench/records.jsonl", "bench/sparsity-plain.png", "bench/sparsity-plain.svg", "bench/report.html")


if __name__ == "__main__":
    print(run(int(sys.argv[1]), int(sys.argv[2])))
