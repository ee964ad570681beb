"""Running a notebook with parameters: what is refused before anything runs, and one that does
run.
"""

from __future__ import annotations

import json
import os

import pytest

from core.errors import InputError
from lab.report import notebooks
from lab.report.site import executing

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
profile = "quick"
shown = "best"
dataset = "digits"
algorithm = "fedavg"
anything = None

# %%
print(rounds * 2, alpha, name, seeds)
"""


def test_the_defaults_are_read(tiny):
    found = notebooks.parameters(tiny)
    assert found == {
        "rounds": 3,
        "alpha": 0.1,
        "name": "digits",
        "fast": False,
        "seeds": [0, 1],
        "profile": "quick",
        "shown": "best",
        "dataset": "digits",
        "algorithm": "fedavg",
        "anything": None,
    }


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("rounds", "5", 5),
        ("rounds", 5, 5),
        ("alpha", "2", 2.0),
        ("alpha", 1, 1.0),
        ("fast", "true", True),
        ("fast", True, True),
        ("name", "other", "other"),
        ("seeds", "[3]", [3]),
        ("anything", "x", "x"),
        ("profile", "laptop", "laptop"),
        ("algorithm", "fedprox", "fedprox"),
    ],
)
def test_a_good_value_takes_the_type_of_its_default(tiny, name, given, value):
    found = notebooks.check_parameters(tiny, {name: given})
    assert found == {name: value} and type(found[name]) is type(value)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("round", "5", "did you mean 'rounds'"),
        ("rounds", "5.5", "whole number"),
        ("rounds", "many", "whole number"),
        ("rounds", "0", "at least 1"),
        ("rounds", True, "whole number"),
        ("alpha", "nan", "a number"),
        ("alpha", "0", "above 0"),
        ("alpha", 10**400, "a number"),
        ("alpha", float("inf"), "a number"),
        ("fast", "1", "true or false"),
        ("name", 5, "a text"),
        ("seeds", "3", "a list"),
        ("seeds", "[-1]", "at least 0"),
        ("profile", "fast", "no profile named 'fast'"),
        ("shown", "fast", "no profile named 'fast'"),
        ("dataset", "digit", "did you mean 'digits'"),
        ("dataset", "nuclei_drawn", "is for segmentation, and this page is about classification"),
        ("algorithm", "fedavgg", "did you mean 'fedavg'"),
    ],
)
def test_a_bad_parameter_is_refused_before_anything_runs(tiny, tmp_path, name, given, said):
    with pytest.raises(InputError) as caught:
        notebooks.run_notebook(tiny, {name: given}, tmp_path / "out.ipynb")
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out.ipynb").exists()


def test_the_valid_names_are_listed(tiny):
    with pytest.raises(
        InputError,
        match="known: algorithm, alpha, anything, dataset, fast, name, profile, rounds, seeds, shown",
    ):
        notebooks.check_parameters(tiny, {"zzz": 1})


def test_a_count_is_at_least_one_and_a_class_may_be_zero():
    assert (
        notebooks.check_parameters("40_knowledge_distillation", {"left_out": "0"})["left_out"] == 0
    )
    with pytest.raises(InputError, match="active must be a whole number of at least 1, not 0"):
        notebooks.check_parameters("26_fedmk_communication", {"active": "0"})


def test_a_notebook_without_parameters_knows_none(tmp_path):
    path = tmp_path / "plain.py"
    path.write_text("# %%\nprint(1)\n")
    with pytest.raises(InputError, match="there is no parameter of plain"):
        notebooks.check_parameters(path, {"rounds": 1})


def test_bad_places_are_refused(tiny, tmp_path):
    with pytest.raises(InputError, match="there is no notebook named"):
        notebooks.run_notebook("00_quickstrt", {}, tmp_path / "out.ipynb")
    with pytest.raises(InputError, match=r"ends in \.ipynb"):
        notebooks.run_notebook(tiny, {}, tmp_path / "out.txt")
    with pytest.raises(InputError, match=r"there is no folder .*such"):
        notebooks.run_notebook(tiny, {}, tmp_path / "no" / "such" / "out.ipynb")
    broken = tmp_path / "broken.ipynb"
    broken.write_text("{")
    with pytest.raises(InputError, match="is not a notebook"):
        notebooks.run_notebook(broken, {}, tmp_path / "out.ipynb")
    with pytest.raises(InputError, match="the notebook itself"):
        pair = tmp_path / "tiny.ipynb"
        pair.write_text(notebooks.paired(tiny))
        notebooks.run_notebook(pair, {}, pair)
    with pytest.raises(InputError, match="the notebook itself"):
        notebooks.run_notebook(tiny, {}, pair)


def test_the_data_of_the_folder_where_it_was_started_are_found(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "looks.py"
    path.write_text("# %%\nfrom core.data.roots import data_root\nprint(data_root())\n")
    monkeypatch.chdir(tmp_path)
    for given, meant in ((None, "data"), ("mine", "mine")):
        monkeypatch.delenv("FEDCON_DATA", raising=False)
        if given:
            monkeypatch.setenv("FEDCON_DATA", given)
        out = notebooks.run_notebook(path, {}, tmp_path / "out.ipynb")
        assert str(tmp_path.resolve() / meant) in out.read_text()
        assert os.environ.get("FEDCON_DATA") == given


def test_a_notebook_runs_with_its_parameters(tiny, tmp_path):
    out = notebooks.run_notebook(tiny, {"rounds": "21", "name": "other"}, tmp_path / "out.ipynb")
    printed = [
        "".join(output["text"])
        for cell in json.loads(out.read_text())["cells"]
        for output in cell.get("outputs", [])
    ]
    assert printed == ["42 0.1 other [0, 1]\n"]
    # a text that was written for the defaults is told from one that is computed
    first = json.loads(out.read_text())["cells"][0]
    assert first["cell_type"] == "markdown"
    assert "".join(first["source"]).startswith("*Run with rounds = 21, name = 'other'.")


def test_a_failing_cell_is_one_sentence_with_its_error(tmp_path):
    path = tmp_path / "fails.py"
    path.write_text("# %%\nprint(1 / 0)\n")
    with pytest.raises(
        InputError, match=r"fails.py stopped with ZeroDivisionError: division by zero"
    ):
        notebooks.run_notebook(path, {}, tmp_path / "out.ipynb")


def test_a_dead_kernel_is_told_in_one_sentence(tmp_path):
    path = tmp_path / "dies.py"
    path.write_text("# %%\nimport os\n\nos._exit(1)\n")
    with pytest.raises(InputError, match=r"dies.py stopped: its kernel died"):
        notebooks.run_notebook(path, {}, tmp_path / "out.ipynb")


def test_an_executed_notebook_is_kept_until_something_changes(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    (tmp_path / "requirements.lock").write_text("")
    (tmp_path / "_config.yml").write_text("repository: {url: 'https://github.com/a/b'}")
    tiny.write_text("# %%\nprint(41 + 1)\n")
    (first,) = executing.execute_all([tiny], tmp_path / "executed")
    stamp = first.stat().st_mtime_ns
    assert "42" in first.read_text() and executing.seconds(first) > 0
    executing.execute_all([tiny], tmp_path / "executed")
    assert first.stat().st_mtime_ns == stamp
    shown = ("book/results/fedvck/0123456789ab.json", "book/findings.yaml")
    for name in (*shown, "core/models/convnet.py"):
        before = executing.surroundings()
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
        assert executing.surroundings() != before, f"{name} does not reach the pages that show it"
    before = executing.surroundings()
    monkeypatch.setattr(executing.data, "present_names", lambda: ["digits", "new"])
    assert executing.surroundings() != before
    before = executing.fingerprint(tiny, "here")
    tiny.write_text("# %%\nprint(1 / 0)\n")
    assert executing.fingerprint(tiny, "here") != before != executing.fingerprint(tiny, "there")
    with pytest.raises(InputError, match=r"tiny.py stopped with ZeroDivisionError"):
        executing.execute_all([tiny], tmp_path / "executed")
