"""Verbs for notebooks, data and the site."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from core.errors import InputError, listed, printable
from lab.cli.app import command, pairs


@command()
def notebook(
    path: Annotated[Path, Argument(help="A notebook, .py or .ipynb, or a page's name or number.")],
    parameter: Annotated[
        list[str] | None,
        Option("-p", "--parameter", help="NAME VALUE, as in papermill, or NAME=VALUE; repeatable."),
    ] = None,
    out: Annotated[Path | None, Option(help="The executed copy, or its folder.")] = None,
) -> None:
    """Execute a notebook with your own parameters; unknown names and values of another type are refused
    before anything runs.

    \b
    Example:
      fedcon notebook notebooks/01_quickstart.py -p alpha 0.02 -p rounds 5
    """
    from lab.report.notebooks import find, run_notebook

    path = find(path)
    name = f"{path.stem}.executed.ipynb"
    target = out / name if out and out.is_dir() else out or Path(name)
    run_notebook(path, pairs(parameter, "parameters"), target)
    print(f"executed: {target}")


@command("data")
def data_(
    action: Annotated[str, Argument(help="list, get, convert or pack.")] = "list",
    name: Annotated[str | None, Argument(help="The data set; with pack: the file.")] = None,
    folder: Annotated[Path | None, Argument(help="With convert: where your files are.")] = None,
    size: Annotated[int | None, Option(help="With convert: pixels of a side.")] = None,
) -> None:
    """Show which data sets are here and how to get the others; `data get NAME` downloads one;
    `data convert NAME FOLDER` makes one from what you downloaded by hand, or from your own images in
    FOLDER/train/CLASS and FOLDER/test/CLASS, with a folder for each hospital around those of the classes
    where there are several, under a NAME of yours; `data pack FILE` zips those that fit 50 MB and may be
    passed on.

    \b
    Examples:
      fedcon data
      fedcon data get pneumoniamnist
      fedcon data convert my_xrays ~/xrays --size 64
      fedcon data pack datapack.zip
    """
    from core import data
    from core.data.roots import data_root
    from lab.datapack import pack

    given = {"list": 0, "get": 1, "convert": 2, "pack": 1}
    if given.get(action) != (name is not None) + (folder is not None):
        raise InputError(
            "use `data`, `data get NAME`, `data convert NAME FOLDER` or `data pack FILE`"
        )
    if size is not None and action != "convert":
        raise InputError("--size goes with `data convert NAME FOLDER`")
    if name is None:
        _list_data()
    elif action == "pack":
        packed = pack(Path(name))
        print(f"{name}: {', '.join(packed)} ({Path(name).stat().st_size / 2**20:.0f} MB)")
    else:
        before = folder is not None and (data_root() / f"{name}.npz").exists()
        made = data.convert(name, folder, size=size, tell=print) if folder else data.get(name)
        print(f"ready: {made}{' (in the place of the one before)' * before}")


def _list_data() -> None:
    """Print a line for each data set, and for each file that is none."""
    from core import data
    from core.data.roots import data_root

    root = data_root()
    lacks = "" if root.is_dir() else ", which is not there"
    print(f"data folder: {root.absolute()}{lacks} (set FEDCON_DATA for another)\n")
    for info in data.available():
        if info.sizes:
            what = _sizes(info) if info.present else f"missing: {info.how_to_get}"
        else:
            what = _own(info.name) if info.present else f"not a data set: {info.how_to_get}"
        print(f"{printable(info.name):20}  {printable(what)}")


def _sizes(info: Any) -> str:
    """Return the sizes that are at hand of a data set that comes in several."""
    if len(info.sizes) < 2:
        return "here"
    sizes, usual = " and ".join(map(str, info.present_sizes)), info.sizes[0]
    lacks = "" if usual in info.present_sizes else f", missing at {usual}: {info.how_to_get}"
    return f"here at {sizes} pixels{lacks}"


def _own(name: str) -> str:
    """Say whether a file of one's own can be read, and if not, why; and classes without a training image."""
    from core import data

    try:
        dataset = data.load(name)
    except InputError as error:
        return f"here, but {error}"
    counts = dataset.train.labels.bincount(minlength=dataset.num_classes).tolist()
    empty = [label for label, count in zip(dataset.classes, counts, strict=True) if not count]
    lacks = f", but no training image is of class {listed(empty)}" if empty else ""
    return f"here, your own file{lacks}"


@command()
def book(
    action: Annotated[str, Argument(help="build, pdf, student, slides.")] = "build",
    chapter: Annotated[list[str] | None, Argument(help="Names of pages; default: all.")] = None,
    out: Annotated[Path | None, Option(help="Where pages that are not the site go.")] = None,
) -> None:
    """Build the site; print it as one PDF; write the notebooks of a class without solutions, or slides of
    lessons.

    \b
    Examples:
      fedcon book build
      fedcon book student --out class
      fedcon book slides 04_federated_learning
    """
    from lab.report import notebooks, site, students

    def sources(default: Callable[[], list[Any]] = notebooks.chapters) -> list[Path]:
        return [notebooks.find(name) for name in chapter or default()]

    def report(written: list[Path]) -> None:
        files = "1 file" if len(written) == 1 else f"{len(written)} files"
        print(f"{files} in {written[0].parent}")

    actions: dict[str, Callable[[], object]] = {
        "build": site.build,
        "pdf": lambda: site.pdf(out or Path("book.pdf"), chapter),
        "student": lambda: report(students.write_students(sources(), out or Path("student"))),
        "slides": lambda: report(site.write_slides(sources(site.lessons), out or Path("slides"))),
    }
    if action not in actions:
        raise InputError(f"the book can be {', '.join(actions)}, not {action!r}")
    if action == "build" and (chapter or out):
        raise InputError("`book build` is about the whole site: it takes no pages and no --out")
    actions[action]()
