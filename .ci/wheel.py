"""Builds the wheel and the sdist, and tries the wheel in environments that have nothing else: python .ci/wheel.py

The environment that runs this has feta's dependencies and hatchling. They are linked into the empty one, since pip
takes minutes to install torch; `--install` has pip do it all the same. Later Pythons on this machine, for which there
is no torch here, get the part of feta that does without.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LATER = ("3.12", "3.13", "3.14")


def built(source: Path, folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=source, capture_output=True, check=True
    )


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


def wheel_of(source: Path, folder: Path) -> Path:
    """The wheel of a distribution, after a check that its sdist gives the same one."""
    built(source, folder)
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "unpacked", filter="data")
    built(next((folder / "unpacked").iterdir()), folder / "again")
    (again,) = (folder / "again").glob("*.whl")
    assert not (unlike := contents(wheel) ^ contents(again)), (
        f"in the wheel of the tree or of the sdist alone: {unlike}"
    )
    return wheel


def environment(python: str, folder: Path, *packages: str | Path) -> Path:
    """Its interpreter; the packages are installed with what they need, wheels alone."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    wheels = [name for name in packages if isinstance(name, Path)]
    names = [name for name in packages if isinstance(name, str)]
    for options, given in ((["-c", ROOT / "constraints.txt"], names), (["--no-deps"], wheels)):
        if given:
            subprocess.run([*pip, *options, *given], check=True)
    return folder / "bin" / "python"


def needed(name: str, known: set[str]) -> set[str]:
    """A distribution and all that it needs here, without extras."""
    if name not in known:
        known.add(name)
        for line in distribution(name).requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(requirement.name.lower(), known)
    return known


def lend(names: set[str], python: Path) -> None:
    """Link the packages of this environment into another one."""
    (target,) = (python.parents[1] / "lib").glob("python3.*/site-packages")
    for name in names:
        owner = distribution(name)
        parts = {file.parts[0] for file in owner.files or () if file.parts[0] not in ("..", "__pycache__")}
        for part in parts:
            if not (target / part).exists():
                (target / part).symlink_to(Path(str(owner.locate_file(part))))


def tried(python: Path, folder: Path) -> None:
    folder.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FETA_"))}
    subprocess.run([python, "-I", Path(__file__).with_name("tryout.py").resolve()], cwd=folder, env=clean, check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        wheel, lab = wheel_of(ROOT, place / "feta"), wheel_of(ROOT / "src" / "feta_lab", place / "lab")
        if "--install" in sys.argv:
            python = environment(sys.executable, place / "env", wheel, *requirements())
        else:
            python = environment(sys.executable, place / "env", wheel)
            lend(needed("feta-prune", set()) - {"feta-prune"}, python)
        tried(python, place / "work")
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", lab], check=True)
        if "--install" not in sys.argv:
            lend(needed("feta-prune-lab", set()) - {"feta-prune", "feta-prune-lab"}, python)
        tried(python, place / "lab-work")
        for version in LATER:
            if later := interpreter(version):
                env = environment(later, place / version, wheel, "cyclopts", "rich")
                tried(env, place / f"{version}-work")


def requirements() -> list[str]:
    return [line for line in distribution("feta-prune").requires or () if "extra ==" not in line]


def interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or beside the one that runs this, as pyenv has them."""
    beside = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python3"))
    for found in filter(None, (shutil.which(f"python{version}"), *map(str, beside))):
        if subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:  # pyenv's stand-ins run nothing
            return found
    return None


if __name__ == "__main__":
    main()
