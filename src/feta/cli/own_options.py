"""Options of `feta prune`: for a model of the user's own its weights and data; for all how the result is stored."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from feta.cli.options import MaybeWhole

_STORED = Group("What is written", help="Without these a file loses nothing and is as small as it gets.", sort_key=3)
_GROUP = Group(
    "Your own model",
    help="For module:factory and Hugging Face folders. Labels among the arrays (y, labels, targets …) are left out.",
    sort_key=1,
)


def _option(text: str) -> Parameter:
    return Parameter(help=text)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True)
class OwnOptions:
    """What goes with a model of one's own; every field is an option of the command line."""

    weights: Annotated[
        Path | None, _option("safetensors file of its state dict; by default the weights the factory gives it.")
    ] = None
    data: Annotated[
        str | None,
        _option(
            "Its inputs: arrays (.npz, .npy, .safetensors; several become keyword arguments), a folder of "
            'images, or text (.jsonl with {"text": …} per line, .txt). For a file of `feta train`: the name of a '
            "data set."
        ),
    ] = None
    size: Annotated[str | None, _option("Images: height x width, such as 224x224; cut at the centre.")] = None
    channels: Annotated[
        Literal["1", "3"] | None, _option("Images: 3 for colour, 1 for grey; by default what the model takes.")
    ] = None
    scale: Annotated[
        float | None, _option("Arrays of bytes or whole numbers: divide by this; images of a folder by 255.")
    ] = None
    mean: Annotated[str | None, _option("Images: subtract this, one number or one per channel: 0.49,0.48,0.45.")] = (
        None
    )
    std: Annotated[str | None, _option("Images: divide by this after --mean, one number or one per channel.")] = None
    tokenizer: Annotated[
        Path | None, _option("Text: a tokenizer.json; by default the one in the model's folder or beside the text.")
    ] = None
    length: Annotated[MaybeWhole, _option("Text, or one row of tokens: tokens per sample; by default 512.")] = None

    @property
    def files(self) -> tuple[Path | str | None, ...]:
        """What is read, and so must not be written to; data may also be the name of a data set."""
        return self.weights, self.data, self.tokenizer


@Parameter(name="*", group=_STORED)
@dataclass(frozen=True)
class StoreOptions:
    """How the result is stored; the names are those of feta.save."""

    dtype: Annotated[
        Literal["float16", "bfloat16", "int8"] | None,
        _option("Round the weights to this, which loses accuracy; what it costs is said. int8: per output channel."),
    ] = None
    layout: Annotated[
        Literal["small", "compressed-tensors", "dense"] | None,
        _option(
            "small: entropy coded, what files have by default; compressed-tensors: values and bit masks; dense: "
            "plain, what folders have by default."
        ),
    ] = None
