"""Exercises and student notebooks: what they ask for, what their checks say, and the index to them."""

from __future__ import annotations

import ast
import itertools
import re

import pytest

from lab.report import classroom, notebooks, students

pytest.importorskip("jupytext")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

SOURCES = sorted(notebooks.NOTEBOOKS.glob("*.py"))
every = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
IMPORTS = ast.Import | ast.ImportFrom
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
# What is twice three? (To be checked: `six`, `seven` and `double(number)`.)
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

three = 3
six, (seven, eight) = 2 * three, (7, 8)


def helper():
    """A secret."""


def double(number):
    """A secret."""
    return 2 * number


# %% name="ex-twice" tags=["check", "remove-cell"]
assert six == math.sqrt(36), "three and three"
assert seven == 7 and double(5) == 10, "no double yet"

# %% [markdown]
# The end.
'''


def test_an_exercise_is_read_with_its_effort(tiny):
    (one,) = classroom.exercises(tiny)
    assert one["text"].startswith("What is twice three? (To")
    (row,) = classroom.exercise_table([tiny]).to_dict("records")
    assert row["level"] == "easy" and row["minutes"] == "5" and row["checked"] == "yes"
    assert row["exercise"] == "[Twice](ex-twice)"
    assert row["chapter"].startswith("[") and row["chapter"].endswith("](../notebooks/tiny)")


def test_pages_become_plain_markdown(tiny):
    cells = notebooks.read(tiny).cells
    text = "\n".join(classroom.plain(c.source) for c in cells if c.cell_type == "markdown")
    assert "See (one) and, a teacher, the page." in text
    assert "a = b\\tag{one}\n$$" in text
    assert "### Exercise: Twice\n\n*Easy, 5 minutes.*\n\nWhat is twice three? (To" in text
    assert "secret" not in text and "3 + 3" not in text


def test_a_figure_keeps_the_width_that_it_has_in_the_book():
    wide = '```{figure} ../book/_static/a.svg\n:alt: So "it" is\n:width: 330px\n\nSaid.\n```'
    image = '<img src="figures/a.svg" alt="So &quot;it&quot; is"'
    assert classroom.plain(wide) == f'{image} width="330">\n\nSaid.'
    assert classroom.plain(wide.replace(":width: 330px\n", "")) == f"{image}>\n\nSaid."


def test_equations_are_told_by_their_page_and_their_place_on_it():
    assert (
        classroom.plain("See {eq}`eq:dc-mmd` and {eq}`eq:nowhere`.") == "See (5.1) and (nowhere)."
    )
    assert classroom.plain("$$\na\n$$ (eq:dc-mmd)") == "$$\na\\tag{5.1}\n$$"


def codes(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tagged(notebook, tag):
    return [cell for cell in codes(notebook) if tag in notebooks.tags(cell)]


@every
def test_exercises_of_a_page(source):
    """Each states its effort. Each check has an exercise whose text names the answers that it asks for, an
    answer before it and a hint; a student's notebook has no solution and no directive.
    """
    exercises = {one["label"]: one for one in classroom.exercises(source)}
    assert len(exercises) == source.read_text(encoding="utf-8").count("{exercise}")
    assert all(5 <= int(one["minutes"]) <= 60 and one["text"] for one in exercises.values())
    for before, cell in itertools.pairwise(notebooks.read(source).cells):
        if "check" in notebooks.tags(cell):
            assert "solution" in notebooks.tags(before)
            assert re.search(r"assert .*?, \(?\s*\"", cell.source, re.DOTALL), "no hint"
    notebook = students.student(source)
    for cell in notebook.cells:
        assert "solution" not in notebooks.tags(cell)
        if cell.cell_type == "markdown":
            assert not re.search(r"\{(solution|exercise|cite:p|eq|term|doc|ref)\}", cell.source)
    for answer, check in zip(tagged(notebook, "answer"), tagged(notebook, "check"), strict=True):
        text = exercises[check.metadata["name"]]["text"]
        asked = re.findall(r"`([A-Za-z_]\w*)(?:\([^`]*\))?`", text)
        given = re.findall(r"(?m)^(?:def )?(\w+)(?: = \.\.\.|\()", answer.source)
        assert given and set(given) <= set(asked)


def test_an_answer_cell_keeps_the_names_that_the_check_reads_and_loses_all_else(tiny):
    (answer,) = tagged(students.student(tiny), "answer")
    assert answer.source == (
        "import math\nsix = ...  # your answer\nseven = ...  # your answer\n"
        "def double(number):\n    ...  # your answer"
    )


def test_a_check_says_what_is_missing_or_wrong_and_lets_the_notebook_go_on(tiny):
    notebook = students.student(tiny)
    (answer,), (check,) = tagged(notebook, "answer"), tagged(notebook, "check")
    notebook.cells = []
    for six, seven, double in (("...", "...", "..."), ("7", "7", "..."), ("6", "7", "return 10")):
        text = answer.source.replace("six = ...", f"six = {six}")
        text = text.replace("seven = ...", f"seven = {seven}").replace("    ...", f"    {double}")
        new = nbformat.v4.new_code_cell
        notebook.cells += [new(text), new(check.source, metadata=check.metadata)]
    nbclient.NotebookClient(notebook, timeout=60).execute()
    outputs = [cell.outputs[0] for cell in notebook.cells[1::2]]
    found = [output.get("evalue") or output["data"]["text/plain"] for output in outputs]
    wanted = ("six has no value yet", "three and three", "Right.")
    assert all(said in text for said, text in zip(wanted, found, strict=True))


@every
def test_a_check_without_an_answer_says_so(source):
    """It has what the page imports, and the answer cell as a student finds it."""
    cells = codes(students.student(source))
    code = "\n".join(cell.source for cell in cells)
    imports = [part for part in ast.parse(code).body if isinstance(part, IMPORTS)]
    for answer, check in itertools.pairwise(cells):
        if "check" in notebooks.tags(check):
            space = {}
            exec("\n".join([*map(ast.unparse, imports), answer.source]), space)
            with pytest.raises(AssertionError, match=r"no value yet|no body yet"):
                exec(check.source, space)


def test_student_notebooks_are_written_with_figures_links_and_an_index(tiny, tmp_path):
    pages = [notebooks.find(name) for name in ("11_fedvck", "15_fedvck_paper_vs_released")]
    written, *_, index = students.write_students([*pages, tiny], tmp_path / "class")
    text = "\n".join(cell.source for cell in notebooks.read(written).cells)
    (figure,) = re.findall(r'<img src="([^"]+)" alt="[^"]{50,}" width="330">', text)
    assert (written.parent / figure).read_bytes().startswith(b"<svg") and "../book" not in text
    links = re.findall(r"\]\((\d\d_[^)]*)\)", text)  # others do not lie beside it
    assert set(links) == {f"{pages[1].stem}.ipynb"} and "(#" not in text and ")=\n" not in text
    text = "\n".join(cell.source for cell in notebooks.read(index).cells)
    assert index.name == "index.ipynb" and "### Others\n\n- [Tiny](tiny.ipynb)" in text


def test_the_index_leads_through_the_weeks_and_the_book_in_order():
    weeks, *parts = students.index(notebooks.NOTEBOOKS, set(notebooks.chapters()))[1:]
    links = re.findall(r"\]\((\w+)\.ipynb\)", weeks)
    assert weeks.startswith("## Four weeks") and weeks.count("\n| ") == 5
    assert links[:2] == ["01_quickstart", "04_federated_learning"]
    assert re.findall(r"\]\((\w+)\.ipynb\)", "\n".join(parts)) == notebooks.chapters()
    assert "Four weeks" not in "".join(students.index(notebooks.NOTEBOOKS, set()))


def test_a_lab_gives_an_exercise_the_time_that_it_states():
    every = (one for path in SOURCES for one in classroom.exercises(path))
    minutes = {one["label"]: int(one["minutes"]) for one in every}
    rows = re.findall(
        r"^\| (\d+) to (\d+) \|.*<(ex-[\w-]+)>`", students.PLAN.read_text("utf-8"), re.MULTILINE
    )
    assert len(rows) >= 15
    assert not [row for row in rows if int(row[1]) - int(row[0]) < minutes[row[2]]]
