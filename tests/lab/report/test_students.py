"""Student notebooks: what they ask for, what their checks say, and the index that leads to them."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from core.errors import InputError
from lab.report import classroom, course, notebooks, students

pytest.importorskip("jupytext")
nbclient = pytest.importorskip("nbclient")

SOURCES = sorted(notebooks.NOTEBOOKS.glob("*.py"))
every = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
TEXT = '''# %% [markdown]
# # Tiny

# %% [markdown]
# ```{exercise} Twice
# :label: ex-twice
#
# *Easy, 5 minutes.*
#
# What is twice three? (To be checked: `six`, `seven` and `double(number)`.)
# ```

# %% tags=["solution", "remove-cell"]
import math

three = 3
six, (seven, eight) = 2 * three, (7, 8)


def helper():
    """A secret."""


def double(number):
    """A secret."""
    return 2 * number


# %% tags=["check", "remove-cell"] name="ex-twice"
assert six == math.sqrt(36), "three and three"
assert seven == 7 and double(5) == 10, "no double yet"
'''


def codes(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tagged(notebook, tag):
    return [cell for cell in codes(notebook) if tag in classroom.tags(cell)]


def run(notebook):
    """The outputs of the last cell with code."""
    notebook.metadata["kernelspec"] = notebooks.KERNEL
    nbclient.NotebookClient(notebook, timeout=60).execute()
    (output,) = codes(notebook)[-1].outputs
    return output


def names(code, *contexts):
    """The names that a piece of code reads (`ast.Load`) or gives a value to (`ast.Store`)."""
    nodes = list(ast.walk(ast.parse(code)))
    found = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, contexts)}
    if ast.Store in contexts:
        found |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        parts = (n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom))
        found |= {(a.asname or a.name).split(".")[0] for part in parts for a in part.names}
    return found


def behind(cells, wanted):
    """Those of some pieces of code that lead to the wanted names, in their order."""
    kept = []
    for code in reversed(cells):
        if names(code, ast.Store) & wanted:
            kept.insert(0, code)
            wanted = wanted | names(code, ast.Load)
    return kept


@functools.cache
def around(source):
    """Each exercise with a check: its label, the code of the page before it, solution and check."""
    found, before = [], []
    for cell in codes(notebooks.read(source)):
        if "check" in classroom.tags(cell):
            found.append((cell.metadata["name"], before[:-1], before[-1], cell.source))
        before = [*before, cell.source]
    return found


CHECKED = [(path, *one) for path in SOURCES for one in around(path)]
#: answers as the solutions print them
PRINTED = {
    "ex-vckb-work": {"kept_one": ("124", 124), "kept_all": ("133", 133)},
    "ex-dc-noise": {"beyond": ("32%", 32)},
    "ex-vck-ratio": {"largest_printed": ("2.35", 2.35), "largest_released": ("1.78", 1.78)},
    "ex-comm-even": {"even_share": ("8.3%", 0.083)},
    "ex-vckr-nine": {"points_behind": ("one and a half", 1.5)},
    "ex-gdd-post": {"bytes_by_post": ("30.1 million", 30.1e6)},
    "ex-ior-choice": {"gain": ("one and a half", 1.5)},
    "ex-iodr-rank": {"first_in_three": ("once in two hundred", 1 / 200)},
    "ex-vckm-walk": {"same_rate": ("0.005", 0.005)},
    "ex-gddw-price": {"price": ("18.8", 18.8)},
    "ex-robust-lie": {"least_lie": ("nine", 9), "kept_share": ("eight tenths", 0.8)},
    "ex-tuning-two": {"points_ahead": ("2.2", 2.2)},
    "ex-tuning-size": {"standard_error": ("0.016", 0.016)},
}


@every
def test_a_student_notebook_holds_no_solution_and_no_directive(source):
    for cell in students.student(source).cells:
        if cell.cell_type == "markdown":
            assert not re.search(
                r"\{solution\}|\{exercise\}|\{(cite:p|eq|term|doc|ref)\}`", cell.source
            )
            assert not re.search(r"\(\(\d\d\.\d+\)", cell.source), "brackets within brackets"
        assert "solution" not in cell.metadata.get("tags", [])


def test_an_answer_cell_keeps_the_names_that_the_text_has_and_loses_all_else(tiny):
    (answer,) = tagged(students.student(tiny), "answer")
    assert answer.source == (
        "import math\nsix = ...  # your answer\nseven = ...  # your answer\n"
        "def double(number):\n    ...  # your answer"
    )


def test_an_exercise_must_name_what_its_check_asks_for(tiny):
    tiny.write_text(TEXT.replace("`six`, ", ""))
    with pytest.raises(InputError, match=r"ex-twice must name what its check asks for: six$"):
        students.student(tiny)
    tiny.write_text(re.sub("To be checked: .*", "", TEXT).replace("assert seven", "assert 7"))
    with pytest.raises(InputError, match="must name"):
        students.student(tiny)


@pytest.mark.parametrize(
    ("six", "said"),
    [
        ("...", "six has no value yet"),
        ("'6'", "six is a text; a number is asked for, or what else the exercise names"),
        ("7", "three and three"),
        ("6", "no double yet"),
    ],
)
def test_a_check_says_what_is_missing_or_wrong_and_lets_the_notebook_go_on(tiny, six, said):
    notebook = students.student(tiny)
    (answer,) = tagged(notebook, "answer")
    answer.source = answer.source.replace("six = ...", f"six = {six}").replace(
        "seven = ...", "seven = 7"
    )
    assert run(notebook).evalue == said


def test_a_right_answer_is_called_right(tiny):
    notebook = students.student(tiny)
    tagged(notebook, "answer")[0].source = "import math\nsix, seven = 6, 7\ndouble = (2).__mul__"
    assert run(notebook)["data"]["text/plain"] == "'Right.'"


@pytest.mark.parametrize(
    ("source", "label", "page"), [one[:3] for one in CHECKED], ids=[one[1] for one in CHECKED]
)
def test_a_check_without_an_answer_says_so(source, label, page):
    cells = codes(students.student(source))
    at = next(k for k, cell in enumerate(cells) if cell.metadata.get("name") == label)
    space = {}
    for part in ast.parse("\n".join(page)).body:
        if isinstance(part, ast.Import | ast.ImportFrom):
            exec(ast.unparse(part), space)
    exec(cells[at - 1].source, space)
    with pytest.raises(AssertionError, match=r"no value yet|no body yet"):
        exec(cells[at].source, space)


@pytest.mark.parametrize("label", PRINTED)
def test_a_check_accepts_an_answer_as_the_solution_prints_it(label):
    """That it accepts the solution itself is seen when the book runs both."""
    ((source, _, page, solution, check),) = (one for one in CHECKED if one[1] == label)
    code, space = f"{solution}\n{check}", {}
    for before in behind(page, names(code, ast.Load) - names(code, ast.Store)):
        exec(before, space)
    exec(solution, space)
    text = source.read_text(encoding="utf-8").split("{solution} " + label)[1].split("# %%")[0]
    for name, (printed, value) in PRINTED[label].items():
        assert printed in " ".join(text.replace("#", "").split())
        exec(check, {**space, name: value})


def test_student_notebooks_are_written_with_an_index(tiny, tmp_path):
    written, index = students.write_students([tiny], tmp_path / "class")
    assert written.name == "tiny.ipynb" and notebooks.read(written).cells
    text = "\n".join(cell.source for cell in notebooks.read(index).cells)
    assert index.name == "index.ipynb" and "[Tiny](tiny.ipynb)" in text and "Week" not in text
    assert index not in students.write_students([], tmp_path / "class")[:-1]


def test_figures_and_other_chapters_of_a_student_notebook_are_beside_it(tmp_path):
    pages = [notebooks.find(name) for name in ("11_fedvck", "08_fedvck_server")]
    alone, _ = students.write_students(pages[:1], tmp_path / "alone")
    source = "\n".join(cell.source for cell in notebooks.read(alone).cells)
    assert not re.findall(r"\]\(\d\d_", source)  # no page lies beside it
    written, *_ = students.write_students(pages, tmp_path)
    text = "\n".join(cell.source for cell in notebooks.read(written).cells)
    (figure,) = re.findall(r'<img src="([^"]+)" alt="[^"]{50,}" width="330">', text)
    assert (tmp_path / figure).read_bytes().startswith(b"<svg") and "../book" not in text
    links = re.findall(r"\]\((\d\d_[^)]*)\)", text)
    assert set(links) == {"08_fedvck_server.ipynb"} and "(#" not in text and ")=\n" not in text


def test_the_index_leads_through_the_weeks_and_the_book_in_order(tmp_path):
    for name in notebooks.chapters():
        (tmp_path / f"{name}.ipynb").write_bytes(
            (notebooks.NOTEBOOKS / f"{name}.ipynb").read_bytes()
        )
    cells = [cell.source for cell in notebooks.read(course.write_index(tmp_path)).cells]
    weeks = [text for text in cells if text.startswith("## Week")]
    links = [re.findall(r"\]\((\w+)\.ipynb\)", text) for text in weeks]
    assert [text[:9] for text in weeks] == [f"## Week {k}" for k in (1, 2, 3, 4)]
    assert links[0][:2] == ["00_quickstart", "02_reference_methods"]
    assert links[1][3:6] == ["10_dataset_condensation", "07_condensed_images", "11_fedvck"]
    assert links[1][-2:] == ["08_fedvck_server", "14_fedvck_communication"]
    after = cells[cells.index(weeks[-1]) + 1 :]
    assert re.findall(r"\]\((\w+)\.ipynb\)", "\n".join(after)) == notebooks.chapters()
    assert "[FedIOD: the student](35_fediod_student.ipynb)" in "\n".join(after)


def test_a_lab_gives_an_exercise_the_time_that_it_states():
    minutes = {one.label: one.minutes for path in SOURCES for one in classroom.exercises(path)}
    sheets = re.findall(
        r"^\| (\d+) to (\d+) \|.*<(ex-[\w-]+)>`", Path(course.PLAN).read_text(), re.MULTILINE
    )
    assert len(sheets) > 15
    assert not [row for row in sheets if int(row[1]) - int(row[0]) < minutes[row[2]]]
