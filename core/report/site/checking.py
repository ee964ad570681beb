"""Check the built site: its files, then every page in a real browser where there is one."""

from __future__ import annotations

import sys
import time

from core.errors import InputError
from core.report.site import browser, static
from core.report.site.pipeline import HTML, ROOT, STAGING, toc_pages
from core.report.site.serving import serving


def check() -> None:
    """Check the site in `_build/html` and say what was checked.

    Prints one line for each problem and raises InputError when there is any. Without a browser, or without playwright,
    the second part is skipped and says so.
    """
    started = time.perf_counter()
    pages = toc_pages(ROOT / "_toc.yml")
    found = static.problems(HTML, pages, STAGING)
    print(f"Checked the files of {len(pages)} pages: HTML, outputs, alt text, links, nothing from other servers.")
    if browser.missing() is not None:
        print(f"Skipped the check in a browser: {browser.missing()}.")
    elif not found:
        with serving() as address:
            found += browser.problems(address, pages)
        print(
            f"Checked {len(pages)} pages in {browser.executable()}: console, equations, search, dark mode, phone width."
        )
    for text in found:
        print(f"  {text}", file=sys.stderr)
    if found:
        raise InputError(f"the site has {len(found)} problem{'s' if len(found) > 1 else ''}, listed above")
    print(f"The site is sound ({time.perf_counter() - started:.0f} s): {HTML / 'index.html'}   (`make serve` shows it)")
