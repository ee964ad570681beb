"""Exercises, student notebooks and their checks."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from core.errors import InputError
from core.report import classroom, notebooks

pytest.importorskip("jupytext")
nbclient = pytest.importorskip("nbclient")

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


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.py"
    path.write_text(TEXT)
    return path


def codes(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def run(notebook):
    """The outputs of the last cell with code."""
    notebook.metadata["kernelspec"] = notebooks.KERNEL
    nbclient.NotebookClient(notebook, timeout=60).execute()
    (output,) = codes(notebook)[-1].outputs
    return output


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
        if "check" in cell.metadata.get("tags", []):
            assert cell.metadata["name"] in labels
            assert "solution" in before.metadata["tags"]
            assert re.search(r"assert .*?, \(?\s*\"", cell.source, re.DOTALL), "no hint"


@every
def test_a_student_notebook_holds_no_solution_and_no_directive(source):
    for cell in classroom.student(source).cells:
        if cell.cell_type == "markdown":
            assert not re.search(
                r"\{solution\}|\{exercise\}|\{(cite:p|eq|term|doc|ref)\}`", cell.source
            )
        assert "solution" not in cell.metadata.get("tags", [])
        assert "A secret" not in cell.source


def test_pages_become_plain_markdown(tiny):
    text = "\n".join(
        cell.source for cell in classroom.student(tiny).cells if cell.cell_type == "markdown"
    )
    assert "See (one) and, a teacher, the page." in text
    assert "a = b\\tag{one}\n$$" in text
    assert "### Exercise: Twice\n\n*Easy, 5 minutes.*\n\nWhat is twice three?" in text
    assert "secret" not in text and "3 + 3" not in text


def test_an_answer_cell_keeps_names_and_loses_answers(tiny):
    answer = next(
        cell for cell in codes(classroom.student(tiny)) if "answer" in cell.metadata["tags"]
    )
    assert answer.source == (
        "import math\nsix = ...  # your answer\ndef double(number):\n    ...  # your answer"
    )


@pytest.mark.parametrize(
    ("six", "said"),
    [("...", "six has no value yet"), ("7", "three and three"), ("6", "no double yet")],
)
def test_a_check_says_what_is_missing_or_wrong_and_lets_the_notebook_go_on(tiny, six, said):
    notebook = classroom.student(tiny)
    answer = codes(notebook)[2]
    answer.source = answer.source.replace("six = ...", f"six = {six}")
    assert run(notebook).evalue == said


def test_a_right_answer_is_called_right(tiny):
    notebook = classroom.student(tiny)
    codes(notebook)[2].source = "import math\nsix = 6\ndouble = (2).__mul__"
    assert run(notebook)["data"]["text/plain"] == "'Right.'"


def test_student_notebooks_are_written(tiny, tmp_path):
    (written,) = classroom.write_students([tiny], tmp_path / "class")
    assert written.name == "tiny.ipynb" and notebooks.read(written).cells


def test_figures_and_other_chapters_of_a_student_notebook_are_beside_it(tmp_path):
    (written,) = classroom.write_students([ROOT / "notebooks" / "11_fedvck.py"], tmp_path)
    text = written.read_text(encoding="utf-8")
    (figure,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert (tmp_path / figure).read_bytes().startswith(b"<svg") and "../book" not in text
    links = re.findall(r"\]\((\d\d_[^)]*)\)", text)
    assert links and all((ROOT / "notebooks" / link).is_file() for link in links)


def test_chapters_come_in_the_order_of_the_contents():
    yaml = pytest.importorskip("yaml")
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = [page["file"] for part in contents["parts"] for page in part["chapters"]]
    wanted = [Path(file).name for file in files if file.startswith("notebooks/")]
    assert notebooks.chapters() == wanted and len(wanted) == len(SOURCES)


def test_an_equation_of_another_page_is_told_with_its_page():
    text = "See {eq}`eq:dc-mmd`, {eq}`eq:mine` and {eq}`eq:nowhere`."
    said = classroom.plain(text, {"mine"})
    assert said == "See (dc-mmd, in 10_dataset_condensation), (mine) and (nowhere)."
