"""A Sphinx extension: the finished site needs no other server.

MathJax is copied from the package `sphinx-mathjax-offline`, only the parts that set TeX as HTML.
The scripts of Thebe (live code, which needs a server of its own and which Jupyter Book adds even
where it is switched off) are left out.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

COMPONENT = "tex-chtml.js"
#: what the component fetches when a page or its menu asks for it; everything else in the package is
#: another renderer
PARTS = (COMPONENT, "output/chtml/fonts/woff-v2", "input/tex/extensions", "a11y", "sre", "ui")


def mathjax_folder() -> Path:
    """Where the installed MathJax lies."""
    spec = importlib.util.find_spec("sphinx-mathjax-offline")
    if spec is None or spec.origin is None:
        raise ImportError("the package sphinx-mathjax-offline is not installed")
    return Path(spec.origin).parent / "static" / "mathjax"


def copy_mathjax(target: Path) -> None:
    """Copy the parts of MathJax that the site uses, unless they are there."""
    source = mathjax_folder()
    for part in PARTS:
        if (source / part).is_dir():
            shutil.copytree(source / part, target / part, dirs_exist_ok=True)
        elif (source / part).is_file():
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / part, target / part)


def _finished(app: Any, exception: Exception | None) -> None:
    target = Path(app.outdir, "_static", "mathjax")
    if exception is None and not (target / COMPONENT).is_file():
        copy_mathjax(target)
    if exception is None:
        remove_source_maps(Path(app.outdir))


def remove_source_maps(site: Path) -> None:
    """Take the maps of scripts and styles out of a site, and the lines that name them: only who
    mends those scripts needs them.
    """
    for file in site.rglob("*.map"):
        file.unlink()
        owner = file.with_suffix("")
        if owner.is_file():
            lines = owner.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if "sourceMappingURL=" not in line[:60]]
            owner.write_text("".join(kept), encoding="utf-8")


def _without_thebe(
    app: Any, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    def is_thebe(script: Any) -> bool:
        attributes = getattr(script, "attributes", {})
        return "thebe" in str(getattr(script, "filename", script)).lower() or "THEBE" in str(
            attributes.get("body", "")
        )

    context["script_files"] = [
        script for script in context.get("script_files", []) if not is_thebe(script)
    ]


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.config.mathjax_path = f"mathjax/{COMPONENT}"
    app.connect("html-page-context", _without_thebe, priority=900)
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
