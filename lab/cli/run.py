"""`run`: an experiment, a cell of a table, or the queue."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from typer import Option

from core.checks import check_number
from core.errors import InputError, listed
from core.files import make_folder
from lab.cli.app import Device, Only, Precision, Profile, Seeds, command, pairs, value_of

Text: TypeAlias = str | None
Number: TypeAlias = float | None
Count: TypeAlias = int | None
Several: TypeAlias = list[str] | None
PARTITION = """iid, natural, dirichlet,min_size=10 (with --alpha), pathological,classes_per_client=5, or a
JSON file (a path, or below the data folder) with {"client_idx": [[samples of client 0], …]}."""
MINUTES = """With --pending: begin no round, and no shadow run of an attack, that would not end within so many
minutes (the first, of which no time is known, is begun); default: 60."""
SHARE = "With --on ray: the share of a GPU that a run asks for; default: a whole one, where there are any."

#: the options of one experiment
SINGLE = (
    *("algorithm", "dataset", "model", "alpha", "partition", "clients", "active", "rounds"),
    *("set_", "model_set", "variant"),
)
#: the options of the queue
QUEUE = ("minutes", "on", "gpus_per_run", "shard", "only")


@command()
def run(
    context: typer.Context,
    algorithm: Annotated[Text, Option(help="fedvck, fedavg, …: see `fedcon algorithms`.")] = None,
    dataset: Annotated[Text, Option(help="A name of `fedcon data`; at quick: digits.")] = None,
    model: Annotated[Text, Option(help="convnet, lenet, resnet8, resnet18; unet (pixels).")] = None,
    alpha: Annotated[Number, Option(help="Dirichlet concentration; default: iid.")] = None,
    partition: Annotated[Text, Option(help=PARTITION)] = None,
    clients: Annotated[Count, Option(help="Number of clients.")] = None,
    active: Annotated[Count, Option(help="Clients per round; default: all.")] = None,
    rounds: Annotated[Count, Option(help="Communication rounds.")] = None,
    seed: Seeds = None,
    set_: Annotated[
        Several, Option("--set", help="A setting, NAME=VALUE or NAME=VALUE,…; repeatable.")
    ] = None,
    model_set: Annotated[Several, Option(help="A model option, NAME=VALUE; repeatable.")] = None,
    variant: Annotated[Text, Option(help="printed, or released (the authors' code).")] = None,
    cell: Annotated[Text, Option(help="A table's cell: PAPER/TABLE/ROW/COLUMN.")] = None,
    pending: Annotated[bool, Option("--pending", help="What the tables still need.")] = False,
    minutes: Annotated[Number, Option(help=MINUTES)] = None,
    on: Annotated[Text, Option(help="Workers: local:2, ray or ray://HOST:PORT.")] = None,
    gpus_per_run: Annotated[Number, Option(help=SHARE)] = None,
    shard: Annotated[Text, Option(help="With --pending: a part of the queue, 3/16.")] = None,
    only: Only = None,
    profile: Profile = "laptop",
    out: Annotated[Path | None, Option(help="Folder for records; default: the book's.")] = None,
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """Run an experiment, a cell of a table, or the queue. An interrupted run resumes when it is
    called again. Where a run of the queue failed, the status is 1.

    \b
    Examples:
      fedcon run --algorithm fedavg --profile quick --rounds 8 --set lr=0.1 --set local_steps=10
      fedcon run --algorithm fedprox --dataset digits --alpha 0.1 --set mu=0.1 --seed 0 --seed 1
      fedcon run --cell fedvck/11/FedAvg/cifar10-0.05 --profile laptop
      fedcon run --pending --profile paper --minutes 9 --out runs
      fedcon run --pending --profile paper --on ray --gpus-per-run 0.25 --out /shared/runs
    """
    from lab import TableSpec

    single, queued = ({name: context.params[name] for name in part} for part in (SINGLE, QUEUE))
    how = {"device": device, "precision": precision}
    if pending:
        _alone("--pending", {"cell": cell, **single, "seed": seed})
        _run_queue(profile, out, how, **queued)
        return
    if named := [option(name) for name, value in queued.items() if value is not None]:
        raise InputError(f"{named[0]} belongs to --pending")
    if cell is None:
        _measure(stated_runs(profile, single, seed), out, how)
    else:
        _alone("--cell", single)
        table_cell = TableSpec.find_cell(cell, profile)
        _measure(table_cell.experiments_of(seed, any_seed=out is not None), out, how, table_cell)


def option(name: str) -> str:
    """Return the spelling of an option of this name."""
    return "--" + name.strip("_").replace("_", "-")


def _alone(mode: str, given: dict[str, Any]) -> None:
    """Raise InputError for an option that would have no effect beside `mode`."""
    if named := [option(name) for name, value in given.items() if value not in (None, [], ())]:
        raise InputError(f"{mode} says what to run; leave {', '.join(named)} out")


def _partition(partition: str | None, alpha: float | None) -> dict[str, Any] | None:
    """The partition that the options name."""
    if partition is None and alpha is None:
        return None
    name, *rest = (partition or "dirichlet").split(",")
    if name.endswith(".json") and not rest:
        name, rest = "file", [f"file={name}"]
    options = pairs([*rest, *([] if alpha is None else [f"alpha={alpha!r}"])])
    file = options.get("file")
    if isinstance(file, str) and Path(file).is_file():  # else it is below the data folder
        options["file"] = str(Path(file).absolute())
    return {"name": name, **options}


def _settings(given: list[str]) -> list[dict[str, Any]]:
    """Settings of `--set`, with each combination of values that commas separate."""
    values = {
        name: [value_of(name, part.strip()) for part in value.split(",")]
        if isinstance(value, str)
        else [value]
        for name, value in pairs(given).items()
    }
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]


def stated_runs(profile: str, single: dict[str, Any], seeds: list[int] | None) -> list[Any]:
    """The experiments that the options state, for each setting and seed. Warns where the authors' code has no
    values of its own, and where a method that communicates once does nothing in further rounds.
    """
    from core.algorithms import find, switches
    from core.data import load
    from core.data.partition import natural
    from core.families.one_shot import OneShot
    from lab.profiles import apply

    stated = {name: value for name, value in single.items() if value is not None}
    if not stated.get("algorithm"):
        raise InputError("say what to run: --algorithm and --dataset, or --cell, or --pending")
    sweep = _settings(stated.pop("set_", []))
    options = {
        "model_options": pairs(stated.pop("model_set", [])),
        "partition": _partition(stated.pop("partition", None), stated.pop("alpha", None)),
    }
    stated |= {name: value for name, value in options.items() if value}
    if options["partition"] == {"name": "natural"} and "dataset" in stated:
        # as many clients as there are institutions
        stated.setdefault("clients", len(natural(load(stated["dataset"]).train.centre)))
    runs = [
        apply(profile, stated | ({"settings": settings} if settings else {}) | {"seed": seed})
        for settings in sweep
        for seed in dict.fromkeys(seeds or [0])
    ]
    for run in runs:  # a value that is wrong is said before the first of them begins
        run.new_algorithm()
    name = runs[0].algorithm
    if runs[0].variant == "released" and not switches(name):
        warnings.warn(f"{name} has no released values that differ: printed ones run", stacklevel=2)
    if issubclass(find(name), OneShot) and runs[0].rounds > 1:
        warnings.warn(f"{name} rests after the first round: --rounds 1 is enough", stacklevel=2)
    return runs


def _run_queue(
    profile: str,
    out: Path | None,
    how: dict[str, str],
    minutes: Number,
    on: Text,
    gpus_per_run: Number,
    shard: Text,
    only: Text,
) -> None:
    """Run what is pending and not done, or a part of it, here or on workers; says how many of the runs
    cannot begin here. `how` has the device and the precision.
    """
    from lab import queue, records
    from lab.ray import STATES, sweep, workers

    check_number("--minutes", minutes := 60.0 if minutes is None else minutes, 0, above=True)
    if gpus_per_run is not None and not (on or "").startswith("ray"):
        raise InputError("--gpus-per-run belongs to --on ray")
    if out is not None:
        make_folder(out := out.absolute(), "--out")
    items = queue.pending(profile, only=only)
    if shard:
        items = [item for item in items if queue.in_shard(item.experiment, shard)]
    if away := [item for item in items if item.missing]:
        line = f"{len(away)} of {len(items)} pending runs cannot run here, first: {away[0].missing}"
        print(line, file=sys.stderr)
    done = {record.experiment.id for record in records(out).readable()} if out else set()
    items = [item for item in items if not item.missing and item.experiment.id not in done]
    share = 0.0 if gpus_per_run is None and how["device"] == "cpu" else gpus_per_run
    until = time.time() + 60 * minutes
    runs = sweep(items, workers(on, share), out, **how, until=until, progress=on is None)
    states = dict.fromkeys((item.experiment.id for item in items), "queued")
    with contextlib.closing(runs):
        for progress in runs:
            states[progress.item.experiment.id] = progress.state
            print(progress, flush=True)
    counts = Counter(states.values())
    totals = [f"{counts[state]} {state}" for state in STATES if counts[state]]
    print(", ".join(totals) or "nothing is pending here")
    if counts["failed"] + counts["stuck"]:
        raise typer.Exit(1)


def _measure(
    experiments: list[Any], out: Path | None, how: dict[str, str], cell: Any = None
) -> None:
    """Run experiments one after the other and say what came out, of a cell beside what is printed. One
    that diverges does not stop the others.
    """
    from core.errors import Diverged
    from core.federation import Runtime, UploadError
    from lab import queue
    from lab.profiles import Profile as Profiles
    from lab.record import ADHOC
    from lab.report.summary import in_columns, summary_frame

    if out is not None:
        make_folder(out, "--out")
    runtime, added, failed, done = Runtime.choose(**how), False, [], []
    paper = cell.paper if cell else ADHOC
    given: Any = {"out": out, "runtime": runtime, "progress": True}
    if not cell:  # what other code left of one's own runs is measured again
        given["stale"] = _of_other_code
    first = experiments[0].settings
    swept = [key for key in first if any(run.settings[key] != first[key] for run in experiments)]
    for experiment in experiments:
        try:
            record, path, computed = queue.measure(experiment, paper, **given)
        except (UploadError, Diverged) as error:
            if len(experiments) == 1:
                raise
            failed.append(experiment.seed)
            which = "".join(f"{name}={experiment.settings[name]}, " for name in swept)
            print(f"error: {which}seed {experiment.seed}: {error}", file=sys.stderr)
            continue
        done.append(record)
        print(_summary(record, path) + ("" if computed else _measured_before(record, path, how)))
        if cell:
            print(_in_table(record, cell))
        added = added or (computed and cell is not None and out is None)
    if len(done) > 1 and not cell:
        print(f"\n{in_columns(summary_frame(done))}")
    if added:
        print("The book has this among its records now; --out, or `check`, keeps yours apart.")
    if experiments[0].profile == "quick":
        print(f"profile quick: {Profiles.load('quick').meaning}")
    if failed:
        raise typer.Exit(1)


def _measured_before(record: Any, path: Path, asked: dict[str, str]) -> str:
    """Note on a record that was there. InputError where it was measured in another way."""
    from lab.source import code_version

    for name, value in asked.items():
        was = record.environment.get(name)
        if value != "auto" and was not in (None, value.split(":")[0]):
            raise InputError(
                f"this run was measured before with {name} {was}, not {value}; give another folder as "
                f"--out, or delete {path}"
            )
    same = record.code == code_version(record.experiment.algorithm)
    code = "" if same else ", by other code than there is now"
    return f"  (measured before{code}; delete it to measure again)"


def _summary(record: Any, path: Path) -> str:
    """Summarise a run in a line: its result, and its file."""
    from core.metrics import headline
    from lab.report.summary import split_in_words

    e, name = record.experiment, headline(record.metrics) or "accuracy"
    value, std = f"{100 * record.metrics[name]:.2f}", record.metrics.get(f"{name}_std")
    spread = "" if std is None else f" ± {100 * std:.2f}"
    up, down = (record.sent(way) / 2**20 for way in ("up", "down"))
    at, metrics = f"{name}@", record.metrics.items()
    sites = [f"{key.removeprefix(at)} {100 * of:.2f}" for key, of in metrics if key.startswith(at)]
    return (
        f"{e.algorithm}, {e.dataset}, {split_in_words(e.partition)}, {e.profile}, seed {e.seed}: "
        f"{name} {value}{spread}% after {len(record.rounds)} rounds, {up:.2f} MB up, {down:.2f} MB "
        f"down, {record.seconds:.1f} s\n"
        + (f"{name} at {listed(sites)}\n" if sites else "")
        + f"record: {path}"
    )


def _in_table(record: Any, cell: Any) -> str:
    """Describe each metric of a run's cell, in the unit of the paper, beside what it reports."""
    from lab.report.tables import formatted
    from lab.report.verdict import measured

    lines = []
    for sibling in cell.siblings():
        value = formatted(measured(record, sibling), None, sibling.unit) or "not measured"
        printed = f", printed {sibling.published.text}" if sibling.published else ""
        lines.append(f"{sibling.metric} ({sibling.unit}): {value}{printed}")
    return "\n".join(lines)


def _of_other_code(record: Any) -> bool:
    """Return whether other code than today's made a record, and warn that it is run again."""
    from lab.source import code_version

    if other := record.code != code_version(record.experiment.algorithm):
        message = f"seed {record.experiment.seed} ran with other code, so it is run again"
        warnings.warn(message, stacklevel=2)
    return other
