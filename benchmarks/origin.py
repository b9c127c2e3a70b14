"""Where records come from, in words: the machines and the commits of the code."""

from collections.abc import Iterable

from feta_lab.records import Record


def origin(records: Iterable[Record]) -> str:
    """`Measured on a GPU, code of commit 0123abc.`; a CPU is named with the threads that were used."""
    machines, commits = set[str](), dict[str, None]()
    for one in records:
        place = one["environment"]
        on_cpu = place["gpu"] == "none" or one.get("device") == "cpu"
        machines.add(f"{place['processor']}, threads: {place['threads']}" if on_cpu else place["gpu"])
        commits[place["commit"][:7]] = None
    return (
        f"Measured on {' or '.join(sorted(machines))}, code of commit{'s' * (len(commits) > 1)} {', '.join(commits)}."
    )
