"""What the build lays out: contents, settings, page texts, and files touched only when they
change.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import yaml

from core.errors import InputError
from lab.report.site import generated, glossary, selfcontained
from lab.report.site import pipeline as build

ROOT = Path(__file__).parents[2]
SETTINGS = """
repository: {url: "https://github.com/%s"}
sphinx: {config: {}}
"""


def test_pages_come_in_reading_order(tmp_path):
    toc = tmp_path / "_toc.yml"
    toc.write_text(
        yaml.safe_dump(
            {
                "root": "a",
                "parts": [
                    {"chapters": [{"file": "b", "sections": [{"file": "c"}]}]},
                    {"chapters": [{"file": "d"}]},
                ],
            }
        )
    )
    assert build.toc_pages(toc) == ["a", "b", "c", "d"]
    with pytest.raises(InputError, match="no table of contents"):
        build.toc_pages(tmp_path / "none.yml")


def test_pages_are_called_by_name():
    assert build.named_pages() == build.toc_pages(ROOT / "_toc.yml")
    both = ["17_fedvck_results", "notebooks/17_fedvck_results"]
    assert build.named_pages(both) == ["notebooks/17_fedvck_results"] * 2
    with pytest.raises(InputError, match="did you mean '17_fedvck_results'"):
        build.named_pages(["17_fedvck_result"])


def test_every_page_of_the_book_has_a_source_and_every_source_a_page():
    pages = build.toc_pages(ROOT / "_toc.yml")
    assert len(set(pages)) == len(pages)
    assert all(build.page_source(page).is_file() for page in pages)
    sources = [*ROOT.glob("book/*.md"), *ROOT.glob("notebooks/*.py")]
    assert {str(path.relative_to(ROOT).with_suffix("")) for path in sources} == set(pages)


def test_a_page_without_source_is_named(tmp_path):
    with pytest.raises(InputError, match="chapter/gone"):
        build.page_source("chapter/gone", tmp_path)


def test_the_public_address_is_set_in_one_place():
    settings = build.configuration(SETTINGS % "Somebody/book-of-fl/")
    assert settings["repository"]["url"] == "https://github.com/Somebody/book-of-fl"
    assert (
        settings["html"]["baseurl"]
        == settings["sphinx"]["config"]["ogp_site_url"]
        == "https://somebody.github.io/book-of-fl/"
    )
    text = build.page_text("git clone @REPOSITORY@\ncd @FOLDER@\n@NO_ADDRESS_NOTE@\nend", settings)
    assert text == "git clone https://github.com/Somebody/book-of-fl\ncd book-of-fl\nend"


def test_without_an_address_the_page_says_so():
    settings = build.configuration(SETTINGS % build.PLACEHOLDER)
    assert "baseurl" not in settings.get("html", {})
    assert "no public address yet" in build.page_text("@NO_ADDRESS_NOTE@\n", settings)


def test_a_file_is_touched_only_when_its_content_changes(tmp_path):
    build.write_tree(tmp_path, {Path("a/one.md"): b"1", Path("two.md"): b"2"})
    before = (tmp_path / "a/one.md").stat().st_mtime_ns
    build.write_tree(tmp_path, {Path("a/one.md"): b"1", Path("three.md"): b"3"})
    assert (tmp_path / "a/one.md").stat().st_mtime_ns == before
    assert {path.name for path in tmp_path.rglob("*.md")} == {"one.md", "three.md"}


def test_a_frame_becomes_a_markdown_table():
    frame = pd.DataFrame({"name": ["a|b", None], "runs": [1, 20]})
    assert (
        generated.markdown_table(frame)
        == "| name | runs |\n|---|---:|\n| a\\|b | 1 |\n| – | 20 |\n"
    )


def test_mathjax_is_copied_without_the_other_renderers(tmp_path):
    pytest.importorskip("sphinx-mathjax-offline")
    selfcontained.copy_mathjax(tmp_path)
    assert (tmp_path / selfcontained.COMPONENT).stat().st_size > 500_000
    assert list(tmp_path.glob("output/chtml/fonts/woff-v2/*.woff"))
    assert not (tmp_path / "tex-svg.js").exists()


def test_source_maps_and_the_lines_that_name_them_are_taken_out(tmp_path):
    script, names = tmp_path / "a" / "b.js", tmp_path / "a" / "b.js.map"
    script.parent.mkdir()
    script.write_text("call();\n//# sourceMappingURL=b.js.map\n")
    names.write_text("{}")
    selfcontained.remove_source_maps(tmp_path)
    assert not names.exists() and script.read_text() == "call();\n"


def test_terms_are_linked_at_their_first_use_in_prose_only():
    linker = glossary.Linker(["client", "condensed images", "teacher", "temperature"])
    text = (
        "# A client\n\nOf `client` and $client$, [a client](x) and {term}`teacher`: a client, the client,\n"
        "Condensed images of clients. A teacher.\n\n```python\ntemperature = 1\n```\n"
        "$$\ntemperature\n$$\n| client |\n\nThe temperatures.\n"
    )
    assert linker.link(text) == (
        "# A client\n\nOf `client` and $client$, [a client](x) and {term}`teacher`: a "
        "{term}`client`, the client,\n{term}`Condensed images <condensed images>` of clients. A teacher."
        "\n\n```python\ntemperature = 1\n```\n$$\ntemperature\n$$\n| client |\n\n"
        "The {term}`temperatures <temperature>`.\n"
    )
    assert linker.link("A client with condensed images.") == "A client with condensed images."


def test_the_terms_are_those_of_the_glossary():
    found = glossary.terms(ROOT / "book" / "glossary.md")
    assert "client drift" in found and "verdict" in found and "Fréchet distance" in found
