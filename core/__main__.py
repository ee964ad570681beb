"""The command line: `python -m core …`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import InputError, brief, one_line, unknown

app = typer.Typer(
    help="Federated learning by condensation and distillation: run experiments, see the papers' "
    "tables, build the book.\n\nFirst steps:\n\n  python -m core data\n\n"
    "  python -m core run --algorithm fedavg --dataset digits --profile quick",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Profile = Annotated[
    str,
    typer.Option(
        help="How much is computed: quick (seconds), laptop (a minute or two), "
        "converged (hours; what decides), paper (the paper's own budget)."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Precision = Annotated[str, typer.Option(help="auto, float32 or bfloat16 (convolutions only).")]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for records and checkpoints; default: the book's results."),
]


def _pairs(given: list[str]) -> dict[str, Any]:
    """`key=value` texts as a mapping."""
    pairs = {}
    for text in given:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise InputError(f"give settings as NAME=VALUE, not {brief(text)}")
        if key in pairs:
            raise InputError(f"{brief(key)} is set twice")
        pairs[key] = _value(key, value)
    return pairs


def _value(key: str, text: str) -> Any:
    """A number, a truth value or a list where the text is one in JSON; else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
    except (ValueError, RecursionError):  # Python's bounds on digits and on nesting
        raise InputError(f"the value of {brief(key)} is too long: {brief(text)}") from None


def _alone(mode: str, given: dict[str, Any]) -> None:
    """Raise InputError for an option that would have no effect beside `mode`."""
    if named := [name for name, value in given.items() if value not in (None, [])]:
        raise InputError(f"{mode} says what to run; leave {', '.join(named)} out")


def _known(profile: str) -> str:
    from core.experiments import PROFILES

    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    return profile


def _as_asked(record: Any, path: Path, asked: dict[str, str]) -> None:
    """Raise InputError where a record from before was measured in another way than is asked for."""
    for name, value in asked.items():
        was = record.environment.get(name)
        if value != "auto" and was not in (None, value.split(":")[0]):
            raise InputError(
                f"this run was measured before with {name} {was}, not {value}; give another folder as "
                f"--out, or delete {path}"
            )


def _partition(partition: str | None, alpha: float | None) -> dict[str, Any] | None:
    """The partition that the options name."""
    if alpha is not None and partition not in (None, "dirichlet"):
        raise InputError(f"--alpha belongs to the dirichlet partition, not to {partition!r}")
    if alpha is not None:
        return {"name": "dirichlet", "alpha": alpha}
    if partition is None:
        return None
    if partition.endswith(".json"):
        return {"name": "file", "file": partition}
    name, *rest = partition.split(",")
    return {"name": name, **_pairs(rest)}


def _summary(record: Any, path: Path) -> str:
    """One header and one row that say what came out."""
    up, down = (sum(record.bytes[way].values()) / 2**20 for way in ("up", "down"))
    e = record.experiment
    spread = (
        f" ± {100 * record.metrics['accuracy_std']:.2f}" if "accuracy_std" in record.metrics else ""
    )
    row = {
        "algorithm": e.algorithm,
        "data set": e.dataset,
        "profile": e.profile,
        "seed": str(e.seed),
        "rounds": str(len(record.rounds)),
        "accuracy %": f"{100 * record.metrics['accuracy']:.2f}{spread}",
        "MB up": f"{up:.2f}",
        "MB down": f"{down:.2f}",
        "seconds": f"{record.seconds:.1f}",
    }
    widths = [max(len(key), len(value)) for key, value in row.items()]
    lines = (
        "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip()
        for texts in (row.keys(), row.values())
    )
    return "\n".join([*lines, f"record: {path}"])


def _in_table(record: Any, cell: Any) -> str:
    """What a run says of each metric of its cell, in the unit of print, beside what is printed."""
    from core.report.tables import number
    from core.report.verdict import measured

    lines = []
    for one in cell.siblings():
        value = number(measured(record, one), None, one.unit) or "not measured"
        printed = f", printed {one.published.text}" if one.published else ""
        lines.append(f"{one.metric} ({one.unit}): {value}{printed}")
    return "\n".join(lines)


@app.command()
def run(
    algorithm: Annotated[
        str | None, typer.Option(help="fedavg, fedprox, fedavgm, centralized, standalone, …")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="A name of `python -m core data`.")] = None,
    model: Annotated[str | None, typer.Option(help="convnet, lenet, resnet8 or resnet18.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Dirichlet concentration; small is heterogeneous.")
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="iid, natural, pathological,classes_per_client=5, or a JSON file of client indices."
        ),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    active: Annotated[int | None, typer.Option(help="Clients per round; default: all.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="Seed; may be given several times.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A hyper-parameter, NAME=VALUE; repeatable.")
    ] = None,
    model_set: Annotated[
        list[str] | None, typer.Option(help="A model option, NAME=VALUE; repeatable.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option(help="printed (the paper) or released (the authors' code).")
    ] = None,
    cell: Annotated[
        str | None, typer.Option(help="Run a table's cell: PAPER/TABLE/ROW/COLUMN.")
    ] = None,
    pending: Annotated[
        bool, typer.Option("--pending", help="Run what the tables still need, in order.")
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(help="With --pending: stop cleanly before so many minutes; default: 60."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="With --pending: workers, local:2 (processes here), ray or ray://HOST:PORT."
        ),
    ] = None,
    gpus_per_run: Annotated[
        float, typer.Option(help="With --on ray: the share of a GPU that a run asks for.")
    ] = 0.0,
    shard: Annotated[
        str | None, typer.Option(help="With --pending: one part of the queue, 3/16.")
    ] = None,
    profile: Profile = "laptop",
    out: Out = None,
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """Run an experiment, a cell of a table, or the queue. An interrupted run resumes when it is
    called again.

    \b
    Examples:
      python -m core run --algorithm fedavg --dataset digits --alpha 0.1 --profile quick
      python -m core run --algorithm fedprox --dataset digits --set mu=0.1 --seed 0 --seed 1
      python -m core run --cell fedvck/11/FedAvg/cifar10-0.05 --profile laptop
      python -m core run --pending --profile paper --minutes 9 --out runs
      python -m core run --pending --profile paper --on local:2
      python -m core run --pending --profile paper --on ray --gpus-per-run 0.25 --out /shared/runs
    """
    from core.experiments import TableSpec, queue
    from core.experiments.profiles import apply
    from core.federation import Runtime

    profile = _known(profile)
    single = {
        "--algorithm": algorithm,
        "--dataset": dataset,
        "--model": model,
        "--alpha": alpha,
        "--partition": partition,
        "--clients": clients,
        "--active": active,
        "--rounds": rounds,
        "--set": set_,
        "--model-set": model_set,
        "--variant": variant,
    }
    if pending:
        _alone("--pending", {"--cell": cell, **single, "--seed": seed})
        minutes = 60.0 if minutes is None else minutes
        if not minutes > 0:
            raise InputError(f"--minutes must be more than 0, not {minutes:g}")
        if on is None:
            _run_pending(profile, minutes, out, Runtime.choose(device, precision), shard)
        else:
            _sweep(on, gpus_per_run, profile, minutes, out, shard, device, precision)
        return
    for name, value in (("--minutes", minutes), ("--on", on), ("--shard", shard)):
        if value is not None:
            raise InputError(f"{name} belongs to --pending")
    runtime = Runtime.choose(device, precision)
    found = None
    if cell is not None:
        _alone("--cell", single)
        found = TableSpec.find_cell(cell, profile)
        experiments = found.chosen(seed)
        paper = found.paper
    else:
        if not algorithm or (not dataset and profile != "quick"):
            raise InputError("say what to run: --algorithm and --dataset, or --cell, or --pending")
        stated = {
            "algorithm": algorithm,
            "dataset": dataset,
            "model": model,
            "partition": _partition(partition, alpha),
            "clients": clients,
            "active": active,
            "rounds": rounds,
            "variant": variant,
            "settings": _pairs(set_ or []),
            "model_options": _pairs(model_set or []),
        }
        given = {key: value for key, value in stated.items() if value not in (None, {})}
        experiments, paper = [apply(profile, given | {"seed": one}) for one in seed or [0]], "adhoc"
    for experiment in experiments:
        record, path, computed = queue.measure(
            experiment, paper, out=out, runtime=runtime, progress=True
        )
        if not computed:
            _as_asked(record, path, {"precision": precision, "device": device})
        print(
            _summary(record, path)
            + ("" if computed else "  (measured before; delete it to measure again)")
        )
        if found:
            print(_in_table(record, found))


def _run_pending(
    profile: str, minutes: float, out: Path | None, runtime: Any, shard: str | None
) -> None:
    from core.experiments import queue

    items = queue.pending(profile)
    if shard:
        items = [item for item in items if queue.in_shard(item.experiment, shard)]
    away = [item for item in items if item.missing]
    if away:
        print(
            f"{len(away)} of {len(items)} pending runs cannot run here, first: {away[0].missing}",
            file=sys.stderr,
        )
    complete = 0
    for item, outcome in queue.run_pending(profile, minutes, out, runtime, True, shard):
        if isinstance(outcome, InputError):
            print(f"failed: {item.cells[0]}: {outcome}", file=sys.stderr)
        elif outcome.status == "complete":
            complete += 1
            print(
                f"{item.cells[0]} seed {item.experiment.seed}: accuracy "
                f"{100 * outcome.metrics['accuracy']:.2f}%"
            )
        else:
            print(
                f"{item.cells[0]} seed {item.experiment.seed}: {len(outcome.rounds)} of "
                f"{item.experiment.rounds} "
                "rounds, goes on next time"
            )
    print(f"{complete} runs completed, {len(items) - len(away) - complete} still pending here")


def _sweep(
    on: str,
    gpus: float,
    profile: str,
    minutes: float,
    out: Path | None,
    shard: str | None,
    device: str,
    precision: str,
) -> None:
    import time
    from contextlib import closing

    from core.experiments import queue
    from core.experiments.sweep import display, sweep, workers

    until, shown = time.time() + 60 * minutes, display.Display()
    items = queue.runnable(profile, shard)
    out = out and out.absolute()
    table: list = []
    with closing(sweep(items, workers(on, gpus), out, device, precision, until)) as progress:
        for table in progress:
            shown.show(table)
    print(display.summary(table) or "nothing is pending here")


@app.command()
def table(
    name: Annotated[
        str,
        typer.Argument(help="PAPER/TABLE, for example fedvck/3; a paper alone lists its tables."),
    ],
    profile: Annotated[
        str | None, typer.Option(help="quick, laptop or paper; default: the best one measured.")
    ] = None,
) -> None:
    """Print a table: published number, measured mean and deviation, seeds, difference, verdict.

    \b
    Examples:
      python -m core table fedvck/11
      python -m core table reference/1 --profile laptop
    """
    from core.experiments import TableSpec
    from core.report import table_frame

    if profile is not None:
        _known(profile)
    paper, _, number = name.partition("/")
    if not number:
        for spec in TableSpec.of_paper(paper):
            print(f"{spec.paper}/{spec.table}  {spec.title}")
        return
    print(TableSpec.find(paper, number).title)
    columns = [
        "row",
        "column",
        "metric",
        "printed",
        "measured",
        "std",
        "seeds",
        "difference",
        "verdict",
    ]
    print(
        table_frame(paper, number, profile)[columns].to_string(
            index=False, na_rep="-", float_format="%.2f"
        )
    )


@app.command()
def pending(
    profile: Profile = "laptop",
    limit: Annotated[int, typer.Option(help="Show so many runs.")] = 20,
) -> None:
    """List the runs that the tables still need, most urgent first.

    \b
    Example:
      python -m core pending --profile paper --limit 50
    """
    from core.experiments import queue

    items = queue.pending(profile)
    for item in items[:limit]:
        more = f" and {len(item.cells) - 1} more cells" if len(item.cells) > 1 else ""
        print(
            f"{item.experiment.id}  {item.cells[0]} seed {item.experiment.seed}{more}"
            + (f"  ({item.missing})" if item.missing else "")
        )
    print(
        f"{len(items)} runs pending at the {profile} profile, "
        f"{sum(not item.missing for item in items)} can run here"
    )


@app.command()
def explain(
    cell: Annotated[str, typer.Argument(help="A table's cell: PAPER/TABLE/ROW/COLUMN.")],
    profile: Profile = "laptop",
) -> None:
    """Print every value behind a cell, the place that set it, and what it replaced there.

    \b
    Places are files below book/tables with the keys that lead to the value. A later one prevails:
      default of the algorithm < its released values < a table's defaults < column < row
      < stand-in < profiles.yaml < the table's own profiles < the settings of the row again

    \b
    Example:
      python -m core explain fedvck/11/FedVCK/cifar10-0.05 --profile laptop
    """
    from core.experiments import TableSpec
    from core.experiments.explain import explanation

    print(explanation(TableSpec.find_cell(cell, profile)))


@app.command()
def check(
    cell: Annotated[str, typer.Argument(help="A table's cell: PAPER/TABLE/ROW/COLUMN[/METRIC].")],
    profile: Profile = "laptop",
    seed: Annotated[
        list[int] | None, typer.Option(help="Seed; may be given several times; default: all.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Scratch folder for your records.")] = Path("checked"),
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """Run a cell anew and print it beside the paper's number and the book's; the book's records
    stay as they are.

    An interrupted check goes on when it is called again.

    \b
    Example:
      python -m core check fedmk/1/FedAvg/mnist-0.5 --profile paper --seed 0
    """
    from core.experiments import TableSpec, queue, records
    from core.federation import Runtime
    from core.report.cellcheck import comparison

    found, runtime = TableSpec.find_cell(cell, profile), Runtime.choose(device, precision)
    runs = found.chosen(seed)
    yours = [queue.measure_anew(one, found.paper, out, runtime) for one in runs]
    known = records()
    print(comparison(found, [known[one.id] for one in runs if one.id in known], yours))


@app.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(help="The folder that was given to run as --out.")],
) -> None:
    """Take complete records from a folder, for example one carried from a GPU machine, into the
    book's results.

    \b
    Example:
      python -m core import runs
    """
    from core.experiments import queue

    done = queue.import_records(folder)
    print(f"{done.new} records imported, {done.known} known before, {done.unfinished} not finished")


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
    run_notebook(path, _pairs(parameter or []), target)
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


def _joined(arguments: list[str]) -> list[str]:
    """`-p NAME VALUE` as `-p NAME=VALUE`: an option of Typer takes one value, papermill's takes
    two.
    """
    joined: list[str] = []
    for text in arguments:
        if joined[-2:-1] in (["-p"], ["--parameter"]) and "=" not in joined[-1]:
            joined[-1] += f"={text}"
        else:
            joined.append(text)
    return joined


def _failed(error: InputError, hint: str = "") -> int:
    """Print one line of under 300 characters, and hand on the status of a mistake."""
    print(f"error: {one_line(error, 285 - len(hint))}{hint}", file=sys.stderr)
    return 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command line. A mistake gives one clear line and status 2, an interruption status
    130.
    """
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show ± shows a question mark
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        status = int(
            app(_joined(arguments or sys.argv[1:]) or ["--help"], standalone_mode=False) or 0
        )
        sys.stdout.flush()
    except InputError as error:
        return _failed(error)
    except BrokenPipeError:  # who reads has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(
            f"error: {error.strerror or error}{f': {error.filename}' if error.filename else ''}",
            file=sys.stderr,
        )
        return 1
    except Exception as error:
        # Typer's usage errors: some versions take the class from click, others carry their own copy
        # of it
        if not hasattr(error, "format_message"):
            raise
        return _failed(InputError(error.format_message()), " (see python -m core --help)")
    if status == 130:
        print("interrupted; the same command goes on where it stopped", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
