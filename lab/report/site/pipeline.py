"""Build the site: pages and executed notebooks go to `_build/staging`, and Jupyter Book makes
`_build/html` of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from core.errors import InputError, unknown
from lab.report import notebooks
from lab.report.site import generated
from lab.report.site.executing import execute_all

ROOT = notebooks.ROOT
BUILD = ROOT / "_build"
STAGING, EXECUTED, HTML = BUILD / "staging", BUILD / "executed", BUILD / "html"
#: the address in `_config.yml` before somebody has set it
PLACEHOLDER = "OWNER/REPOSITORY"
_NO_ADDRESS = """```{note}
This copy of the book has no public address yet. Set `repository.url` in `_config.yml`, run `make sync`
and build again: until then the launch buttons and the `git clone` commands name a place that does not
exist.
```
"""
#: from so many characters on the text of a table's cell is wrapped
LONG = 24


def build() -> Path:
    """Execute what changed, lay out all pages, build the site; return its folder. InputError for a
    notebook that fails, or any warning.
    """
    started = time.perf_counter()
    print("Running the notebooks at their quick profile ...", flush=True)
    sources = map(source, pages())
    executed = execute_all([path for path in sources if path.suffix == ".py"], EXECUTED)
    print("Building the site ...", flush=True)
    lay_out(executed)
    _sphinx()
    seconds = time.perf_counter() - started
    print(f"Built {len(pages())} pages in {seconds:.0f} s: {HTML / 'index.html'}", flush=True)
    return HTML


def pages(names: Sequence[str] | None = None) -> list[str]:
    """All pages of the table of contents in reading order, as paths without suffix; or those of these
    names, with or without their folder. Raises InputError for a name that no page has.
    """
    from sphinx_external_toc.parsing import parse_toc_yaml

    every = list(parse_toc_yaml(ROOT / "_toc.yml"))
    by_name = {page.rpartition("/")[2]: page for page in every} | {page: page for page in every}
    for name in names or ():
        if name not in by_name:
            raise unknown("page", name, [page.rpartition("/")[2] for page in every])
    return [by_name[name] for name in names] if names else every


def source(page: str) -> Path:
    """The file behind a page of the table of contents: Markdown, or the .py of a notebook."""
    path = ROOT / f"{page}.md"
    return path if path.is_file() else path.with_suffix(".py")


def configuration(text: str) -> dict[str, Any]:
    """Settings of `_config.yml`, with all that follows from the repository's public address."""
    settings = yaml.safe_load(text)
    url = settings["repository"]["url"] = settings["repository"]["url"].rstrip("/")
    html, config = settings.setdefault("html", {}), settings["sphinx"]["config"]
    if PLACEHOLDER not in url and url.startswith("https://github.com/"):
        owner, name = url.removeprefix("https://github.com/").split("/")[:2]
        html.setdefault("baseurl", f"https://{owner.lower()}.github.io/{name}/")
    else:  # buttons that would lead nowhere
        settings.pop("launch_buttons", None)
        html |= {"use_repository_button": False, "use_issues_button": False}
    config.setdefault("ogp_site_url", html.get("baseurl", ""))
    return settings


def page_text(text: str, url: str) -> str:
    """A prose page with the repository's address and its folder name filled in."""
    note = _NO_ADDRESS if PLACEHOLDER in url else ""
    text = text.replace("@NO_ADDRESS_NOTE@\n", note)
    return text.replace("@REPOSITORY@", url).replace("@FOLDER@", url.rsplit("/", 1)[-1])


def lay_out(executed: list[Path]) -> None:
    """Fill the staging folder with all that Jupyter Book reads."""
    settings = configuration((ROOT / "_config.yml").read_text(encoding="utf-8"))
    wanted: dict[Path, bytes] = {
        Path("_config.yml"): yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).encode(),
        Path("_toc.yml"): (ROOT / "_toc.yml").read_bytes(),
    }
    prose = [path for path in map(source, pages()) if path.suffix == ".md"]
    for path in prose:
        text = page_text(path.read_text(encoding="utf-8"), settings["repository"]["url"])
        wanted[path.relative_to(ROOT)] = text.encode()
    for path in [*ROOT.glob("book/*.bib"), *ROOT.glob("book/_static/*")]:
        wanted[path.relative_to(ROOT)] = path.read_bytes()
    for path in executed:
        wanted[Path("notebooks", path.name)] = as_shown(path)
    for name, text in generated.fragments().items():
        wanted[Path("book/_generated", name)] = text.encode()
    write_tree(STAGING, wanted)


def write_tree(folder: Path, wanted: dict[Path, bytes]) -> None:
    """Make a folder hold exactly these files; unchanged ones stay untouched, for Sphinx to skip."""
    for file in [path for path in folder.rglob("*") if path.is_file()]:
        if file.relative_to(folder) not in wanted:
            file.unlink()
    for relative, content in wanted.items():
        target = folder / relative
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def as_shown(executed: Path) -> bytes:
    """An executed notebook with tidy tables and without papermill's notes on this machine."""
    notebook = json.loads(executed.read_text(encoding="utf-8"))
    for part in [notebook, *notebook["cells"]]:
        part["metadata"].pop("papermill", None)
        part["metadata"].pop("execution", None)
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            html = "".join(shown.get("text/html", ""))
            if '<table border="1" class="dataframe">' in html:
                shown["text/html"] = tidy(html)
    return json.dumps(notebook, indent=1, ensure_ascii=False).encode()


def tidy(html: str) -> str:
    """Tables of pandas with a dash for NaN, whole numbers without zeros behind the point, and the class
    `long` where a cell holds a long text.
    """
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(html, "html.parser")
    for table in soup.select('table.dataframe[border="1"]'):
        rows = [row.find_all("td") for row in table.find_all("tr")]
        width = max(map(len, rows), default=0)
        for column in zip(*(row for row in rows if len(row) == width), strict=True):
            texts = [cell.get_text() for cell in column]
            whole = all(re.fullmatch(r"-?\d+\.0+", text) for text in texts if text != "NaN")
            for cell, text in zip(column, texts, strict=True):
                if text == "NaN":
                    cell.string = "–"
                elif whole:
                    cell.string = text.split(".")[0]
                elif len(text) >= LONG:
                    cell["class"] = "long"
    return str(soup)


def _sphinx() -> None:
    """Run Jupyter Book. A warning fails, and the next build reads all pages, to warn again."""
    shutil.rmtree(HTML, ignore_errors=True)  # no page of an older book may stay in the site
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build"]
    done = subprocess.run(
        [*command, str(STAGING), "--path-output", str(ROOT), "-n", "-W", "-q", "--keep-going"],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(ROOT)},
    )
    log = BUILD / "build.log"
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode or not (HTML / "index.html").is_file():
        shutil.rmtree(BUILD / ".doctrees", ignore_errors=True)
        lines = log.read_text(encoding="utf-8").splitlines()
        problems = [line for line in lines if "WARNING" in line or "ERROR" in line] or lines[-20:]
        print("\n".join(problems), file=sys.stderr)
        raise InputError(f"Jupyter Book warned or failed, see above; all of it is in {log}")
