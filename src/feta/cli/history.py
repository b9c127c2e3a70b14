"""What a network file says of itself, in sentences. Anyone can write such a file: odd values are shown as is."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

ENDS = {
    "recovered": "until the accuracy was back",
    "saturated": "until it got no better",
    "epochs": "all that were allowed",
    "seconds": "until the time was up",
}


def history(about: Mapping[str, Any]) -> Iterator[str]:
    """How a network was made, as far as its file says."""
    if "specification" in about:
        data = f" trained on {about['data']}" if about.get("data") else ""
        known = (("preset", "preset {}"), ("seed", "seed {}"), ("epochs", "{} epochs"))
        how = ", ".join(text.format(about[key]) for key, text in known if about.get(key) is not None)
        yield f"Network: {about['specification']}{data}" + f" ({how})" * bool(how)
    done = _mapping(about.get("pruning"))
    if scores := _scores(about.get("accuracy")):
        before = _scores(done.get("dense_accuracy"))
        yield f"Accuracy: {scores}" + f"; before pruning {before}" * bool(before)
    if "method" in done:
        yield f"Pruned by {done['method']}: {_zeros(done)}{_options(done)}"
    if done.get("compensated"):
        yield f"Refitted behind pruned layers: {', '.join(map(str, _mapping(done['compensated'])))}"
    if shrunk := _mapping(done.get("shrunk")):
        yield f"Shrunk from {shrunk.get('from')}: {_share(shrunk.get('removed'))} of the multiply-adds gone"
    if refined := _mapping(done.get("refinement")):
        zeros = "zeros chosen anew" if refined.get("support") == "moving" else "zeros kept"
        yield f"Refined: {refined.get('steps')} steps towards the original's outputs ({refined.get('loss')}), {zeros}"
    if retrained := _mapping(done.get("retraining")):
        goal, ended = retrained.get("goal"), ENDS.get(str(retrained.get("stopped")), retrained.get("stopped"))
        aim = "" if goal is None else f" (goal {_percent(goal)} less {retrained.get('tolerance')} points)"
        yield f"Retrained: {_number(retrained.get('epochs'), '.2f')} epochs, {ended}{aim}"


def _zeros(done: Mapping[str, Any]) -> str:
    asked, layers = done.get("target_sparsity"), done.get("layers")
    if isinstance(asked, Mapping):
        return ", ".join(f"{_share(share)} zeros in {name}" for name, share in asked.items())
    where = f" over {', '.join(map(str, layers))}" if isinstance(layers, list) and len(layers) < 5 else ""
    form = f", pattern {done['pattern']}" if done.get("pattern") else ""
    return f"{_share(asked)} zeros{where}{form}"


def _options(done: Mapping[str, Any]) -> str:
    """Options that are not the method's default: the others say nothing of this file."""
    from feta.pruners import METHODS

    method = METHODS.get(str(done["method"]))
    usual = {} if method is None else {field.name: field.default for field in dataclasses.fields(method)}
    given = _mapping(done.get("options"))
    own = [f"{name} {value}" for name, value in given.items() if name not in usual or value != usual[name]]
    return f"; {', '.join(own)}" if own else ""


def _scores(accuracy: Any) -> str:
    return ", ".join(f"{_percent(value)} {part}" for part, value in _mapping(accuracy).items())


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _share(value: Any) -> str:
    return f"{_number(100 * value, '.4g')} %" if isinstance(value, float | int) else str(value)


def _percent(value: Any) -> str:
    return f"{_number(value, '.2f')} %"


def _number(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, float | int) else str(value)
