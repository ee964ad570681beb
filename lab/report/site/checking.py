"""Check the built site: its files, then every page in a real browser where there is one."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

from core.errors import InputError
from lab.report.site import browser, static
from lab.report.site.pipeline import BUILD, HTML, ROOT, STAGING, toc_pages
from lab.report.site.serving import built, serving

#: fingerprints of the pages that the browser found sound
SOUND = BUILD / "sound.json"


def check() -> None:
    """Check the site in `_build/html` and say what was checked.

    Prints one line for each problem and raises InputError when there is any. The browser visits the
    pages that are not as they were when it last found them sound. Without a browser, or without
    playwright, the second part is skipped and says so.
    """
    started = time.perf_counter()
    pages = toc_pages(ROOT / "_toc.yml")
    found = static.problems(built(HTML), pages, STAGING)
    print(
        f"Checked the files of {len(pages)} pages: HTML, outputs, alt text, links, nothing from "
        "other servers."
    )
    if browser.missing() is not None:
        print(f"Skipped the check in a browser: {browser.missing()}.")
    elif not found:
        now = fingerprints(HTML, pages)
        before = json.loads(SOUND.read_text(encoding="utf-8")) if SOUND.exists() else {}
        fresh = [page for page in pages if before.get(page) != now[page]] or pages[:1]
        with serving() as address:
            found += browser.problems(address, fresh)
        print(
            f"Checked {len(fresh)} new or changed pages in {browser.executable()}: console, "
            "equations, search, "
            "dark mode, phone width."
        )
        if not found:
            SOUND.write_text(json.dumps(now), encoding="utf-8")
    for text in found:
        print(f"  {text}", file=sys.stderr)
    if found:
        raise InputError(
            f"the site has {len(found)} problem{'s' if len(found) > 1 else ''}, listed above"
        )
    print(
        f"The site is sound ({time.perf_counter() - started:.0f} s): {HTML / 'index.html'}   "
        "(`make serve` shows it)"
    )


def fingerprints(site: Path, pages: list[str]) -> dict[str, str]:
    """A hash for each page of its HTML, of the names and sizes of the scripts and styles, and of
    this check itself.
    """
    common = hashlib.sha256(Path(browser.__file__).read_bytes())
    for path in sorted((site / "_static").rglob("*")):
        if path.is_file():
            common.update(f"{path.relative_to(site).as_posix()} {path.stat().st_size};".encode())
    return {
        page: hashlib.sha256(common.digest() + (site / f"{page}.html").read_bytes()).hexdigest()
        for page in pages
    }
