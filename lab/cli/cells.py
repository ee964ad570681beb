"""Verbs that look at tables, cells and records."""

from __future__ import annotations

import itertools
import math
import statistics
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import InputError
from core.files import make_folder
from lab.cli.app import Device, Precision, Profile, app, known_profile, one_seed

Shown = Annotated[
    str | None,
    typer.Option(
        help="quick, laptop, converged or paper; default: the one at which the table shows the cell."
    ),
]
TableName = Annotated[
    str | None,
    typer.Argument(
        help="PAPER/TABLE, for example fedvck/3; a paper alone lists its tables; default: list all."
    ),
]
TableProfile = Annotated[
    str | None,
    typer.Option(
        help="quick, laptop, converged or paper; default: for each column the one at which most of it "
        "is measured."
    ),
]
MoreRecords = Annotated[
    Path | None,
    typer.Option(
        "--records", help="A folder that was given to run as --out: its records count too."
    ),
]
#: columns of a table in the terminal
SHOWN = [
    "row", "column", "metric", "printed", "measured", "seeds", "profile", "difference", "verdict",
]  # fmt: skip


@app.command("algorithms")
def algorithms_(
    name: Annotated[
        str | None, typer.Argument(help="One of them, to see its settings; default: list all.")
    ] = None,
) -> None:
    """List the algorithms, or the settings of one: what `run --set` takes, the printed value, the
    released one, and what it means.

    \b
    Examples:
      fedcon algorithms
      fedcon algorithms fedvck
    """
    from lab.report import options

    print(options.settings(name) if name else options.overview())


@app.command()
def table(name: TableName = None, profile: TableProfile = None, also: MoreRecords = None) -> None:
    """Print a table: published number, measured mean and deviation, seeds, profile, difference,
    verdict; then what is to be known of it.

    \b
    Examples:
      fedcon table fedvck/11
      fedcon table reference/1 --profile laptop
      fedcon table fedvck/11 --records mine
    """
    from lab import TableSpec
    from lab.cli.waiting import first_of, say_what_is_not_written
    from lab.report import table_frame
    from lab.report.verdict import MEANINGS

    if profile is not None:
        known_profile(profile)
    paper, _, number = (name or "").partition("/")
    _no_cell(paper, number)
    if not number:
        if profile is not None or also is not None:
            raise InputError("--profile and --records need a table, such as fedvck/11")
        _list_tables(paper)
        return
    known = _known(also)
    spec, found = TableSpec.find(paper, number), table_frame(paper, number, profile, known)
    print(spec.title)
    print(table_in_columns(found))
    for line in sorted(set(found.stand_in) - {""}):
        print(f"† {line}")
    for verdict in (one for one in MEANINGS if one in set(found.verdict)):
        print(f"{verdict}: {MEANINGS[verdict]}")
    if spec.note:
        print(textwrap.fill(spec.note, 120))
    if also is not None:
        _say_where_none_counts(also, spec)
    begun = (found.seeds > 0) & (found.seeds < found.wanted)
    waiting = found[(found.verdict == "pending") | begun]
    say_what_is_not_written([spec])
    if len(waiting) and (said := first_of(waiting, spec, known)):
        print(said)
        if not set(waiting.profile) <= set(spec.run_at):
            print(f"the queue runs this table at the profile {' or '.join(spec.run_at)}")


def _known(also: Path | None) -> Any:
    """The book's complete records by experiment id, and those of a folder where one is given."""
    from lab import records
    from lab.importing import beside_the_book

    return records() if also is None else beside_the_book(also)


def _say_where_none_counts(folder: Path, spec: Any) -> None:
    """Say where none of a folder's records is of a table."""
    from lab.importing import records_below

    mine = [record.experiment for record in records_below(folder)]
    cells = (cell for profile in {one.profile for one in mine} for cell in spec.cells(profile))
    if not {one.id for one in mine} & {run.id for cell in cells for run in cell.experiments}:
        print(
            f"none of the {len(mine)} records below {folder} is of this table; "
            f"`fedcon runs {folder}` shows them"
        )


def _no_cell(paper: str, number: str) -> None:
    """Raise InputError for the name of a cell where that of a table is asked for."""
    if "/" in number:
        raise InputError(
            f"'{paper}/{number}' is no table; `fedcon table {paper}/{number.split('/')[0]}` "
            "shows its table, `fedcon explain` where its values come from"
        )


def _list_tables(paper: str) -> None:
    """Print the tables of a paper, or of all."""
    from lab import TableSpec

    papers = [paper] if paper else sorted({one.paper for one in TableSpec.all()})
    for one in itertools.chain.from_iterable(map(TableSpec.of_paper, papers)):
        print(f"{one.paper}/{one.table}  {one.title}")


def table_in_columns(found: Any) -> str:
    """A `table_frame` as a terminal shows it: numbers with the decimals of their units, "-" for
    none, a sign at what a stand-in measured. A metric or profile that all cells have is said above.
    """
    from lab.report.tables import formatted

    shown = found.assign(
        seeds=[
            f"{have} of {wanted}" for have, wanted in zip(found.seeds, found.wanted, strict=True)
        ],
        column=found.column.where(found.stand_in == "", found.column + " †"),
        difference=found.difference.where(found.verdict != "not compared"),
    )
    nothing = [None] * len(shown)
    spreads = {"printed": shown.printed_std, "measured": shown["std"], "difference": nothing}
    for name, spread in spreads.items():
        values = zip(shown[name], spread, shown.unit, strict=True)
        shown[name] = [formatted(value, std, unit) or "-" for value, std, unit in values]
    alike = [name for name in ("metric", "profile") if shown[name].nunique() == 1]
    said = ", ".join(f"{name} {shown[name].iloc[0]}" for name in alike)
    columns = [name for name in SHOWN if name not in alike]
    return f"{said}\n{shown[columns].to_string(index=False)}".lstrip("\n")


@app.command()
def pending(
    profile: Profile = "laptop",
    limit: Annotated[int, typer.Option(min=0, help="Show so many runs.")] = 20,
    only: Annotated[
        str | None,
        typer.Option(help="A paper, a table (fedvck/11), a cell or an algorithm, that alone."),
    ] = None,
    also: MoreRecords = None,
) -> None:
    """List the runs that the tables still need, most urgent first, with the time that the same run
    took on one core with another seed. Cells that are complete with a larger budget come last. A
    table that is not meant for a profile is listed there only where --only names it.

    \b
    Examples:
      fedcon pending --profile paper --limit 50
      fedcon pending --only fedvck/ladder --profile converged
      fedcon pending --only fedvck/11 --records mine
    """
    from lab import TableSpec, queue
    from lab.cli.waiting import say_what_is_not_written, say_where_run
    from lab.forms import TABLES

    known_here = {} if also is None else _known(also)
    items = [
        one for one in queue.pending(profile, only=only) if one.experiment.id not in known_here
    ]
    for item in items[:limit]:
        more = f" and {len(item.cells) - 1} more cells" if len(item.cells) > 1 else ""
        print(
            f"{item.experiment.id}  {item.cells[0]} seed {item.experiment.seed}{more}"
            + (f"  about {item.core_seconds:,.0f} s" if item.core_seconds else "")
            + (f"  ({item.missing})" if item.missing else "")
        )
    can = [item for item in items if not item.missing]
    known = [item.core_seconds for item in can if item.core_seconds]
    print(f"{len(items)} runs pending at the {profile} profile, {len(can)} can run here")
    paper = (only or "").strip("/").partition("/")[0].casefold()
    known_papers = {path.name for path in TABLES.iterdir()}
    say_what_is_not_written(TableSpec.all(paper=paper if paper in known_papers else "*"), only)
    if not items and only:
        say_where_run(only, profile)
    if known:
        print(
            f"{len(known)} of these are further seeds of runs on record and need about "
            f"{sum(known) / 3600:.1f} hours of one core"
        )


def _shown_at(cell: str, known: Any) -> str:
    """The profile at which its table shows a cell, with these records."""
    from lab import TableSpec
    from lab.report.frames import best_cells

    found = TableSpec.find_cell(cell, "laptop")
    shown = best_cells(found.spec, known)
    return next(one.profile for one in shown if one.address == found.address)


@app.command()
def explain(
    cell: Annotated[str, typer.Argument(help="A table's cell: PAPER/TABLE/ROW/COLUMN.")],
    profile: Shown = None,
    also: MoreRecords = None,
) -> None:
    """Print every value behind a cell, the place that set it, and what it replaced there; then what
    is measured: value and record of each seed, mean, printed value, verdict and its reason.

    \b
    Places are files below book/tables with the keys that lead to the value. A later one prevails:
      default of the algorithm < its released values < a table's defaults < column < row
      < stand-in < profiles.yaml < the table's own profiles < the settings of the row again

    \b
    Examples:
      fedcon explain fedvck/11/FedVCK/cifar10-0.05
      fedcon explain fedvck/11/FedVCK/cifar10-0.05 --records mine
    """
    from lab import TableSpec
    from lab.explain import explanation
    from lab.report.evidence import evidence

    known = _known(also)
    found = TableSpec.find_cell(cell, profile or _shown_at(cell, known))
    parts = [explanation(found), *(evidence(one, known, also) for one in _asked(cell, found))]
    print("\n\n".join(parts))


def _asked(text: str, found: Any) -> list[Any]:
    """The cells that a text names: of all metrics where it names none."""
    from lab.table import same_name

    whole = f"{found.paper}/{found.table}/{found.row}/{found.column}/{found.metric}"
    return [found] if same_name(text, whole) else found.siblings()


@app.command()
def check(
    cell: Annotated[str, typer.Argument(help="A table's cell: PAPER/TABLE/ROW/COLUMN[/METRIC].")],
    profile: Shown = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            parser=one_seed,
            metavar="<int>",
            help="One of the table's seeds, or one of your own; may be given several times; default: "
            "all of the table's.",
        ),
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
      fedcon check fedmk/1/FedAvg/mnist-0.5 --seed 0
    """
    from core.federation import Runtime
    from lab import TableSpec, queue, records
    from lab.report.cellcheck import comparison

    known = records()
    found = TableSpec.find_cell(cell, profile or _shown_at(cell, known))
    runtime = Runtime.choose(device, precision)
    runs, yours = found.chosen(seed, free=True), []
    make_folder(out, "--out")
    book = [known[one.id] for one in found.experiments if one.id in known]
    took = [one.core_seconds for one in book if not math.isnan(one.core_seconds)]
    if took:
        of_one = f"{statistics.mean(took):,.0f} s of one core"
        print(f"profile {found.profile}: a run of the book took {of_one}")
    for one in runs:
        record, path, computed = queue.measure_anew(one, found.paper, out, runtime)
        yours.append(record)
        if not computed:
            print(f"seed {one.seed}: from a check before, {path}; delete it to run anew")
    print("\n\n".join(comparison(one, book, yours) for one in _asked(cell, found)))


@app.command()
def runs(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="The folder that was given to run as --out; default: where runs without --out are."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="A setting, such as fedavg or lr=0.1: the others' lead over it in points, seed by seed, "
            "with its 90% interval."
        ),
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the table to this file instead.")] = None,
) -> None:
    """List your runs, such as a sweep: a line for each setting, over its seeds, with what differs
    between them.

    \b
    Example:
      fedcon run --algorithm fedavg --dataset digits --set lr=0.1 --seed 0 --seed 1 --out mine
      fedcon run --algorithm fedavg --dataset digits --set lr=0.3 --seed 0 --seed 1 --out mine
      fedcon runs mine
      fedcon runs mine --against lr=0.1
      fedcon runs
    """
    from lab.importing import records_below
    from lab.record import ADHOC, RESULTS
    from lab.report.summary import in_columns, summary_frame

    folder = folder or RESULTS / ADHOC
    found = records_below(folder)
    frame = summary_frame([one for one in found if one.status == "complete"], against)
    if csv is not None:
        if not csv.parent.is_dir() or csv.is_dir():
            raise InputError(f"--csv {csv}: give the name of a file in a folder that exists")
        frame.to_csv(csv, index=False)
        print(f"written: {csv}")
    else:
        print(in_columns(frame) if len(frame) else f"no complete run in {folder}")
    for failed in (one for one in found if one.status == "failed"):
        why = failed.notes[-1] if failed.notes else "no reason is kept"
        one = failed.experiment
        print(f"failed: {one.algorithm}, seed {one.seed} ({one.id}): {why}")
    if unfinished := sum(one.status == "running" for one in found):
        print(f"{unfinished} more not finished: the command that began one goes on with it")


@app.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(help="The folder that was given to run as --out.")],
) -> None:
    """Take complete records from a folder, for example one carried from a GPU machine, into the
    book's results.

    \b
    Example:
      fedcon import runs
    """
    from lab import importing

    done = importing.import_records(folder)
    print(f"{done.new} records imported, {done.known} known before, {done.unfinished} not finished")
    if done.apart:
        print(
            f"{done.apart} of the imported fill no cell of a table: no table states their settings"
        )
