"""What `feta prune` is given: a network file, module:factory, or a model of transformers in a folder or a file.

A name is taken for a folder or a file if there is one, and otherwise for module:factory if it has that form.
"""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from feta.cli import factory, huggingface
from feta.cli.own import open_own
from feta.cli.own_data import check_options
from feta.cli.own_options import OwnOptions, StoreOptions
from feta.cli.places import FORM, check_places
from feta.cli.subject import Subject, open_subject
from feta.cli.typed import retyped
from feta.errors import ConfigError, FileError
from feta.files import sparse_file
from feta.files.atomic import check_writable, write_atomic
from feta.files.folder import write
from feta.files.huggingface import SMALL, weight_files
from feta.files.pickles import beside, is_pickle, refusal


@dataclass(frozen=True)
class Source:
    """A network by its name on the command line, with the options for a model of the user's own."""

    name: str
    options: OwnOptions
    command: str = "prune"  # what it is given to

    @property
    def path(self) -> Path:
        return Path(self.name)

    @property
    def is_folder(self) -> bool:
        return self.path.is_dir()

    @cached_property
    def is_described(self) -> bool:
        """Whether it is a file that says how its model of transformers is made."""
        return huggingface.is_described(self.path)

    @property
    def is_code(self) -> bool:
        """Whether it is a model in the user's own code."""
        return FORM.fullmatch(self.name) is not None and not self.path.exists()

    @property
    def is_own(self) -> bool:
        """Whether it is the user's own model."""
        return self.is_folder or self.is_code or self.is_described

    @property
    def weights(self) -> str:
        """Which weights are worked on, in words: a model in code comes with those that its factory gives it."""
        if self.is_code and self.options.weights is None:
            return f"as {self.name} gives them"
        return (self.options.weights or self.path).name

    def check(self, output: Path | None, records: Path | None, storing: StoreOptions) -> None:
        """Refuse what can be refused before any work."""
        self.check_given()
        if storing.dtype and output and self._as_folder(output) and storing.layout != "small":
            raise ConfigError(f"--dtype must go with --layout small for a folder, got {storing.layout or 'none'}")
        if self.is_own:
            check_options(self.options)
        if self.is_folder:
            huggingface.check_folder(self.path)
        if output and self._as_folder(output):
            huggingface.check_output(self.path, output)
            check_writable(output, folder=True)
            output = None
        check_places(output, records)

    def check_given(self) -> None:
        """Refuse pickles, and options that do not go with this network."""
        self._refuse_pickles()
        self._refuse_options()

    def open(self, data_dir: Path | None, **reading: Any) -> Subject:
        """The network with its data. `reading`: how many samples of the user's own data, their seed and batches."""
        if self.is_own:
            return open_own(self.name, self.options, **reading)
        return self.open_file(data_dir, self.options.data)

    def open_file(self, *data: Any, **how: Any) -> Subject:
        """The network in a file that describes it, see open_subject."""
        if not sparse_file.open_file(self.path).metadata.get("network"):
            cure = f"give it as the weights of your own model: {self._as_weights(self.path)}"
            if (self.path.parent / "config.json").is_file():
                cure = f"give the folder that it is in: {retyped(self.name, str(self.path.parent))}"
            raise FileError(f"{self.name} must describe its network, got weights alone, of a model in code; {cure}")
        return open_subject(self.path, *data, **how)

    def open_alone(self, samples: int, batch_size: int | None) -> Subject:
        """The network without the data that its file names; a model of the user's own with a few samples."""
        if self.is_own:
            return open_own(self.name, self.options, samples=samples, seed=0, batch_size=batch_size)
        return self.open_file(with_data=False)

    def bytes_before(self, model: nn.Module) -> int:
        """What the network took: its files, or its tensors where it came without any."""
        files = weight_files(self.path) if self.is_folder else [] if self.is_code else [self.path]
        if self.options.weights is not None:
            files = [self.options.weights]
        if files:
            return sum(path.stat().st_size for path in files)
        return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())

    def layout(self, output: Path | None, storing: StoreOptions) -> sparse_file.Layout:
        """How the weights are stored: in a folder as transformers has it, unless something else is asked for."""
        folder = self.is_folder if output is None else self._as_folder(output)
        return storing.layout or ("dense" if folder and storing.dtype is None else "small")

    def write(
        self,
        subject: Subject,
        model: nn.Module,
        pruning: Mapping[str, Any],
        accuracy: Any,
        output: Path | None,
        storing: StoreOptions,
    ) -> int:
        """Write the pruned model, if there is a place for it; its bytes, or those it would take."""
        if output is not None and self._as_folder(output):
            return write(model, output, source=self.path, pruning=pruning, **asdict(storing))
        layout = self.layout(output, storing)
        content = subject.encode(model, pruning, accuracy, layout=layout, dtype=storing.dtype)
        if output is not None:
            write_atomic(output, content)
        return len(content)

    def next_commands(self, output: Path | None) -> dict[str, str | None]:
        """What can be typed after this, with the file that was written."""
        saved = "FILE" if output is None else shlex.quote(str(output))
        options = asdict(self.options).items() if self.is_own else ()
        given = [
            f"--{name} {shlex.quote(str(one))}" for name, one in options if one is not None and name != "weights"
        ]
        network = f"{self.name} --weights {saved}" if self.is_code else saved
        return {
            "speed": " ".join(["feta speed", network, *given]),
            "retrain": None if self.is_own else f"feta retrain {saved}",
        }

    def loading(self, output: Path) -> str | None:
        """How the result is loaded in Python, where that depends on the user's own code."""
        if not self.is_own:
            return None
        if self.is_code:
            return f"import feta; {factory.recipe(self.name, output)}"
        if self._as_folder(output):
            if (output / SMALL).exists():
                return f"feta.load({str(output)!r}).model"
            name = huggingface.class_name(output)
            return f"transformers.{name}.from_pretrained({str(output)!r}) (--layout small makes a smaller folder)"
        return f"feta.load({str(output)!r}).model"

    def _as_folder(self, output: Path) -> bool:
        return self.is_folder and output.suffix != ".safetensors"

    def _refuse_options(self) -> None:
        """Options that would be of no use are refused: nobody should think that they were followed."""
        if self.options.weights is not None and not self.is_code:
            raise ConfigError(f"--weights must go with module:factory, got {self.name}, which has its own")
        given = [name for name, value in asdict(self.options).items() if value is not None and name != "data"]
        if given and not self.is_own:
            raise ConfigError(f"--{given[0]} must go with a model of your own, got {self.name}, which names its data")

    def _refuse_pickles(self) -> None:
        weights, data = self.options.weights, self.options.data
        if is_pickle(self.path):
            raise refusal("model", self.path, self._as_weights(beside(self.path)))
        if weights is not None and is_pickle(weights):
            then = retyped(str(weights), str(beside(weights)), option="--weights")
            raise refusal("--weights", weights, then)
        if data is not None and is_pickle(Path(data)):
            then = retyped(data, str(beside(Path(data))), option="--data")
            raise refusal("--data", Path(data), then, weights=False)

    def _as_weights(self, path: Path) -> str:
        """The command that was typed, for the user's own model with a file as its weights."""
        needs = [] if self.options.data is not None or "--input" in " ".join(sys.argv) else ["--data", "FILE"]
        return retyped(self.name, "my_model:make", "--weights", str(path), *needs)
