"""Verbs for notebooks, data, speed and the site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from core.cli.app import Device, Precision, app, pairs
from core.errors import InputError


@app.command()
def notebook(
    path: Annotated[Path, typer.Argument(help="A notebook, .py or .ipynb.")],
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "-p",
            "--parameter",
            help="NAME VALUE, as papermill takes them, or NAME=VALUE; repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The executed copy; default: <name>.executed.ipynb here.")
    ] = None,
) -> None:
    """Execute a notebook with your own parameters; unknown names and bad values are refused before
    anything runs.

    \b
    Example:
      python -m core notebook notebooks/00_quickstart.py -p alpha 0.02 -p rounds 5
    """
    from core.report.notebooks import run_notebook

    target = out or Path(f"{path.stem}.executed.ipynb")
    run_notebook(path, pairs(parameter or []), target)
    print(f"executed: {target}")


@app.command("data")
def data_(
    action: Annotated[str, typer.Argument(help="list, or get to download.")] = "list",
    name: Annotated[str | None, typer.Argument(help="With get: the data set.")] = None,
) -> None:
    """Show which data sets are here and how to get the others; `data get NAME` downloads one.

    \b
    Examples:
      python -m core data
      python -m core data get pneumoniamnist
    """
    from core import data

    if action not in ("list", "get") or (action == "get") != (name is not None):
        raise InputError(
            "use `python -m core data` to list, or `python -m core data get NAME` to download"
        )
    if name is not None:
        print(f"ready: {data.get(name)}")
        return
    for info in data.available():
        print(f"{info.name:20}  {'here' if info.present else 'missing: ' + info.how_to_get}")


@app.command()
def bench(
    what: Annotated[
        str, typer.Argument(help="condensation, local-training, bilevel or run (whole runs).")
    ] = "condensation",
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """Measure speed beside a plain loop, in pairs in one run, and write a record.

    \b
    Example:
      python -m core bench condensation
      python -m core bench run
    """
    from core.experiments import bench as benches
    from core.federation import Runtime

    print(benches.report(benches.measure(what, Runtime.choose(device, precision))))


@app.command("gpu-check")
def gpu_check(
    minutes: Annotated[float, typer.Option(help="About how long it may take.")] = 3.0,
    out: Annotated[Path, typer.Option(help="The JSON file that is written.")] = Path(
        "gpu-check.json"
    ),
    device: Device = "cuda",
    precision: Precision = "auto",
) -> None:
    """Run every algorithm, benches and the beginning of a paper-budget run on a GPU; write one JSON.

    \b
    Example:
      python -m core gpu-check --out gpu-check.json
    """
    from core.experiments import gpu
    from core.federation import Runtime

    found = gpu.check(Runtime.choose(device, precision), minutes)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    failed = [name for name, one in found["algorithms"].items() if "error" in one]
    print(
        f"{len(found['algorithms'])} algorithms, {len(failed)} failed"
        f"{': ' + ', '.join(failed) if failed else ''}; written: {out}"
    )


@app.command()
def book(
    action: Annotated[str, typer.Argument(help="build, check, serve or shots.")] = "build",
    out: Annotated[Path, typer.Option(help="With shots: the folder for screenshots.")] = Path(
        "shots"
    ),
) -> None:
    """Build the site, check it, serve it on localhost, or take screenshots of every page.

    \b
    Examples:
      python -m core book build
      python -m core book serve
    """
    from core.report import site

    actions = {
        "build": site.build,
        "check": site.check,
        "serve": site.serve,
        "shots": lambda: site.screenshots(out),
    }
    if action not in actions:
        raise InputError(f"the book can be {', '.join(actions)}, not {action!r}")
    actions[action]()
