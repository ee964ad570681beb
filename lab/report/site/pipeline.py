"""Build the site: pages and executed notebooks go to `_build/staging`, and Jupyter Book makes
`_build/html` of them.
"""

from __future__ import annotations

import hashlib
import json
import os
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
from lab.report.site import generated, glossary
from lab.report.site.executing import execute_all
from lab.report.site.tidy import tidy

ROOT = notebooks.ROOT
BUILD = ROOT / "_build"
STAGING, EXECUTED, HTML = BUILD / "staging", BUILD / "executed", BUILD / "html"
#: the address in `_config.yml` before somebody has set it
PLACEHOLDER = "OWNER/REPOSITORY"


def build() -> Path:
    """Execute the notebooks, lay out all pages, build the site and return the folder of its HTML.

    Notebooks are executed again only when something they depend on has changed, and Sphinx reads
    only changed pages again. Raises InputError when a page of `_toc.yml` has no source, a notebook
    fails, or Sphinx warns about anything.
    """
    started = time.perf_counter()
    pages = toc_pages(ROOT / "_toc.yml")
    sources = {page: page_source(page) for page in pages}
    executed = execute()
    print("Building the site ...", flush=True)
    _lay_out(sources, executed)
    _forget_if_settings_changed()
    _sphinx()
    print(
        f"Built {len(pages)} pages in {time.perf_counter() - started:.0f} s: {HTML / 'index.html'}",
        flush=True,
    )
    return HTML


def execute() -> list[Path]:
    """Execute the book's notebooks at their quick profile, those that changed; see
    `execute_all`.
    """
    print("Running the notebooks at their quick profile ...", flush=True)
    sources = map(page_source, toc_pages(ROOT / "_toc.yml"))
    return execute_all([path for path in sources if path.suffix == ".py"], EXECUTED)


def toc_pages(toc: Path) -> list[str]:
    """All pages of a table of contents in reading order, as paths without suffix."""

    def walk(node: Any) -> list[str]:
        if isinstance(node, list):
            return [page for item in node for page in walk(item)]
        found = [node[key] for key in ("root", "file") if key in node]
        return found + [
            page for key in ("parts", "chapters", "sections") for page in walk(node.get(key, []))
        ]

    if not toc.is_file():
        raise InputError(f"there is no table of contents {toc}")
    return walk(yaml.safe_load(toc.read_text(encoding="utf-8")))


def named_pages(names: Sequence[str] | None = None) -> list[str]:
    """The book's pages of these names, with or without their folder; all where none is given.

    Raises InputError for a name that no page has.
    """
    pages = toc_pages(ROOT / "_toc.yml")
    by_name = {page.rpartition("/")[2]: page for page in pages} | {page: page for page in pages}
    for name in names or ():
        if name not in by_name:
            raise unknown("page", name, [page.rpartition("/")[2] for page in pages])
    return [by_name[name] for name in names] if names else pages


def page_source(page: str, root: Path = ROOT) -> Path:
    """The file behind a page of the table of contents: Markdown, or the .py of a notebook."""
    for suffix in (".md", ".py"):
        path = root / f"{page}{suffix}"
        if path.is_file():
            return path
    raise InputError(f"the page {page} of _toc.yml has neither a .md nor a .py file")


def configuration(text: str) -> dict[str, Any]:
    """The settings of `_config.yml`, with all that follows from the one public address of the
    repository.
    """
    settings = yaml.safe_load(text)
    url = settings["repository"]["url"].rstrip("/")
    settings["repository"]["url"] = url
    if PLACEHOLDER not in url and url.startswith("https://github.com/"):
        owner, name = url.removeprefix("https://github.com/").split("/")[:2]
        site = f"https://{owner.lower()}.github.io/{name}/"
        settings.setdefault("html", {}).setdefault("baseurl", site)
    settings["sphinx"]["config"].setdefault(
        "ogp_site_url", settings.get("html", {}).get("baseurl", "")
    )
    return settings


def page_text(text: str, settings: dict[str, Any]) -> str:
    """A prose page with the repository's address and its folder name filled in."""
    url = settings["repository"]["url"]
    note = ""
    if PLACEHOLDER in url:
        note = (
            "```{note}\nThis copy of the book has no public address yet. Set `repository.url` "
            "in `_config.yml` "
            "and build again: until then the launch buttons and the `git clone` commands name a "
            "place that does not "
            "exist.\n```\n"
        )
    return (
        text.replace("@REPOSITORY@", url)
        .replace("@FOLDER@", url.rsplit("/", 1)[-1])
        .replace("@NO_ADDRESS_NOTE@\n", note)
    )


def _lay_out(sources: dict[str, Path], executed: list[Path]) -> None:
    """Fill the staging folder; a file is touched only when its content changes, so that Sphinx can
    skip it.
    """
    settings = configuration((ROOT / "_config.yml").read_text(encoding="utf-8"))
    terms = glossary.terms(ROOT / "book" / "glossary.md")
    wanted: dict[Path, bytes] = {
        Path("_config.yml"): yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).encode(),
        Path("_toc.yml"): (ROOT / "_toc.yml").read_bytes(),
    }
    for source in [
        *(path for path in sources.values() if path.suffix == ".md"),
        ROOT / "CONTRIBUTING.md",
    ]:
        text = page_text(source.read_text(encoding="utf-8"), settings)
        # what is not a chapter to read is left as it is
        chapter = source.stem in ("intro", "how_to_run", "errata")
        text = glossary.Linker(terms).link(text) if chapter else text
        wanted[source.relative_to(ROOT)] = text.encode()
    for file in [*ROOT.glob("book/*.bib"), *ROOT.glob("book/_static/**/*")]:
        if file.is_file():
            wanted[file.relative_to(ROOT)] = file.read_bytes()
    for copy in executed:
        linked = glossary.Linker(terms).notebook(_as_shown(copy))
        wanted[Path("notebooks", copy.name)] = linked
    for name, text in generated.fragments(executed).items():
        wanted[Path("book/_generated", name)] = text.encode()
    write_tree(STAGING, wanted)


def write_tree(folder: Path, wanted: dict[Path, bytes]) -> None:
    """Make a folder hold exactly the wanted files, leaving those that already have their content
    untouched.
    """
    for file in [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []:
        if file.relative_to(folder) not in wanted:
            file.unlink()
    for relative, content in wanted.items():
        target = folder / relative
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def _as_shown(executed: Path) -> bytes:
    """An executed notebook with tidy tables, and without papermill's notes, which name folders of
    this machine and change with each run.
    """
    notebook = json.loads(executed.read_text(encoding="utf-8"))
    for part in [notebook, *notebook["cells"]]:
        part["metadata"].pop("papermill", None)
        part["metadata"].pop("execution", None)
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            shown = output.get("data", {})
            if "text/html" in shown:
                shown["text/html"] = tidy("".join(shown["text/html"]))
    return json.dumps(notebook, indent=1, ensure_ascii=False).encode()


def _forget_if_settings_changed() -> None:
    """Start from nothing when settings or the list of pages changed: no page of an older book may
    stay in the site.
    """
    digest = hashlib.sha256()
    for file in (STAGING / "_config.yml", STAGING / "_toc.yml", ROOT / "requirements.lock"):
        digest.update(file.read_bytes())
    stamp = BUILD / "settings.sha256"
    if not stamp.is_file() or stamp.read_text() != digest.hexdigest():
        _forget()
        stamp.write_text(digest.hexdigest())


def _forget() -> None:
    for folder in (HTML, BUILD / ".doctrees"):
        shutil.rmtree(folder, ignore_errors=True)


def _sphinx() -> None:
    """Run Jupyter Book. Any warning fails; then the next build starts anew, because Sphinx warns
    only once per page.
    """
    command = [
        sys.executable,
        "-c",
        "from jupyter_book.cli.main import main; main()",
        "build",
        str(STAGING),
        "--path-output",
        str(ROOT),
        "-n",
        "-W",
        "--keep-going",
        "-q",
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(ROOT)},
    )
    log = BUILD / "build.log"
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode or not (HTML / "index.html").is_file():
        _forget()
        lines = [
            line
            for line in (done.stdout + done.stderr).splitlines()
            if "WARNING" in line or "ERROR" in line
        ]
        print("\n".join(lines or (done.stdout + done.stderr).splitlines()[-20:]), file=sys.stderr)
        raise InputError(
            f"Jupyter Book warned or failed ({max(1, len(lines))} lines above; all of it is in {log})"
        )
