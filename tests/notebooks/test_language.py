"""How the pages are written. The limits are near what the pages have, and only fall."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: words that only this project used, each with the field's own
PRIVATE = {
    "in print, as printed, printed": r"print|prints|printed",  # the paper, reported
    "moves": r"moves?|moved|unmoved",  # update steps
    "reading": r"readings?",  # interpretation
    "rung": r"rungs?|ladders?",  # budget level
    "arm": r"arms?",  # variant
    "stands": r"stands?|stood",  # is, see
    "told": r"told|heard",  # reported
    "stand-in": r"stand-ins?",  # substitute data set
    "made-up": r"made-up",  # condensed
    "rival": r"rivals?",  # baseline
    "a guess": r"an? guess",  # chance level
}
#: how often these words may occur, how many sentences may have more than three numbers, and which share of
#: code cells may be hidden
MOST_PRIVATE, MOST_CROWDED, MOST_HIDDEN = 15, 30, 0.25
HIDDEN = {"hide-input", "hide-cell", "remove-cell", "remove-input"}
#: what is no prose: code, formulas, directives' options, links' targets, tables
_APART = re.compile(
    r"^`{3,}(?:\w+)?\n.*?^`{3,}$|^`{3,}.*?$|^:\w.*?$|^\|.*?$|^#+ .*?$|\$\$.*?\$\$|\$[^$]*\$|`[^`]+`"
    r"|(?<=\])\([^)]*\)",
    re.DOTALL | re.MULTILINE,
)
_NUMBER = re.compile(r"(?<![\w.-])\d[\d,.]*")


def cells(kind: str) -> list[dict]:
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    every = [cell for path in paths for cell in json.loads(path.read_text("utf-8"))["cells"]]
    return [cell for cell in every if cell["cell_type"] == kind]


def plain(text: str) -> str:
    """The prose of a text in Markdown."""
    return _APART.sub(" ", text)


def sentences(text: str) -> list[str]:
    parts = re.split(r"(?<=[.!?])\s+|\n\s*\n|\n\s*[-*] ", plain(text))
    return [part.strip() for part in parts]


def crowded(text: str) -> list[str]:
    return [one for one in sentences(text) if len(_NUMBER.findall(one)) > 3]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    pages = [path.read_text("utf-8") for path in sorted((ROOT / "book").glob("*.md"))]
    return pages + ["".join(cell["source"]) for cell in cells("markdown")]


def test_pages_say_the_fields_words(texts):
    prose = "\n".join(map(plain, texts)).lower()
    used = {of: len(re.findall(rf"\b(?:{form})\b", prose)) for of, form in PRIVATE.items()}
    assert sum(used.values()) <= MOST_PRIVATE, used


def test_sentences_have_few_numbers(texts):
    found = [one for text in texts for one in crowded(text)]
    assert len(found) <= MOST_CROWDED, found[:20]


def test_most_code_is_seen():
    code = cells("code")
    hidden = [cell for cell in code if HIDDEN & set(cell["metadata"].get("tags", []))]
    assert len(hidden) / len(code) <= MOST_HIDDEN


def test_the_finders_see_what_they_look_for():
    text = "# 1 2 3 4\nOf 5 runs 3 are in 2 columns of 7. It has 1 or 2.\n\n`1 2 3 4` and $5 6 7 8$"
    assert crowded(text) == ["Of 5 runs 3 are in 2 columns of 7."]
    assert "printed" not in plain("see [a page](printed) and `printed`")
