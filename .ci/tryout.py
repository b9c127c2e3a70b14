"""What a stranger does first with feta installed, in an empty folder; whatever goes wrong is a traceback.

Without torch only what does without it; with the laboratory its commands too.
"""

import importlib.util
import platform
import subprocess
import sys
import warnings
from pathlib import Path

import feta

MODEL = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 5))
"""


def command(line: str, code: int = 0) -> str:
    """What a command prints, on either stream; its exit code must be as expected."""
    script = Path(sys.executable).with_name("feta")
    ended = subprocess.run([script, *line.split()], capture_output=True, text=True)
    assert ended.returncode == code, (line, ended.returncode, ended.stdout, ended.stderr)
    return ended.stdout + ended.stderr


def without_torch() -> None:
    home = Path(feta.__file__).parent
    assert home.parent.name in ("site-packages", "dist-packages"), home  # not a clone that happens to be near
    assert (home / "py.typed").is_file()
    assert command("--version").strip() == feta.__version__
    assert "--install-completion" in command("--help")
    assert "--sparsity" in command("prune --help")
    assert "cannot read none.safetensors" in command("prune none.safetensors", code=1)


def with_torch() -> None:
    import torch

    Path("my_model.py").write_text(MODEL)
    sys.path.insert(0, str(Path.cwd()))
    model = importlib.import_module("my_model").make()
    rows = torch.randn(600, 20, generator=torch.Generator().manual_seed(1))
    result = feta.prune(model, rows, 0.8, seconds=2)
    counted = sum(int((result.model[i].weight != 0).sum()) for i in (0, 2))
    assert counted == round(0.2 * 2000), counted
    feta.save(result.model, "one.safetensors")
    assert torch.equal(feta.load_into(model, "one.safetensors")[0].weight, result.model[0].weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba may be missing, and then says so
        feta.sparsify(result.model, rows[:1])
    import numpy as np

    np.save("rows.npy", rows.numpy())
    assert "written to two.safetensors" in command(
        "prune my_model:make --data rows.npy --effort fast -o two.safetensors"
    )
    assert "80 %" not in command("info two.safetensors")
    assert "alps" in command("methods")


def main() -> None:
    without_torch()
    torch = "no torch"
    if importlib.util.find_spec("torch") is not None:
        with_torch()
        torch = f"torch {sys.modules['torch'].__version__}"
    if importlib.util.find_spec("feta_lab") is None:
        assert "pip install ./src/feta_lab" in command("demo", code=1)
    else:
        assert "mnist-mini" in command("data list")
        command("train dense-mnist --data mnist-mini --epochs 1 -o net.safetensors")
        command("prune net.safetensors --method threshold -o small.safetensors")
        command("certify small.safetensors net.safetensors", code=1)
    lab = "with" if importlib.util.find_spec("feta_lab") else "without"
    sys.stdout.write(
        f"feta {feta.__version__} works: Python {platform.python_version()}, {torch}, {lab} the laboratory\n"
    )


if __name__ == "__main__":
    main()
