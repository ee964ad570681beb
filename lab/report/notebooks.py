"""Run the book's notebooks: with a reader's own parameters, or all of them for the site.

The source of a notebook is `notebooks/NAME.py` (py:percent). Beside it lies `NAME.ipynb`, the same
cells without outputs, for Jupyter, Colab and Binder.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from core.checks import check_number, check_whole, is_number
from core.errors import InputError, unknown

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def read(path: str | Path) -> Any:
    """A notebook (nbformat's node) from a .py or .ipynb file.

    Raises InputError when the file is missing or is not a notebook.
    """
    path = find(path)
    jupytext, nbformat = needed("jupytext"), needed("nbformat")
    try:
        if path.suffix == ".py":
            return jupytext.read(path, fmt="py:percent")
        return nbformat.read(path, as_version=4)
    except (ValueError, KeyError, UnicodeDecodeError, nbformat.ValidationError) as error:
        raise InputError(f"{path} is not a notebook: {str(error).splitlines()[0]}") from None


def needed(name: str) -> Any:
    """A package that only notebooks need. Raises InputError, which says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"notebooks need the package {error.name or name}: pip install -r requirements.txt"
        ) from None


def find(path: str | Path) -> Path:
    """The file of a notebook given by its path, by its bare name, for example "00_quickstart", or by its
    number.
    """
    path = Path(path)
    if path.is_file() and path.suffix in (".py", ".ipynb"):
        return path
    if path.is_file():
        raise InputError(f"a notebook ends in .py or .ipynb, unlike {path}")
    if path.parent == Path() and (NOTEBOOKS / f"{path.stem}.py").is_file():
        return NOTEBOOKS / f"{path.stem}.py"
    names = [file.stem for file in NOTEBOOKS.glob("*.py")]
    number = str(path).zfill(2)  # 3 is 03
    if len(begin := [name for name in names if name.startswith(f"{number}_")]) == 1:
        return NOTEBOOKS / f"{begin[0]}.py"
    raise unknown("notebook", str(path), names)


def chapters() -> list[str]:
    """The names of the book's notebooks in the order of its contents, and then any that these
    leave out.
    """
    listed = re.findall(r"notebooks/(\w+)", (ROOT / "_toc.yml").read_text(encoding="utf-8"))
    names = sorted(file.stem for file in NOTEBOOKS.glob("*.py"))
    return sorted(names, key=lambda name: listed.index(name) if name in listed else len(listed))


def title(path: Path) -> str:
    """The heading of a notebook, or its name where it has none."""
    found = re.search(r"^# (.+)$", read(path).cells[0].source, re.MULTILINE)
    return found[1] if found else path.stem


def parameters(path: str | Path) -> dict[str, Any]:
    """The parameters of a notebook with their defaults: what papermill infers from the cell tagged
    `parameters`.
    """
    papermill = needed("papermill")
    notebook = read(path)
    if not any("parameters" in cell.metadata.get("tags", []) for cell in notebook.cells):
        return {}
    notebook.metadata["kernelspec"] = KERNEL
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "notebook.ipynb")
        needed("nbformat").write(notebook, copy)
        inferred = papermill.inspect_notebook(str(copy))
    return {name: _literal(found["default"]) for name, found in inferred.items()}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise InputError(f"the default {text} in a parameters cell is not a plain value") from None


def run_notebook(path: str | Path, parameters_given: Mapping[str, Any], output: str | Path) -> Path:
    """Execute a notebook with some of its parameters changed and save the executed copy.

    Args:
        path: a .py or .ipynb file, or the name of one of the book's notebooks.
        parameters_given: new values by name, as texts or as Python values.
        output: the .ipynb file to write.

    Raises InputError, before anything runs, for an unknown parameter, for a value of the wrong
    type, for an impossible value and for a place that cannot be written; and afterwards when a cell
    of the notebook fails.
    """
    source = find(path)
    values = check_parameters(source, parameters_given)
    output = Path(output)
    if output.suffix != ".ipynb":
        raise InputError(f"the executed notebook is a file that ends in .ipynb, not {output}")
    if output.resolve() in (source.resolve(), source.resolve().with_suffix(".ipynb")):
        raise InputError(
            f"{output} is the notebook itself; name another file for the executed copy"
        )
    if not output.parent.is_dir():
        raise InputError(f"there is no folder {output.parent}")
    if not os.access(output.parent, os.W_OK):
        raise InputError(f"cannot write into the folder {output.parent}")
    notebook = read(source)
    notebook.metadata["kernelspec"] = KERNEL
    if values:
        stated = ", ".join(f"{name} = {value!r}" for name, value in values.items())
        told = f"*Run with {stated}. The text around the results was written for the defaults.*"
        notebook.cells.insert(0, needed("nbformat").v4.new_markdown_cell(told))
    execute(notebook, source, output, values, progress=True)
    return output


def execute(
    notebook: Any,
    source: Path,
    output: Path,
    values: Mapping[str, Any],
    kernel: Any = None,
    *,
    progress: bool = False,
) -> None:
    """Run the cells of a notebook (nbformat's node) in the folder of `source`, and save them with
    their outputs; in a `kernel` (jupyter_client's manager) that runs already, or in a new one.

    Raises InputError, naming `source` and the error, when a cell fails or the kernel dies; `output`
    holds the outputs until there.
    """
    papermill = needed("papermill")
    from nbclient.exceptions import DeadKernelError

    from core.data.roots import data_root

    try:
        with inherited({"PYTHONPATH": _path_of_core(), "FEDCON_DATA": str(data_root().resolve())}):
            papermill.execute_notebook(
                notebook,
                str(output),
                parameters=dict(values),
                kernel_name="python3",
                cwd=str(source.resolve().parent),
                progress_bar=progress,
                extra_arguments=["--log-level=CRITICAL"],
                km=kernel,
            )
    except papermill.PapermillExecutionError as error:
        raise InputError(
            f"{source.name} stopped with {error.ename}: {error.evalue} (see {output})"
        ) from None
    except DeadKernelError:
        raise InputError(
            f"{source.name} stopped: its kernel died, as it does when memory runs out (see {output})"
        ) from None


@contextlib.contextmanager
def inherited(given: Mapping[str, str]) -> Iterator[None]:
    """Within it new processes find these variables in their environment."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _path_of_core() -> str:
    """PYTHONPATH with the folder of `core`: kernels find it wherever they start."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([str(ROOT), *filter(None, paths)]))


def check_parameters(path: str | Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given parameters as values of the types that the notebook's defaults have.

    Raises InputError for an unknown name (with the list of valid ones), a wrong type or an
    impossible value.
    """
    defaults = parameters(path)
    values = {}
    for name, value in given.items():
        if name not in defaults:
            raise unknown(f"parameter of {Path(path).stem}", name, defaults)
        values[name] = _typed(name, value, defaults[name])
        _possible(name, values[name], defaults[name])
    return values


def _typed(name: str, value: Any, default: Any) -> Any:
    """`value` in the type of `default`; texts are read as Python writes them, `true` and `false`
    too.
    """
    if default is None or (isinstance(default, str) and isinstance(value, str)):
        return value
    if isinstance(value, str):
        with contextlib.suppress(ValueError, SyntaxError):
            value = ast.literal_eval(
                {"true": "True", "false": "False"}.get(value.strip(), value.strip())
            )
    if isinstance(default, bool) or isinstance(value, bool):
        fits = isinstance(default, bool) and isinstance(value, bool)
    elif isinstance(default, float):
        fits = is_number(value)
        value = float(value) if fits else value
    elif isinstance(default, (list, tuple)):
        fits = isinstance(value, (list, tuple))
    else:
        fits = isinstance(value, type(default))
    if not fits:
        kind = {
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            str: "a text",
            list: "a list",
            tuple: "a list",
            dict: "a mapping",
        }.get(type(default), f"of type {type(default).__name__}")
        raise InputError(f"{name} must be {kind}, as its default {default!r} is, not {value!r}")
    return value


#: parameters that are the number of a class or of another thing, not how many there are
PLACES = ("left_out",)


def _possible(name: str, value: Any, default: Any) -> None:
    """Refuse what no run can use: a parameter named as a field of `Experiment` follows that field's
    rule, and a number of things that is 1 or more by default is never less.
    """
    from core import data
    from lab.experiment import PROFILES, Experiment

    known: dict[str, Callable[[], Iterable[str]]] = {
        "profile": lambda: PROFILES,
        "shown": lambda: ("best", *PROFILES),
        "algorithm": _algorithms,
        "algorithms": _algorithms,
        "model": _models,
    }
    if name == "dataset":
        # loading raises, and says how to get or to mend a set
        asked, usual = (data.load(one).learns for one in (value, default))
        if asked != usual:
            raise InputError(f"{value} is for {asked}, and this page is about {usual}")
    elif name in known:
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if item not in (names := list(known[name]())):
                kind = "profile" if name == "shown" else name.removesuffix("s")
                raise unknown(kind, item, names)
    elif name in ("seeds", "seed"):
        for seed in value if isinstance(value, (list, tuple)) else [value]:
            Experiment(algorithm="fedavg", dataset="digits", seed=seed)
    elif name in ("clients", "rounds", "train_fraction", "evaluate_every", "variant"):
        Experiment(algorithm="fedavg", dataset="digits", **{name: value})
    elif name in ("alpha", "alphas", "beta"):
        for number in value if isinstance(value, (list, tuple)) else [value]:
            check_number(name, number, 0, above=True)
    elif type(default) is int and default > 0 and name not in PLACES:
        check_whole(name, value, 1)


def _algorithms() -> list[str]:
    from core import algorithms

    return list(algorithms.names())


def _models() -> list[str]:
    from core import models

    return models.names()


# ---- the pair .py and .ipynb


#: the second cell of every notebook. `core` reads the tables and records that lie beside it, so the
#: whole repository is fetched, and imported from where it lies; nobody owns the placeholder address.
SETUP = """\
# %% tags=["setup", "remove-cell"]
# Where `core` is missing, as on Colab: fetch the book and what it needs.
import importlib.util
import sys

if importlib.util.find_spec("core") is None:
    address = "{address}"
    assert "OWNER/" not in address, "this copy has no public address yet"
    get_ipython().system(f"git clone -q --depth 1 {{address}} fedcon-book")
    get_ipython().run_line_magic("pip", "install -q -e ./fedcon-book[pages]")
    sys.path.insert(0, "fedcon-book")

"""
_SETUP = re.compile(r'# %% tags=\["setup", "remove-cell"\]\n.*?(?=# %%)', re.DOTALL)


def with_setup(source: Path) -> str:
    """The text of a .py with the setup cell, which has the address of `_config.yml`, as its second cell."""
    import yaml

    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    cell = SETUP.format(address=settings["repository"]["url"].rstrip("/"))
    text = _SETUP.sub("", source.read_text(encoding="utf-8"))
    first, mark, rest = text.partition("\n# %%")
    return f"{first}\n{cell}{mark[1:]}{rest}"


def paired(source: Path) -> str:
    """The text of the .ipynb that belongs to a .py: what jupytext makes of it, with the same
    identifiers every time.
    """
    nbformat = needed("nbformat")
    notebook = read(source)
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL})
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
    return nbformat.writes(notebook) + "\n"


def sync(folder: Path = NOTEBOOKS) -> list[Path]:
    """Bring the setup cell of every .py of a folder up to date, write its .ipynb again, and return the
    files that changed.
    """
    changed = []
    for source in sorted(folder.glob("*.py")):
        for file, made in ((source, with_setup), (source.with_suffix(".ipynb"), paired)):
            text = made(source)
            if not file.is_file() or file.read_text(encoding="utf-8") != text:
                file.write_text(text, encoding="utf-8")
                changed.append(file)
    return changed
