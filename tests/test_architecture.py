"""The house keeps its shape: imports go down only, one file is one algorithm, `import core` needs
no heavy library.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

import core
from core import algorithms, families
from core.errors import InputError
from core.federation import Algorithm

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core"
#: the floor of each part of the package; parts of one floor do not know each other
FLOORS = {
    "errors": -2,
    "rng": -2,
    "progress": -2,
    "checks": -1,
    "files": -1,
    "replay": -1,
    "training": 0,
    "data": 0,
    "models": 0,
    "metrics": 0,
    "condensation": 1,
    "distillation": 1,
    "privacy": 1,
    "server": 2,
    "federation": 3,
    "families": 4,
    "algorithms": 5,
    "experiments": 6,
    "report": 7,
    "cli": 8,
    "__main__": 9,
}
FILES = sorted(path for path in CORE.rglob("*.py") if path != CORE / "__init__.py")


def part_of(path: Path) -> str:
    return path.relative_to(CORE).parts[0].removesuffix(".py")


def parts_imported(text: str, package: str = "core") -> set[str]:
    """The parts of `core` that a file imports, inside functions too; `package` is where relative
    imports start.
    """
    found = set()
    for node in ast.walk(ast.parse(text)):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            modules = [f"{base}.{alias.name}" for alias in node.names] if base == "core" else [base]
        found |= {module.split(".")[1] for module in modules if module.startswith("core.")}
    return found


def test_every_part_has_a_floor():
    assert {part_of(path) for path in FILES} <= set(FLOORS)


def test_what_the_package_says_of_itself_is_complete():
    """Its floors in their order, those of one floor side by side, and each family that is shared."""
    packages = {path.parent.name for path in CORE.glob("*/__init__.py")}
    listed = [re.findall("`(.*?)`", floor) for floor in core.__doc__.split(": ")[2].split(";")]
    floors = sorted({FLOORS[name] for name in packages})
    assert list(map(set, listed)) == [{p for p in packages if FLOORS[p] == f} for f in floors]
    shared = {path.stem for path in (CORE / "families").glob("*.py")} - {"__init__"}
    assert set(re.findall("`(.*?)`", families.__doc__)) == shared


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORE)))
def test_imports_go_down_only(path):
    part, package = part_of(path), ".".join(path.relative_to(ROOT).parent.parts)
    wrong = {
        other
        for other in parts_imported(path.read_text(), package)
        if other != part and FLOORS.get(other, 99) >= FLOORS[part]
    }
    assert not wrong, f"{path.relative_to(ROOT)} (floor {FLOORS[part]}) imports {wrong}"


#: lines of a file, and of a function without its docstring
LONGEST_FILE, LONGEST_FUNCTION = 410, 50


def lengths(text: str) -> dict[str, int]:
    """The lines of every function of a program, from its `def` on, without its docstring; of several
    of one name the longest.
    """
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            said = ast.get_docstring(node) is not None
            docstring = first.end_lineno - first.lineno + 1 if said else 0
            lines = node.end_lineno - node.lineno + 1 - docstring
            found[node.name] = max(lines, found.get(node.name, 0))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORE)))
def test_files_and_functions_can_be_read_at_once(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE
    long = {name: lines for name, lines in lengths(text).items() if lines > LONGEST_FUNCTION}
    assert not long, f"{path.relative_to(ROOT)}: cut {long}"


def test_a_docstring_does_not_make_a_function_long():
    text = 'def f():\n    """One.\n\n    Two.\n    """\n    return 1\n\nasync def g():\n    pass\n'
    assert lengths(text) == lengths(f"{text}\ndef f(): pass") == {"f": 2, "g": 2}


def test_the_import_finder_sees_every_form():
    text = (
        "import core.report\nfrom core import data\ndef f():\n    from core.models import "
        "b\nfrom ..server import x"
    )
    assert parts_imported(text, "core.algorithms") == {"report", "data", "models", "server"}


#: what readers and other programs call, as the design promises it
PUBLIC = {
    "core.data": "load available",
    "core.data.partition": "iid dirichlet pathological from_file",
    "core.condensation": "mmd importance selection_probabilities LatentStatistics uncertain_shift "
    "siamese_augment bilevel_step",
    "core.server": "logit_prototypes hard_negatives relational_contrastive_loss weighted_average",
    "core.distillation": "jensen_shannon class_input_importance ensemble_logits mimic_loss "
    "confidence_loss",
    "core.federation": "Message Algorithm Ledger",
    "core.experiments": "Experiment Profile Record TableSpec pending",
    "core.report": "table curves condensed_images partition_plot",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_there(module):
    missing = [
        name
        for name in PUBLIC[module].split()
        if not hasattr(importlib.import_module(module), name)
    ]
    assert missing == []


def named(text: str) -> set[str]:
    """What a program names: whole texts and the modules that it imports from packages."""
    nodes = list(ast.walk(ast.parse(text)))
    return {node.value for node in nodes if isinstance(node, ast.Constant)} | {
        alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    }


def test_a_part_of_a_word_names_nothing():
    text = 'from a import dsa\nhold("dcgan", a.dc, ["dm"])  # dc\n"""dc and dm"""'
    assert named(text) == {"dsa", "dcgan", "dm", "dc and dm"}


def test_one_file_is_one_algorithm():
    folder = CORE / "algorithms"
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert set(algorithms.names()) == files | packages and not files & packages
    assert not [
        path
        for path in folder.rglob("*.py")
        if path.stem.startswith("_") and path.stem != "__init__"
    ]
    tests = (ROOT / "tests/algorithms").glob("test_*.py")
    tested = set().union(*(named(path.read_text()) for path in tests))
    for name in algorithms.names():
        found = algorithms.find(name)
        assert issubclass(found, Algorithm) and found.__module__ == f"core.algorithms.{name}"
        assert attrs.has(found.Settings), f"{name} has no Settings"
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            settings = found.Settings()
            setattr(settings, next(iter(attrs.fields_dict(found.Settings)), "anything"), None)
        assert name in tested, f"no test in tests/algorithms names {name}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "from core.federation import Algorithm\n"
            "class First(Algorithm): ...\nclass Second(Algorithm): ...\nclass _Third(First): ...\n",
            r"odd\.py must hold one public algorithm, not 2 \(First, Second\)",
        ),
        (
            "from core.algorithms import fedavg\n"
            "class Settings(fedavg.Settings): part = 0.5\nclass Loose(fedavg.FedAvg): ...\n",
            r"odd\.py has a class Settings that Loose does not use: write Settings = Settings",
        ),
        (
            "import attrs\nfrom core.algorithms import fedavg\n"
            "@attrs.frozen(kw_only=True)\nclass Settings(fedavg.Settings): part: float = 0.5\n"
            "class Part(fedavg.FedAvg): Settings = Settings\n",
            "odd: part must be a number, not 'half'",
        ),
    ],
    ids=["two algorithms", "settings that are not used", "a setting that nothing checks"],
)
def test_what_is_odd_in_an_algorithms_file_is_named(text, message, tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text(text)
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    monkeypatch.setattr(algorithms, "names", algorithms.names.__wrapped__)
    try:
        with pytest.raises(InputError, match=message):
            algorithms.create("odd", {"part": "half"})
    finally:
        sys.modules.pop("core.algorithms.odd", None)


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if FLOORS[part_of(path)] < FLOORS["algorithms"]],
    ids=lambda path: str(path.relative_to(CORE)),
)
def test_no_lower_floor_names_an_algorithm(path):
    texts = {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not texts & set(algorithms.names())


def test_core_imports_without_plots_notebooks_and_data_packages():
    """A bare GPU machine has none of these."""
    heavy = [
        "matplotlib",
        "jupytext",
        "papermill",
        "nbformat",
        "IPython",
        "medmnist",
        "torchvision",
        "PIL",
        "sphinx",
        "playwright",
        "ray",
        "flwr",
    ]
    code = (
        f"import sys\nfor name in {heavy}: sys.modules[name] = None\n"
        "import core.__main__, core.data, core.models, core.metrics, core.federation, core.algorithms\n"
        "import core.experiments.grid, core.report, core.report.notebooks, core.report.site\n"
        "[core.algorithms.find(name) for name in core.algorithms.names()]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


#: CIFAR is published as pickles; its reader refuses everything but plain arrays, lists and texts
READS_PICKLES = CORE / "data" / "cifar.py"


def test_nothing_is_loaded_as_a_pickle():
    """A file of unknown origin must never be able to run code."""
    for path in FILES:
        tree = ast.parse(path.read_text())
        imported = {
            name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
        }
        if path == READS_PICKLES:
            assert any(
                isinstance(node, ast.FunctionDef) and node.name == "find_class"
                for node in ast.walk(tree)
            )
        else:
            assert not {"pickle", "dill", "cloudpickle", "joblib"} & imported, path
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name, keywords = (
                ast.unparse(call.func),
                {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords},
            )
            assert name not in ("pickle.load", "pickle.loads"), path
            assert name != "torch.load" or keywords.get("weights_only") is True, path
            assert name not in ("np.load", "numpy.load") or keywords.get("allow_pickle") is False, (
                path
            )
