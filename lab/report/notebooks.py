"""The book's notebooks: read them, run one with a reader's own parameters, keep .py and .ipynb in step.

The source of a notebook is `notebooks/NAME.py` (py:percent). Beside it lies `NAME.ipynb`, the same
cells without outputs, for Jupyter, Colab and Binder.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pydantic

from core.errors import InputError, one_line, unknown
from core.files import parsing

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def read(path: str | Path) -> Any:
    """Read a notebook (nbformat's node) from a .py or .ipynb file. InputError for what is none."""
    path = find(path)
    jupytext, nbformat = needed("jupytext"), needed("nbformat")
    with parsing(path, "a notebook"):
        if path.suffix == ".py":
            return jupytext.read(path, fmt="py:percent")
        return nbformat.read(path, as_version=4)


def needed(name: str) -> Any:
    """Import a package that only notebooks need. Raises InputError, which says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"notebooks need the package {error.name or name}: pip install -r requirements.txt"
        ) from None


def find(path: str | Path) -> Path:
    """Find the file of a notebook given by its path, by its bare name ("01_quickstart") or number."""
    path = Path(path)
    if path.is_file() and path.suffix in (".py", ".ipynb"):
        return path
    if path.parent == Path() and (NOTEBOOKS / f"{path.stem}.py").is_file():
        return NOTEBOOKS / f"{path.stem}.py"
    names = [file.stem for file in NOTEBOOKS.glob("*.py")]
    number = str(path).zfill(2)  # 3 is 03
    if len(begin := [name for name in names if name.startswith(f"{number}_")]) == 1:
        return NOTEBOOKS / f"{begin[0]}.py"
    raise unknown("notebook", str(path), names)


def chapters() -> list[str]:
    """The names of the book's notebooks in the order of its contents."""
    return re.findall(r"notebooks/(\w+)", (ROOT / "_toc.yml").read_text(encoding="utf-8"))


def title(path: Path) -> str:
    """The heading of a notebook, or its name where it has none."""
    heading = re.search(r"^# (.+)$", read(path).cells[0].source, re.MULTILINE)
    return heading[1] if heading else path.stem


def tags(cell: Any) -> list[str]:
    """The tags of a notebook's cell (nbformat's node)."""
    return cell.metadata.get("tags", [])


def parameters(path: str | Path) -> dict[str, Any]:
    """The parameters of a notebook with their defaults, from its cell tagged `parameters`."""
    defaults = {}
    cells = [cell.source for cell in read(path).cells if "parameters" in tags(cell)]
    for node in ast.parse("\n".join(cells)).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            try:
                defaults[name] = ast.literal_eval(node.value)
            except ValueError:
                raise InputError(f"the default of {name} in {path} is not a plain value") from None
    return defaults


def check_parameters(path: str | Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with the types of the notebook's defaults. InputError for unknown names, wrong types."""
    defaults = parameters(path)
    for name in given:
        if name not in defaults:
            raise unknown(f"parameter of {Path(path).stem}", name, defaults)
    return {name: _typed(name, value, defaults[name]) for name, value in given.items()}


def _typed(name: str, value: Any, default: Any) -> Any:
    """`value` in the type of `default`, of any type where that is None."""
    if default is None:
        return value
    strict = pydantic.ConfigDict(strict=True, allow_inf_nan=False)
    try:
        return pydantic.TypeAdapter(type(default), config=strict).validate_python(value)
    except pydantic.ValidationError as error:
        said = error.errors()[0]["msg"]
        raise InputError(f"{name} is {default!r} by default, not {value!r}: {said}") from None


def run_notebook(path: str | Path, parameters_given: Mapping[str, Any], output: str | Path) -> Path:
    """Execute a notebook with some of its parameters changed and save the executed copy.

    Args:
        path: a .py or .ipynb file, or the name of one of the book's notebooks.
        parameters_given: new values by name.
        output: the .ipynb file to write.

    Raises InputError, before anything runs, for an unknown parameter, for a value of the wrong type
    and for a place where no copy can be; and afterwards when a cell of the notebook fails.
    """
    source, output = find(path), Path(output)
    values = check_parameters(source, parameters_given)
    if output.suffix != ".ipynb":
        raise InputError(f"the executed notebook is a file that ends in .ipynb, not {output}")
    if output.resolve() in (source.resolve(), source.resolve().with_suffix(".ipynb")):
        raise InputError(f"{output} is the notebook itself; name another file for the copy")
    if not output.parent.is_dir():
        raise InputError(f"there is no folder {output.parent}")
    notebook = read(source)
    if values:
        stated = ", ".join(f"{name} = {value!r}" for name, value in values.items())
        note = f"*Run with {stated}. The text around the results was written for the defaults.*"
        notebook.cells.insert(0, needed("nbformat").v4.new_markdown_cell(note))
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
    """Run a notebook's cells in the folder of `source`, in a running `kernel` or a new one, and save them
    with outputs, also up to an error. InputError, naming `source`, where a cell or the kernel fails.
    """
    papermill = needed("papermill")
    notebook.metadata["kernelspec"] = KERNEL
    try:
        with contextlib.nullcontext() if kernel else patch.dict(os.environ, environment()):
            papermill.execute_notebook(
                notebook,
                str(output),
                parameters=dict(values),
                kernel_name="python3",
                cwd=None if kernel else str(source.resolve().parent),
                progress_bar=progress,
                extra_arguments=["--log-level=CRITICAL"],
                km=kernel,
            )
    except papermill.PapermillExecutionError as error:
        raise InputError(
            f"{source.name} stopped with {error.ename}: {error.evalue} (see {output})"
        ) from None
    except RuntimeError as error:  # the kernel died, as it does when memory runs out
        raise InputError(f"{source.name} stopped: {one_line(error, 200)} (see {output})") from None


def environment() -> dict[str, str]:
    """Variables by which kernels find `core` and the data wherever they start."""
    from core.data.roots import data_root

    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    path = os.pathsep.join(dict.fromkeys(paths))
    return {"PYTHONPATH": path, "FEDCON_DATA": str(data_root().resolve())}


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
    """Text of the .ipynb of a .py, as jupytext makes it, with the same identifiers every time."""
    return written(read(source))


def written(notebook: Any) -> str:
    """Text of a notebook's .ipynb, with the same identifiers every time."""
    nbformat = needed("nbformat")
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL})
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
    return nbformat.writes(notebook) + "\n"


def sync(folder: Path = NOTEBOOKS) -> list[Path]:
    """Update all setup cells of a folder, write every .ipynb, and return the changed files."""
    changed = []
    for source in sorted(folder.glob("*.py")):
        for file, made in ((source, with_setup), (source.with_suffix(".ipynb"), paired)):
            changed += [file] * update(file, made(source))
    return changed


def update(file: Path, text: str) -> bool:
    """Write a file that does not hold the text already; return whether it did not."""
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return False
    file.write_text(text, encoding="utf-8")
    return True
