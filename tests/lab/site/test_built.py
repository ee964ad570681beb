"""The built site is sound: `SITE=_build/html pytest tests/lab/site/test_built.py`, or `make check`."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest

from lab import TableSpec
from lab.report.site import pipeline
from tests.lab.site.soundness import Visitor, problems, stated, styles_elsewhere

SITE = Path(os.environ.get("SITE", "no-site"))
pytestmark = pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="SITE names no site")
every = pytest.mark.parametrize("page", pipeline.pages())


@pytest.fixture(scope="module")
def visitor(chromium, served):
    return Visitor(chromium, served(SITE))


@every
def test_links_descriptions_and_sources(page):
    assert problems(SITE, page) == []


def test_styles_come_from_the_site_itself():
    assert styles_elsewhere(SITE) == []


@every
def test_a_browser_finds_nothing_wrong(visitor, page):
    assert visitor.problems(page) == []


def test_pages_do_not_contradict_each_other():
    """A command, and runs that several tables share, have one mean over as many seeds on all pages."""
    means, runs = defaultdict[object, set[str]](set), dict[str, tuple[str, str]]()
    for row in (row for page in pipeline.pages() for row in stated(SITE, page)):
        command, measure, seeds = row["command"], row.get("measure"), row["seeds"].split()[0]
        if command not in runs:
            _, _, _, address, _, profile = command.split()
            cell = TableSpec.find_cell(address, profile)
            runs[command] = cell.experiments[0].id, cell.record_metric
        means[command, measure].add(f"{row['measured']} over {seeds}")
        means[runs[command], measure, seeds].add(row["measured"])
    assert len(means) > 1000
    assert {key: of for key, of in means.items() if len(of) > 1} == {}


def test_the_theme_button_reaches_light_and_dark(visitor):
    visitor.problems("book/intro")
    state = (
        "[document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor]"
    )
    seen = {tuple(visitor.view.evaluate(state))}
    for _ in range(3):
        visitor.view.locator("button.theme-switch-button:visible").first.click()
        seen.add(tuple(visitor.view.evaluate(state)))
    assert {theme for theme, _ in seen} >= {"light", "dark"}
    assert len({colour for _, colour in seen}) >= 2


@pytest.mark.parametrize(
    ("asked", "page"),
    [
        ("federated", "04_federated_learning"),
        ("baseline", "16_baselines"),
        ("Table 11", "12_fedvck_results"),
        ("chance level", "09_attacks"),
        ("reproduce CIFAR-10", "12_fedvck_results"),
    ],
)
def test_the_search_leads_to_the_right_page(visitor, asked, page):
    visitor.view.goto(f"{visitor.address}/search.html?q={asked.replace(' ', '+')}")
    links = visitor.view.locator("#search-results ul.search li a")
    links.first.wait_for()
    first = links.evaluate_all("found => found.slice(0, 3).map(one => one.href)")
    assert any(page in link for link in first), first
