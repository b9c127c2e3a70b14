"""The command line as it was typed, with what was wrong in it put right: a cure that can be copied."""

import shlex
import sys
from pathlib import Path

from cyclopts import CoercionError, CycloptsError, CycloptsPanel, MissingArgumentError, UnusedCliTokensError

from feta.errors import listed

DATA = (".npz", ".npy", ".jsonl", ".txt")  # what files end in that are data and never a network
WITH_DATA = ("prune", "shrink", "export", "speed")  # commands of a network that take its data by an option


def retyped(old: str, *new: str, option: str = "") -> str:
    """The whole command with other words in the place of one, which may be an option's value.

    option: what the new words belong to, where the old one was not typed but set elsewhere.
    """
    words, found = list[str](), False
    for word in sys.argv[1:]:
        name, _, value = word.partition("=")
        here = not found and (word == old or (name.startswith("-") and value == old))
        words += [word] if not here else list(new) if word == old else [f"{name}={new[0]}", *new[1:]]
        found = found or here
    return shlex.join(["feta", *words, *([option, *new] if option and not found else [])])


def typed() -> str:
    return shlex.join(["feta", *sys.argv[1:]])


def panel(error: CycloptsError) -> object:
    """What is shown of words that no option takes: those of two networks are most likely a network and its data.

    An option of a method is --METHOD.OPTION; without the latter its type would be all that is told.
    """
    option = error.argument
    if isinstance(error, CoercionError | MissingArgumentError) and option and "dict" in str(option.hint):
        return CycloptsPanel(f"{option.name} must be followed by .OPTION, as in --feta.quality fast, got it without")
    words, unused = error.root_input_tokens or [], error.unused_tokens or []
    if isinstance(error, UnusedCliTokensError) and words[:1] == ["--install-completion"]:
        cure = f"write feta --install-completion --shell {shlex.quote(unused[0])}"
        return CycloptsPanel(f"the shell must be named by --shell, got {listed(unused)}; {cure}")
    if not isinstance(error, UnusedCliTokensError) or words[:1] not in [[name] for name in WITH_DATA]:
        return CycloptsPanel(error)
    cure = "its data is given as --data FILE, its weights as --weights FILE"
    pair = [*words[1:2], *unused]
    data = [word for word in pair if Path(word).suffix in DATA]
    if len(pair) == 2 and len(data) == 1:
        (network,) = (word for word in pair if word not in data)
        cure = f"give its data as --data: feta {words[0]} {shlex.quote(network)} --data {shlex.quote(data[0])}"
    return CycloptsPanel(f"{words[0]} must be given one network, got {listed(unused)} besides; {cure}")
