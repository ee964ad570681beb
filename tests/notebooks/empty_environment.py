"""Run a notebook where `core` is not installed, as Colab would: `make test-setup`.

A fresh environment gets PyTorch and a kernel, lent from this one because Colab has them too, and
nothing else. In an empty folder the notebook runs from its first cell, which has to fetch the
repository (this one, at its last commit) and to install the rest from the package index.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
import tempfile
import venv
from pathlib import Path

import nbclient
from packaging.requirements import Requirement

from lab.report import notebooks

LENT = ("torch", "torchvision", "ipykernel")


def closure(names: tuple[str, ...]) -> dict[str, importlib.metadata.Distribution]:
    """The installed distributions that some need, with themselves."""
    found: dict[str, importlib.metadata.Distribution] = {}
    open_ = list(names)
    while open_:
        name = open_.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # needed on another system
        for text in found[name].requires or []:
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                open_.append(one.name)
    return found


def lend(target: Path) -> None:
    """Link PyTorch, a kernel and what they need into another environment."""
    for one in closure(LENT).values():
        for top in {file.parts[0] for file in one.files or []} - {"..", "__pycache__"}:
            source = Path(str(one.locate_file(top)))
            if source.exists() and not (target / top).exists():
                (target / top).symlink_to(source)


def main(name: str) -> None:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        here, env = folder / "content", folder / "env"
        here.mkdir()
        venv.create(env, with_pip=True)
        (site,) = env.glob("lib/python*/site-packages")
        lend(site)
        spec = {"argv": [str(env / "bin" / "python"), "-m", "ipykernel_launcher", "-f"]}
        spec["argv"].append("{connection_file}")
        kernel = folder / "jupyter" / "kernels" / "empty" / "kernel.json"
        kernel.parent.mkdir(parents=True)
        kernel.write_text(json.dumps({**spec, "display_name": "empty", "language": "python"}))
        os.environ["JUPYTER_PATH"] = str(folder / "jupyter")
        os.environ.pop("PYTHONPATH", None)
        notebook = notebooks.read(notebooks.find(name))
        first = notebook.cells[1]
        address = f'    address = "{notebooks.ROOT.as_uri()}"'
        first.source = re.sub("    address = .*", address, first.source)
        first.source += "\n\nimport core\n\nprint(core.__file__)"
        nbclient.NotebookClient(
            notebook, kernel_name="empty", timeout=900, resources={"metadata": {"path": str(here)}}
        ).execute()
        where = "".join(output.get("text", "") for output in first.outputs).split()[-1]
        assert where.startswith(("fedcon-book", str(here))), where
        print(f"{name} ran with {where}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "00_quickstart")
