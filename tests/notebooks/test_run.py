"""A notebook with parameters: what is refused before anything runs, and one that runs."""

from __future__ import annotations

import json
import os

import pytest

from lab.report import notebooks
from tests.sentences import refused

pytest.importorskip("papermill")
pytest.importorskip("jupytext")

TEXT = """# %% [markdown]
# # Tiny

# %% tags=["parameters"]
rounds: int = 3
alpha = 0.1
name = "digits"
fast = False
seeds = [0, 1]
anything = None

# %%
print(rounds * 2, alpha, name, seeds)
"""


def test_the_defaults_are_read(tiny):
    found = notebooks.parameters(tiny)
    assert found.pop("anything") is None
    wanted = {"rounds": 3, "alpha": 0.1, "name": "digits", "fast": False, "seeds": [0, 1]}
    assert found == wanted and notebooks.parameters("01_quickstart")["profile"] == "quick"


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("rounds", 5, 5),
        ("alpha", 1, 1.0),
        ("fast", True, True),
        ("name", "other", "other"),
        ("seeds", [3], [3]),
        ("anything", "x", "x"),
    ],
)
def test_a_good_value_takes_the_type_of_its_default(tiny, name, given, value):
    checked = notebooks.check_parameters(tiny, {name: given})
    assert checked == {name: value} and type(checked[name]) is type(value)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("round", 5, "did you mean 'rounds'"),
        ("zzz", 1, "known: alpha, anything, fast, name, rounds, seeds"),
        ("rounds", 5.5, "valid integer"),
        ("rounds", True, "valid integer"),
        ("alpha", float("nan"), "finite number"),
        ("alpha", 10**400, "valid number"),
        ("fast", 1, "valid boolean"),
        ("name", 5, "valid string"),
        ("seeds", 3, "valid list"),
    ],
)
def test_a_bad_parameter_is_refused_before_anything_runs(tiny, tmp_path, name, given, said):
    refused(said, notebooks.run_notebook, tiny, {name: given}, tmp_path / "out.ipynb")
    assert not (tmp_path / "out.ipynb").exists()


def test_bad_places_are_refused(tiny, tmp_path):
    broken, pair = tmp_path / "broken.ipynb", tmp_path / "tiny.ipynb"
    broken.write_text("[" * 10**5)
    pair.write_text(notebooks.paired(tiny))
    for page, out, reason in (
        ("00_quickstrt", tmp_path / "out.ipynb", "no notebook named"),
        (tiny, tmp_path / "out.txt", r"ends in \.ipynb"),
        (tiny, tmp_path / "no" / "such" / "out.ipynb", "no folder"),
        (broken, tmp_path / "out.ipynb", "cannot be read as a notebook"),
        (pair, pair, "the notebook itself"),
        (tiny, pair, "the notebook itself"),
    ):
        refused(reason, notebooks.run_notebook, page, {}, out)


def test_the_data_of_the_folder_where_it_was_started_are_found(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "looks.py"
    path.write_text("# %%\nimport os\nprint(os.environ['FEDCON_DATA'])\n")
    monkeypatch.chdir(tmp_path)
    for given, meant in ((None, "data"), ("mine", "mine")):
        monkeypatch.delenv("FEDCON_DATA", raising=False)
        if given:
            monkeypatch.setenv("FEDCON_DATA", given)
        out = notebooks.run_notebook(path, {}, tmp_path / "out.ipynb")
        assert str(tmp_path.resolve() / meant) in out.read_text()
        assert os.environ.get("FEDCON_DATA") == given


def test_a_notebook_runs_with_its_parameters(tiny, tmp_path):
    """A text that was written for the defaults is told from one that is computed."""
    out = notebooks.run_notebook(tiny, {"rounds": 21, "name": "other"}, tmp_path / "out.ipynb")
    first, *cells = json.loads(out.read_text())["cells"]
    printed = ["".join(output["text"]) for cell in cells for output in cell.get("outputs", [])]
    assert printed == ["42 0.1 other [0, 1]\n"] and first["cell_type"] == "markdown"
    assert "".join(first["source"]).startswith("*Run with rounds = 21, name = 'other'.")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print(1 / 0)", "fails.py stopped with ZeroDivisionError: division by zero"),
        ("import os; os._exit(1)", "Kernel died"),
    ],
)
def test_a_failing_cell_is_one_sentence_with_its_error(tmp_path, code, said):
    path = tmp_path / "fails.py"
    path.write_text(f"# %%\n{code}\n")
    refused(said, notebooks.run_notebook, path, {}, tmp_path / "out.ipynb")
