"""What the build lays out: contents, settings, page texts, tables, links into the glossary."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pytest
import yaml
from bs4 import BeautifulSoup
from docutils import nodes
from docutils.utils import new_document
from hypothesis import given
from hypothesis import strategies as st
from sphinx import addnodes

from core.errors import InputError
from lab.report import notebooks
from lab.report.site import extension, generated, pipeline

ROOT = notebooks.ROOT
SETTINGS = "repository: {url: 'https://github.com/%s'}\nsphinx: {config: {}}"


def test_every_page_of_the_book_has_a_source_and_every_source_a_page():
    pages = pipeline.pages()
    assert pages[0] == "book/intro" and len(set(pages)) == len(pages)
    assert notebooks.chapters() == [Path(page).name for page in pages if "notebooks/" in page]
    sources = [*ROOT.glob("book/*.md"), *ROOT.glob("notebooks/*.py")]
    assert {str(path.relative_to(ROOT).with_suffix("")) for path in sources} == set(pages)
    assert {pipeline.source(page) for page in pages} == set(sources)


def test_an_old_address_is_no_page_and_leads_to_one():
    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    pages, moved = set(pipeline.pages()), settings["sphinx"]["config"]["redirects"]
    assert len(moved) >= 68 and not pages & set(moved)
    for page, target in moved.items():
        there = os.path.normpath(f"{page}/../{target.removesuffix('.html')}")
        assert there in pages or there in moved, page


def test_pages_are_called_by_name():
    both = ["12_fedvck_results", "notebooks/12_fedvck_results"]
    assert pipeline.pages(both) == ["notebooks/12_fedvck_results"] * 2
    with pytest.raises(InputError, match="did you mean '12_fedvck_results'"):
        pipeline.pages(["17_fedvck_result"])


def test_the_public_address_is_set_in_one_place():
    settings = pipeline.configuration(SETTINGS % "Somebody/book-of-fl/")
    url = settings["repository"]["url"]
    site = "https://somebody.github.io/book-of-fl/"
    assert url == "https://github.com/Somebody/book-of-fl"
    assert settings["html"]["baseurl"] == settings["sphinx"]["config"]["ogp_site_url"] == site
    nobodys = pipeline.configuration(SETTINGS % pipeline.PLACEHOLDER)
    assert "baseurl" not in nobodys["html"]
    note = pipeline.page_text("@NO_ADDRESS_NOTE@\n", nobodys["repository"]["url"])
    assert "no public address yet" in note
    text = pipeline.page_text("git clone @REPOSITORY@\ncd @FOLDER@\n@NO_ADDRESS_NOTE@\nend", url)
    assert text == f"git clone {url}\ncd book-of-fl\nend"


def test_a_file_is_touched_only_when_its_content_changes(tmp_path):
    pipeline.write_tree(tmp_path, {Path("a/one.md"): b"1", Path("two.md"): b"2"})
    before = (tmp_path / "a/one.md").stat().st_mtime_ns
    pipeline.write_tree(tmp_path, {Path("a/one.md"): b"1", Path("three.md"): b"3"})
    assert (tmp_path / "a/one.md").stat().st_mtime_ns == before
    assert {path.name for path in tmp_path.rglob("*.md")} == {"one.md", "three.md"}


def cells(html):
    rows = BeautifulSoup(html, "html.parser").find_all("tr")
    return [[cell.text for cell in row.find_all("td")] for row in rows if row.find("td")]


def test_counts_are_no_floats_nothing_is_a_dash_and_sentences_wrap():
    nothing, long = float("nan"), "x" * pipeline.LONG
    frame = pd.DataFrame(
        {"images": [1280.0, nothing], "share": [50.0, 61.5], "none": nothing, "said": ["y", long]}
    )
    tidy = pipeline.tidy(frame.to_html())
    assert cells(tidy) == [["1280", "50.0", "–", "y"], ["–", "61.5", "–", long]]
    assert tidy.count('<td class="long">') == 1 and pipeline.tidy(tidy) == tidy


def test_a_link_in_a_cell_and_rows_over_rows_do_not_shift_columns():
    frame = pd.DataFrame(
        {"cell": ['<a href="x">1.0</a>', "b"], "count": [2.0, 3.0], "share": [0.5, 1.0]},
        index=pd.MultiIndex.from_tuples([("a", 1.0), ("a", 2.0)]),
    )
    tidy = pipeline.tidy(frame.to_html(escape=False))
    assert cells(tidy) == [["1.0", "2", "0.5"], ["b", "3", "1.0"]]
    assert '<a href="x">1.0</a>' in tidy


@given(st.lists(st.floats(width=32), min_size=1, max_size=6))
def test_values_stay_the_same(values):
    html = pd.DataFrame({"value": values}).to_html()
    for (before,), (after,) in zip(cells(html), cells(pipeline.tidy(html)), strict=True):
        assert (after == "–") if before == "NaN" else (float(before) == float(after))


def test_an_executed_notebook_is_shown_without_papermills_notes(tmp_path):
    table = pd.DataFrame({"a": [1.0, None]}).to_html()
    output = {"output_type": "display_data", "data": {"text/html": [table]}, "metadata": {}}
    cell = {"cell_type": "code", "metadata": {"papermill": 1, "tags": []}, "outputs": [output]}
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"metadata": {"papermill": {"p": 1}}, "cells": [cell]}))
    shown = pipeline.as_shown(path).decode()
    assert "papermill" not in shown and "–" in shown and "NaN" not in shown


def test_a_frame_becomes_a_markdown_table():
    frame = pd.DataFrame({"name": ["a|b", "c"], "runs": [1, 20]})
    wanted = "| name | runs |\n| --- | --- |\n| a\\|b | 1 |\n| c | 20 |\n"
    assert generated.markdown_table(frame) == wanted


def test_terms_are_linked_at_their_first_use_in_prose_only(monkeypatch):
    known = ["client", "client drift", "condensed images", "teacher", "temperature", "ensemble"]
    monkeypatch.setattr(extension, "terms", lambda: known)
    page = new_document("page")
    role = addnodes.pending_xref("", nodes.inline("", "ensemble"), reftype="term")
    role["reftarget"] = "ensemble"
    page += nodes.section("", nodes.title("", "A client"))
    page += nodes.container("", nodes.paragraph("", "client"), classes=["cell"])
    page += nodes.paragraph("", "", role, nodes.literal("", "client"), nodes.math("", "client"))
    page += nodes.literal_block("", "temperature = 1")
    page += nodes.paragraph("", "Clients drift; condensed images, a teacher of an ensemble.")
    page += nodes.paragraph("", "The Temperatures of a client and of client drift.")
    extension.link_terms("page", page)
    linked = {one.astext(): one["reftarget"] for one in page.findall(addnodes.pending_xref)}
    assert linked == {
        "ensemble": "ensemble",
        "Clients": "client",
        "condensed images": "condensed images",
        "Temperatures": "temperature",
        "client drift": "client drift",
    }
    assert page[-2].astext() == "Clients drift; condensed images, a teacher of an ensemble."
