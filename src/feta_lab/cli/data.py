"""feta data: list the data sets, check their files, download them."""

from pathlib import Path

from cyclopts import App

from feta.cli.console import download_bar, err, out, print_json, print_table
from feta.cli.options import DataDir, Json
from feta.errors import DataError

app = App(name="data", help="List, check and fetch the data sets.")


@app.command(name="list")
def list_(*, data_dir: DataDir = None, json: Json = False) -> None:
    """Show every data set and where it was found."""
    from feta_lab import data

    rows, report = [], {}
    for name in data.NAMES:
        place = data.find(name, data_dir)
        rows.append((name, place.origin, place.folder) if place else (name, "not found", "–"))
        looked = [str(looked) for looked in data.looked_in(name, data_dir)]
        report[name] = {"found": bool(place), "folder": str(place.folder) if place else None, "looked_in": looked}
    if json:
        print_json(report)
        return
    print_table("Data sets", ("name", "found through", "folder"), rows)
    if not all(row["found"] for row in report.values()):
        err().print("Get a missing one with: feta data fetch NAME")


@app.command
def check(name: str, /, *, data_dir: DataDir = None, json: Json = False) -> None:
    """Read every file of a data set and compare it with the official bytes.

    Args:
        name: A data set out of `feta data list`.
    """
    from feta_lab import data

    report = data.check(name, data_dir)
    if json:
        print_json(report)
    else:
        rows = [(Path(f["path"]).name, f["size"], f["problem"] or f["checksum"]) for f in report["files"]]
        print_table(f"{report['label']} in {report['folder']}", ("file", "bytes", "verdict"), rows)
    if not report["ok"]:
        raise DataError(f"data set '{name}' in {report['folder']} is not whole; see the table above")


@app.command
def fetch(name: str, /, *, data_dir: DataDir = None) -> None:
    """Download a data set from its own site, with checksums; a broken download continues where it stopped.

    Args:
        name: A data set out of `feta data list`.
    """
    from feta_lab import data

    with download_bar() as advance:
        folder = data.fetch(name, data_dir, progress=advance)
    out().print(f"{name}: {folder}")
