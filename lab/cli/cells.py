"""Verbs that look at tables, cells and records."""

from __future__ import annotations

import math
import shlex
import statistics
import textwrap
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from core.errors import InputError, one_line
from core.files import make_folder
from lab.cli.app import Cell, Device, Only, Precision, Profile, Records, Seeds, Shown, command

#: columns of a table in the terminal
SHOWN = "row column metric printed measured seeds budget difference verdict"


@command("algorithms")
def algorithms_(
    name: Annotated[str | None, Argument(help="One, to see its settings; default: all.")] = None,
) -> None:
    """List the algorithms, or the settings of one: what `run --set` takes, the printed value, the
    released one, and what it means.

    \b
    Example:
      fedcon algorithms fedvck
    """
    from lab.report import options

    print(options.settings(name) if name else options.overview())


@command()
def table(
    name: Annotated[
        str | None, Argument(help="PAPER/TABLE, as fedvck/3; of a paper, or default: list them.")
    ] = None,
    profile: Shown = None,
    also: Records = None,
) -> None:
    """Print a table: published number, measured mean and deviation, seeds, budget, difference,
    verdict; then what is to be known of it.

    \b
    Examples:
      fedcon table fedvck/11
      fedcon table fedvck/11 --records mine
    """
    from lab import TableSpec
    from lab.profiles import budget_name
    from lab.report.frames import evidence_frame
    from lab.report.verdict import MEANINGS

    paper, _, number = (name or "").partition("/")
    if not number:
        for spec in TableSpec.of_paper(paper) if paper else TableSpec.all():
            print(f"{spec.paper}/{spec.table}  {spec.title}")
        return
    known = _known(also)
    spec = TableSpec.find(paper, number)
    frame = evidence_frame(paper, number, profile, known)
    print(spec.title)
    print(table_in_columns(frame))
    for line in sorted(set(frame.substitute) - {""}):
        print(f"† {line}")
    for verdict in (name for name in MEANINGS if name in set(frame.verdict)):
        print(f"{verdict}: {MEANINGS[verdict]}")
    if spec.note:
        print(textwrap.fill(spec.note, 120))
    begun = (frame.seeds > 0) & (frame.seeds < frame.wanted)
    for at in frame[(frame.verdict == "pending") | begun].profile.map(budget_name).unique():
        print(
            f"some cells are pending: `fedcon pending --only {name} --profile {at}` lists the runs"
        )


def _known(also: Path | None) -> Any:
    """The book's complete records by experiment id, and those of a folder where one is given."""
    from lab import records
    from lab.importing import beside_the_book
    from lab.record import INSTALLED

    if INSTALLED:
        print("the book's records are in its repository, book/results; here are yours, ./results")
    return records() if also is None else beside_the_book(also)


def table_in_columns(frame: Any) -> str:
    """A `table_frame` as a terminal shows it: numbers with the decimals of their units, "-" for none,
    a dagger at what a substitute data set measured. A metric or budget that all cells have is said above.
    """
    from lab.profiles import budget_name
    from lab.report.tables import formatted

    shown = frame.assign(
        seeds=frame.seeds.astype(str) + " of " + frame.wanted.astype(str),
        column=frame.column.where(frame.substitute == "", frame.column + " †"),
        difference=frame.difference.where(frame.verdict != "not compared"),
        budget=frame.profile.map(budget_name),
    )
    none = [None] * len(shown)
    for name, spread in (
        ("printed", shown.printed_std),
        ("measured", shown["std"]),
        ("difference", none),
    ):
        values = zip(shown[name], spread, shown.unit, strict=True)
        shown[name] = [formatted(value, std, unit) or "-" for value, std, unit in values]
    alike = [name for name in ("metric", "budget") if shown[name].nunique() == 1]
    said = ", ".join(f"{name} {shown[name].iloc[0]}" for name in alike)
    columns = [name for name in SHOWN.split() if name not in alike]
    return f"{said}\n{shown[columns].to_string(index=False)}".lstrip("\n")


@command()
def pending(
    profile: Profile = "laptop",
    limit: Annotated[int, Option(min=0, help="Show so many runs.")] = 20,
    only: Only = None,
) -> None:
    """List commands for the runs that the tables still need, most urgent first. A table that is not meant
    for a profile is listed there only where --only names it.

    \b
    Examples:
      fedcon pending --profile paper --limit 50
      fedcon pending --only fedvck/budgets --profile reduced
    """
    from lab import queue
    from lab.profiles import budget_name

    items, budget = queue.pending(profile, only=only), budget_name(profile)
    for item in items[:limit]:
        options = ("--cell", item.cells[0], "--profile", budget)
        line = shlex.join(["fedcon", "run", *options, "--seed", str(item.experiment.seed)])
        more = f"  and {len(item.cells) - 1} more cells" if len(item.cells) > 1 else ""
        print(line + more + (f"  ({item.missing})" if item.missing else ""))
    can = sum(item.missing is None for item in items)
    print(f"{len(items)} runs pending at the budget {budget}, {can} can run here")


def _find_cells(cell: str, profile: str | None, known: Any) -> tuple[Any, list[Any]]:
    """A cell at a profile, by default at that at which its table shows it with these records; and the
    cells that the text names: of all metrics where it names none.
    """
    from lab import TableSpec
    from lab.report.frames import best_evidence
    from lab.table import same_name

    target = TableSpec.find_cell(cell, profile or "laptop")
    if profile is None:
        best = best_evidence(target.spec, known)
        shown = next(entry.profile for entry in best if entry.address == target.address)
        target = TableSpec.find_cell(cell, shown)
    whole = f"{target.paper}/{target.table}/{target.row}/{target.column}/{target.metric}"
    return target, [target] if same_name(cell, whole) else target.siblings()


@command()
def explain(cell: Cell, profile: Shown = None, also: Records = None) -> None:
    """Print every value behind a cell, the place that set it, and what it replaced there; then what
    is measured: value and record of each seed, mean, printed value, verdict and its reason.

    \b
    Places are files below book/tables with the keys that lead to the value. A later one prevails:
      default of the algorithm < its released values < a table's defaults < column < row
      < substitute < profiles.yaml < the table's own profiles < the settings of the row again

    \b
    Examples:
      fedcon explain fedvck/11/FedVCK/cifar10-0.05
    """
    from lab.explain import explanation
    from lab.report.evidence import evidence

    known = _known(also)
    target, asked = _find_cells(cell, profile, known)
    print("\n\n".join([explanation(target), *(evidence(each, known, also) for each in asked)]))


@command()
def check(
    cell: Cell,
    profile: Shown = None,
    seed: Seeds = None,
    out: Annotated[Path, Option(help="Scratch folder for your records.")] = Path("checked"),
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """Run a cell anew, with all of its table's seeds or with yours, and print it beside the paper's number
    and the book's; the book's records stay as they are. An interrupted check goes on when it is called
    again.

    \b
    Example:
      fedcon check fedmk/1/FedAvg/mnist-0.5 --seed 0
    """
    from core.federation import Runtime
    from lab import queue, records
    from lab.profiles import budget_name
    from lab.record import numerics
    from lab.report.evidence import comparison

    known = records()
    target, asked = _find_cells(cell, profile, known)
    book = [known[run.id] for run in target.experiments if run.id in known]
    used = {record.experiment.id: numerics(record.environment)["precision"] for record in book}
    common = min(used.values()) if len(set(used.values())) == 1 else "auto"
    runs, yours = target.experiments_of(seed, any_seed=True), []
    make_folder(out, "--out")
    if took := [record.core_seconds for record in book if not math.isnan(record.core_seconds)]:
        usual = f"{statistics.mean(took):,.0f} s of one core"
        print(f"budget {budget_name(target.profile)}: a run of the book took {usual}")
    for run in runs:
        own = used.get(run.id, common) if precision == "auto" else precision
        runtime = Runtime.choose(device, own)
        record, path, computed = queue.measure_anew(run, target.paper, out, runtime)
        yours.append(record)
        if not computed:
            print(f"seed {run.seed}: from a check before, {path}; delete it to run anew")
    print("\n\n".join(comparison(each, book, yours) for each in asked))


@command()
def runs(
    folder: Annotated[
        Path | None, Argument(help="The --out folder of run; default: where runs without it are.")
    ] = None,
    against: Annotated[
        str | None,
        Option(
            help="A setting, such as fedavg or lr=0.1: the others' lead over it in points, seed by "
            "seed, with its 90% interval."
        ),
    ] = None,
    csv: Annotated[Path | None, Option(help="Write the table to this file instead.")] = None,
    plot: Annotated[Path | None, Option(help="Draw learning curves into this file, .png.")] = None,
    by: Annotated[str | None, Option(help="With --plot: a line for each value of this.")] = None,
) -> None:
    """List your runs, such as a sweep: a line for each setting, over its seeds, with what differs
    between them.

    \b
    Example:
      fedcon run --algorithm fedavg --dataset digits --set lr=0.1,0.3 --seed 0 --seed 1 --out mine
      fedcon runs mine --against lr=0.1
      fedcon runs mine --plot curves.png --by lr
    """
    from core.metrics import headline
    from lab.importing import records_below
    from lab.record import ADHOC, RESULTS
    from lab.report.charts import curves
    from lab.report.summary import in_columns, summary_frame

    folder = folder or RESULTS / ADHOC
    all_runs = records_below(folder)
    frame = summary_frame([record for record in all_runs if record.status == "complete"], against)
    if plot is not None:
        measured = next((record.metrics for record in all_runs if record.metrics), {})
        metric = headline(measured) or "accuracy"
        drawn = curves(folder, metric, by=by)
        try:
            drawn.savefig(plot, bbox_inches="tight")
        except (OSError, ValueError) as error:  # ValueError: for another ending
            raise InputError(f"--plot {plot}: {one_line(error)}") from None
        print(f"written: {plot}")
    if csv is not None:
        frame.to_csv(csv, index=False)
        print(f"written: {csv}")
    else:
        print(in_columns(frame) if len(frame) else f"no complete run in {folder}")
    for failed in (record for record in all_runs if record.status == "failed"):
        why = failed.notes[-1] if failed.notes else "no reason is kept"
        experiment = failed.experiment
        print(f"failed: {experiment.algorithm}, seed {experiment.seed} ({experiment.id}): {why}")
    if unfinished := sum(record.status == "running" for record in all_runs):
        print(f"{unfinished} more not finished: the command that began one goes on with it")


@command("import")
def import_(folder: Annotated[Path, Argument(help="The --out folder of run.")]) -> None:
    """Take complete records from a folder, for example one carried from a GPU machine, into the
    book's results.

    \b
    Example:
      fedcon import runs
    """
    from lab import importing

    done = importing.import_records(folder)
    print(f"{done.new} records imported, {done.known} known before, {done.unfinished} not finished")
    if done.of_no_table:
        print(
            f"{done.of_no_table} of the imported fill no cell of a table: no table states their settings"
        )
