"""What to try next, derived from a run's report: most helpful first, each with the argument that does it.

Of a run of the command line it is what can be typed there: `typed` in the report has the commands that come next.
What is code stands between backticks.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from feta.pages.words import percent, some

# PruneReport.to_dict(), with `accuracy` where there are labels, and of the command line `typed`: what to do next
Found = Mapping[str, Any]
CURES = {
    "damped": "some inputs say the same or nothing: more, and more varied, samples help",
    "not-converged": "the solver was stopped by its limit of iterations: a lower sparsity, or another method, helps",
    "infeasible": "the method's constraint cannot be met: a lower sparsity, or another method, helps",
    "few-rows": "too little data for the layer's inputs: more samples help",
    "fell-back": "the method did worse than thresholding on held-out samples, so that was taken: more samples, or a "
    "lower sparsity for the layer, help",
    "poor": "the layer lost too much: prune it less, or leave it out",
}
NOTHING, MUCH = 0.005, 0.03  # shares of answers lost: hardly any, and too many
ENOUGH = 40  # held-out samples that tell something of the answers
PLENTY = 300  # in which no change means fewer than 1 % of all, at a confidence of 95 %
TIME_RAN_OUT = "for want of time|no time was left"  # in the message of a stage (engine.recipe)
LARGE = 0.2  # a share of all parameters that is worth a word
SPEED = (
    "See what it saves on your machine: `feta speed FILE` (for a model of your own `feta speed module:factory "
    "--weights FILE`), or `feta.sparsify(result.model, example)`."
)


def advice(found: Found) -> list[str]:
    """Sentences; there is always one."""
    lost, share = answers_lost(found), found["target_sparsity"]
    unhurt = lost is not None and lost <= NOTHING
    steps = [*_data(found), *(_layers(found) if not unhurt else [])]
    less = _less(found, share, lost) if lost is not None and lost > MUCH else []
    effort = _effort(found) if not unhurt else []
    # The default effort brings more back than fewer zeros do; a longer one does not.
    steps += [*less, *effort] if found["effort"] in ("default", "best") else [*effort, *less]
    if unhurt and not steps and isinstance(share, float) and found["pattern"] is None:
        steps.append(_more(found, share))
    typed = found.get("typed")
    return [*steps, *_left(found), f"See what it saves on your machine: {_code(typed['speed'])}." if typed else SPEED]


def answers_lost(found: Found) -> float | None:
    """The share of right answers that pruning cost, or of answers that it changed; None: not known."""
    if found.get("accuracy"):
        before, after = (float(found["accuracy"][name]["test"]) for name in ("dense", "pruned"))
        return max(0.0, (before - after) / max(before, 1e-9))
    held = found.get("held") or {"agreement": None}
    known = held["agreement"] is not None and held["samples"] >= ENOUGH
    return 1 - float(held["agreement"]) if known else None


def lower(share: float) -> float:
    """The sparsity that keeps twice as many weights or, where that were hardly any zeros, takes half as many."""
    return round(max(1 - 2 * (1 - share), share / 2), 4)


def _names(layers: Sequence[Found]) -> str:
    """Names in a sentence, where a number alone would be taken for a count."""
    names = [layer["name"] or "the layer" for layer in layers]
    return some([f"layer {name}" if name.isdecimal() else name.replace("`", "'") for name in names])


def _code(text: str) -> str:
    """Between backticks, of which somebody else's names must add none."""
    return f"`{text.replace('`', chr(39))}`"


def _less(found: Found, share: float | Found, lost: float) -> list[str]:
    if not isinstance(share, float) or share == 0 or found["pattern"] is not None:
        return []
    keeps = "keeps twice as many weights" if lower(share) > share / 2 else "takes half as many weights"
    said = f"Prune less: {percent(lost, 1)} of the answers were lost at {share:g}"
    return [f"{said}; a sparsity of {lower(share):g} {keeps}."]


def _more(found: Found, share: float) -> str:
    """To prune more where much says that nothing was lost; else how that would be known."""
    known, samples = found.get("accuracy"), (found["held"] or {"samples": 0})["samples"]
    if known or samples >= PLENTY:
        check = "" if known else "; measure it on data that the network never saw"
        return f"Prune more: hardly an answer was lost, so a sparsity of {(1 + share) / 2:g} may do as well{check}."
    return (
        f"Measure the accuracy on data that the network never saw before you prune more: {samples} held-out samples "
        "with the same answers say too little."
    )


def _data(found: Found) -> list[str]:
    few = [layer for layer in found["layers"] if layer["status"] == "few-rows"]
    if few:
        told = [
            int(number)
            for layer in few
            for number in re.findall(r"(\d+) (?:different )?(?:samples )?would do", layer["message"])
        ]
        need = f"about {max(told):,} samples" if told else "more samples"
        return [f"Give {need}: there are too few for {_names(few)}."]
    if found.get("held") is None and all(layer["relative_error"] is None for layer in found["layers"]):
        return [
            "Give data, a few hundred unlabelled inputs: with it the layers are fitted, and the loss is measured."
        ]
    return []


def _layers(found: Found) -> list[str]:
    bad = [layer for layer in found["layers"] if layer["status"] in ("fell-back", "poor", "infeasible")]
    if not bad or found["pattern"] is not None:
        return []
    most = max(layer["sparsity"] for layer in bad)
    wanted = {layer["name"]: round(lower(layer["sparsity"]), 2) for layer in bad[:3]}
    given = found["target_sparsity"]
    shares = wanted | {name: one for name, one in _shares(given).items() if name not in wanted}
    argument = f"sparsity={shares}"
    if found.get("typed"):
        argument = f"--sparsity {shlex.quote(','.join(f'{name}={one:g}' for name, one in shares.items()))}"
    return [f"Prune {_names(bad)} less, where up to {percent(most, 1)} zeros were too many: {_code(argument)}."]


def _shares(given: float | Found) -> Found:
    return given if isinstance(given, Mapping) else {"*": given}


def _effort(found: Found) -> list[str]:
    if found.get("held") is None:
        return []
    if any(re.search(TIME_RAN_OUT, stage["message"]) for stage in found["stages"]):
        return ["Give it more seconds: the fits of the whole network were cut short."]
    typed = found.get("typed")
    if found["effort"] is None:
        how = " (`--effort default`)" if typed else ""
        return [f"Take the default effort{how}, or leave out the method: it fits the whole network after its layers."]
    if found.get("judged_by") in (0, 1):  # a longer effort could not fit more either (engine.recipe)
        return []
    if found["effort"] == "fast":
        how = " (`--effort default`)" if typed else ""
        time = "up to a minute longer or some ten times as long"
        return [f"Take the default effort{how}: it fits the whole network too, {time}."]
    if found["effort"] == "default" and any(stage["distance"] is not None for stage in found["stages"][1:]):
        how = " (`--effort best`)" if typed else ""
        return [f"Take the best effort{how}: it goes on for as long as held-out samples say that it helps."]
    retrain = (typed or {}).get("retrain") or "feta.retrain"
    return [f"With labels, {_code(retrain)} goes on from here with the zeros held."]


def _left(found: Found) -> list[str]:
    total = (found.get("before") or {}).get("parameters") or 0
    unchosen = [entry for entry in found["skipped"] if entry["reason"] == "it was not chosen"]
    share = sum(entry["weights"] for entry in unchosen) / total if total else 0.0
    if share < LARGE:
        return []
    return [f"Choose more layers: {percent(share, 1)} of the parameters are in layers that were not chosen."]
