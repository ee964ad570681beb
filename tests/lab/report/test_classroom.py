"""Exercises, student notebooks and their checks."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from core.errors import InputError
from lab.report import classroom, notebooks

pytest.importorskip("jupytext")

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
every = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)

TEXT = '''# %% [markdown]
# # Tiny
#
# See {eq}`eq:one` and {cite:p}`fedavg`, a {term}`teacher`, {doc}`the page <../book/intro>`.
#
# $$
# a = b
# $$ (eq:one)

# %% tags=["parameters"]
seed = 0

# %% [markdown]
# ```{exercise} Twice
# :label: ex-twice
#
# *Easy, 5 minutes.*
#
# What is twice three?
# ```
#
# ````{solution} ex-twice
# :class: dropdown
#
# ```python
# 3 + 3
# ```
# A secret.
# ````

# %% tags=["solution", "remove-cell"]
import math

six = 3 + 3


def double(number):
    """A secret."""
    return 2 * number


# %% tags=["check", "remove-cell"] name="ex-twice"
assert six == math.sqrt(36), "three and three"
assert double(5) == 10, "no double yet"

# %% [markdown]
# The end.
'''


def test_an_exercise_is_read_with_its_effort(tiny):
    (one,) = classroom.exercises(tiny)
    assert (one.label, one.title, one.level, one.minutes) == ("ex-twice", "Twice", "Easy", 5)
    assert one.text == "What is twice three?"
    (row,) = classroom.exercise_table([tiny]).to_dict("records")
    assert row["level"] == "easy" and row["minutes"] == 5 and row["checked"] == "yes"
    assert row["exercise"] == "[Twice](ex-twice)"
    assert row["chapter"].startswith("[") and row["chapter"].endswith("](../notebooks/tiny)")


def test_an_exercise_without_effort_is_named(tiny):
    tiny.write_text(TEXT.replace("Easy, 5 minutes", "Soon"))
    with pytest.raises(InputError, match=r'tiny\.py: the exercise "Twice"'):
        classroom.exercises(tiny)


@every
def test_every_exercise_states_its_effort(source):
    found = classroom.exercises(source)
    written = source.read_text(encoding="utf-8").count("{exercise}")
    assert len(found) == written
    assert all(5 <= one.minutes <= 60 and one.text for one in found)


@every
def test_every_check_has_an_exercise_and_an_answer_before_it(source):
    labels = {one.label for one in classroom.exercises(source)}
    cells = notebooks.read(source).cells
    for before, cell in itertools.pairwise(cells):
        if "check" in notebooks.tags(cell):
            assert cell.metadata["name"] in labels
            assert "solution" in notebooks.tags(before)
            assert re.search(r"assert .*?, \(?\s*\"", cell.source, re.DOTALL), "no hint"


def test_pages_become_plain_markdown(tiny):
    cells = notebooks.read(tiny).cells
    text = "\n".join(classroom.plain(c.source) for c in cells if c.cell_type == "markdown")
    assert "See (one) and, a teacher, the page." in text
    assert "a = b\\tag{one}\n$$" in text
    assert "### Exercise: Twice\n\n*Easy, 5 minutes.*\n\nWhat is twice three?" in text
    assert "secret" not in text and "3 + 3" not in text


def test_a_figure_keeps_the_width_that_it_has_in_the_book():
    wide = '```{figure} ../book/_static/a.svg\n:alt: So "it" is\n:width: 330px\n\nSaid.\n```'
    image = '<img src="figures/a.svg" alt="So &quot;it&quot; is"'
    assert classroom.plain(wide) == f'{image} width="330">\n\nSaid.'
    assert classroom.plain(wide.replace(":width: 330px\n", "")) == f"{image}>\n\nSaid."


def test_equations_are_told_by_their_page_and_their_place_on_it():
    assert (
        classroom.plain("See {eq}`eq:dc-mmd` and {eq}`eq:nowhere`.") == "See (10.1) and (nowhere)."
    )
    assert classroom.plain("$$\na\n$$ (eq:dc-mmd)") == "$$\na\\tag{10.1}\n$$"
