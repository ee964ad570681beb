"""`run`: an experiment, a cell of a table, or the queue."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import InputError
from core.files import make_folder
from lab.cli.app import (
    Device,
    Out,
    Precision,
    Profile,
    app,
    fail_where,
    known_profile,
    one_seed,
)
from lab.cli.pending import run_queue
from lab.cli.stated import SINGLE, option, stated_runs

Algorithm = Annotated[
    str | None,
    typer.Option(help="fedvck, fediod, gddfl, fedmk, fedavg, …: see `fedcon algorithms`."),
]
Dataset = Annotated[
    str | None, typer.Option(help="A name of `fedcon data`; at quick default: digits.")
]
Model = Annotated[
    str | None, typer.Option(help="convnet, lenet, resnet8 or resnet18; unet for pixels.")
]
Alpha = Annotated[
    float | None,
    typer.Option(
        help="Dirichlet concentration; small is heterogeneous. Default: iid, all clients alike."
    ),
]
Partition = Annotated[
    str | None,
    typer.Option(
        help="iid, natural, dirichlet,min_size=10 (with --alpha), pathological,classes_per_client=5, or "
        "a JSON file (a path, or below the "
        'data folder) with {"client_idx": [[samples of client 0], …]}.'
    ),
]
Clients = Annotated[int | None, typer.Option(help="Number of clients.")]
Active = Annotated[int | None, typer.Option(help="Clients per round; default: all.")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
Seed = Annotated[
    list[int] | None,
    typer.Option(parser=one_seed, metavar="<int>", help="Seed; may be given several times."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A setting, NAME=VALUE; repeatable. `fedcon algorithms NAME` lists them.",
    ),
]
ModelSet = Annotated[list[str] | None, typer.Option(help="A model option, NAME=VALUE; repeatable.")]
Variant = Annotated[
    str | None, typer.Option(help="printed (the paper) or released (the authors' code).")
]
CellName = Annotated[str | None, typer.Option(help="Run a table's cell: PAPER/TABLE/ROW/COLUMN.")]
Pending = Annotated[
    bool, typer.Option("--pending", help="Run what the tables still need, in order.")
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="With --pending: begin no round, and no shadow run of an attack, that would not end within "
        "so many minutes (the first, of which no time is known, is begun); default: 60."
    ),
]
On = Annotated[
    str | None,
    typer.Option(help="With --pending: workers, local:2 (processes here), ray or ray://HOST:PORT."),
]
GpusPerRun = Annotated[
    float | None,
    typer.Option(
        help="With --on ray: the share of a GPU that a run asks for; default: a whole one where the cluster "
        "has any and --device is not cpu."
    ),
]
Shard = Annotated[str | None, typer.Option(help="With --pending: one part of the queue, 3/16.")]
Only = Annotated[
    str | None,
    typer.Option(
        help="With --pending: a paper, a table (fedvck/11), a cell or an algorithm, that alone."
    ),
]

#: the options of the queue
QUEUE = ("minutes", "on", "gpus_per_run", "shard", "only")


def _alone(mode: str, given: dict[str, Any]) -> None:
    """Raise InputError for an option that would have no effect beside `mode`."""
    if named := [option(name) for name, value in given.items() if value not in (None, [], ())]:
        raise InputError(f"{mode} says what to run; leave {', '.join(named)} out")


def _as_asked(record: Any, path: Path, asked: dict[str, str]) -> None:
    """Raise InputError where a record from before was measured in another way than is asked for."""
    for name, value in asked.items():
        was = record.environment.get(name)
        if value != "auto" and was not in (None, value.split(":")[0]):
            raise InputError(
                f"this run was measured before with {name} {was}, not {value}; give another folder as "
                f"--out, or delete {path}"
            )


def _say_where_it_rests(experiment: Any) -> None:
    """Say that a method which communicates once does nothing in further rounds."""
    from core.algorithms import find
    from core.families.one_shot import OneShot

    if experiment.rounds > 1 and issubclass(find(experiment.algorithm), OneShot):
        print(
            f"{experiment.algorithm} communicates once: it rests after the first of "
            f"{experiment.rounds} rounds; --rounds 1 is enough",
            file=sys.stderr,
        )


def _summary(record: Any, path: Path) -> str:
    """One header and one row that say what came out."""
    from core.metrics import headline
    from lab.explain import aligned
    from lab.report.summary import split_in_words

    up, down = (record.sent(way) / 2**20 for way in ("up", "down"))
    e = record.experiment
    name = headline(record.metrics) or "accuracy"
    std = record.metrics.get(f"{name}_std")
    spread = "" if std is None else f" ± {100 * std:.2f}"
    row = {
        "algorithm": e.algorithm,
        "data set": e.dataset,
        "split": split_in_words(e.partition),
        "profile": e.profile,
        "seed": str(e.seed),
        "rounds": str(len(record.rounds)),
        f"{name} %": f"{100 * record.metrics[name]:.2f}{spread}",
        "MB up": f"{up:.2f}",
        "MB down": f"{down:.2f}",
        "seconds": f"{record.seconds:.1f}",
    }
    return "\n".join([*aligned([[*row], [*row.values()]]), f"record: {path}"])


def _in_table(record: Any, cell: Any) -> str:
    """What a run says of each metric of its cell, in the unit of print, beside what is printed."""
    from lab.report.tables import formatted
    from lab.report.verdict import measured

    lines = []
    for one in cell.siblings():
        value = formatted(measured(record, one), None, one.unit) or "not measured"
        printed = f", printed {one.published.text}" if one.published else ""
        lines.append(f"{one.metric} ({one.unit}): {value}{printed}")
    return "\n".join(lines)


@app.command()
def run(
    context: typer.Context,
    algorithm: Algorithm = None,
    dataset: Dataset = None,
    model: Model = None,
    alpha: Alpha = None,
    partition: Partition = None,
    clients: Clients = None,
    active: Active = None,
    rounds: Rounds = None,
    seed: Seed = None,
    set_: Set = None,
    model_set: ModelSet = None,
    variant: Variant = None,
    cell: CellName = None,
    pending: Pending = False,
    minutes: Minutes = None,
    on: On = None,
    gpus_per_run: GpusPerRun = None,
    shard: Shard = None,
    only: Only = None,
    profile: Profile = "laptop",
    out: Out = None,
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """Run an experiment, a cell of a table, or the queue. An interrupted run resumes when it is
    called again. Where a run of the queue failed, the status is 1.

    \b
    Examples:
      fedcon run --algorithm fedavg --profile quick --rounds 8 --set lr=0.1 --set local_steps=10
      fedcon run --algorithm fedprox --dataset digits --alpha 0.1 --set mu=0.1 --seed 0 --seed 1
      fedcon run --algorithm fedvck --dataset digits --variant released --set server_steps=100
      fedcon run --cell fedvck/11/FedAvg/cifar10-0.05 --profile laptop
      fedcon run --pending --profile paper --minutes 9 --out runs
      fedcon run --pending --only fedvck/11 --profile laptop
      fedcon run --pending --profile paper --on local:2
      fedcon run --pending --profile paper --on ray --gpus-per-run 0.25 --out /shared/runs
    """
    profile = known_profile(profile)
    single, queued = ({name: context.params[name] for name in part} for part in (SINGLE, QUEUE))
    how = {"device": device, "precision": precision}
    if pending:
        _alone("--pending", {"cell": cell, **single, "seed": seed})
        run_queue(profile, out, how, **queued)
        return
    if named := [option(name) for name, value in queued.items() if value is not None]:
        raise InputError(f"{named[0]} belongs to --pending")
    if cell is None:
        _measure(stated_runs(profile, single, seed), out, how)
    else:
        _alone("--cell", single)
        _measure_cell(cell, profile, seed, out, how)


def _measure_cell(
    cell: str, profile: str, seeds: list[int] | None, out: Path | None, how: dict[str, str]
) -> None:
    """Run a cell of a table at a profile, with all its seeds or these."""
    from lab import TableSpec

    found = TableSpec.find_cell(cell, profile)
    _measure(found.chosen(seeds, free=out is not None), out, how, found)


def _by_other_code(paper: str) -> Callable[[Any], bool]:
    """Which records are measured again: of an algorithm of one's own that has changed. It is said of
    each, once.
    """
    from lab.record import ADHOC
    from lab.source import code_version

    @functools.cache
    def said(seed: int, was: str, now: str) -> None:
        print(f"seed {seed} ran with code {was}, now it is {now}: it is run again", file=sys.stderr)

    def stale(record: Any) -> bool:
        now = code_version(record.experiment.algorithm)
        if paper != ADHOC or record.code == now:
            return False
        said(record.experiment.seed, record.code, now)
        return True

    return stale


def _measured_before(record: Any) -> str:
    """What is said of a record that was there."""
    from lab.source import code_version

    same = record.code == code_version(record.experiment.algorithm)
    code = "" if same else ", by other code than there is now"
    return f"  (measured before{code}; delete it to measure again)"


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
    stale = _by_other_code(paper)
    _say_where_it_rests(experiments[0])
    for experiment in experiments:
        try:
            record, path, computed = queue.measure(
                experiment, paper, out=out, runtime=runtime, progress=True, stale=stale
            )
        except (UploadError, Diverged) as error:
            if len(experiments) == 1:
                raise
            failed.append(experiment.seed)
            print(f"error: seed {experiment.seed}: {error}", file=sys.stderr)
            continue
        done.append(record)
        if not computed:
            _as_asked(record, path, how)
        print(_summary(record, path) + ("" if computed else _measured_before(record)))
        if cell:
            print(_in_table(record, cell))
        added = added or (computed and cell is not None and out is None)
    if len(done) > 1 and not cell:
        print(f"\n{in_columns(summary_frame(done))}")
    if added:
        print("The book has this among its records now; --out, or `check`, keeps yours apart.")
    if experiments[0].profile == "quick":
        print(f"profile quick: {Profiles.load('quick').meaning}")
    fail_where(failed)
