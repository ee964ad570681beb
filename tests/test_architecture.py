"""Imports go down only, one file is one algorithm, `import core` needs no heavy library."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from core import algorithms
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
    "baselines": 5,
    "algorithms": 6,
}
ENTRY = {CORE / "__init__.py", CORE / "__main__.py"}
FILES = sorted(path for path in CORE.rglob("*.py") if path not in ENTRY)
ALL = sorted(
    [*CORE.rglob("*.py"), *(ROOT / "lab").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
)


def part_of(path: Path) -> str:
    return path.relative_to(CORE).parts[0].removesuffix(".py")


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def parts_imported(nodes: list[ast.AST], package: str) -> set[str]:
    """The parts of `core`, and `lab`, that a file imports, inside functions too."""
    found = set()
    for node in nodes:
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
        found |= {"lab"} & {module.split(".")[0] for module in modules}
    return found


#: the most lines of Python that each part of the whole may have: what adds somewhere takes away
#: somewhere. They only fall
MOST_LINES = {"core": 20_000, "lab": 10_000, "benchmarks": 400, "tests": 24_000}


@pytest.mark.parametrize("part", MOST_LINES)
def test_the_whole_is_limited(part):
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / part).rglob("*.py"))
    assert lines <= MOST_LINES[part]


def test_every_part_has_a_floor():
    assert {part_of(path) for path in FILES} <= set(FLOORS)


def test_imports_go_down_only():
    wrong = {}
    for path in FILES:
        part, package = part_of(path), ".".join(path.relative_to(ROOT).parent.parts)
        others = parts_imported(nodes(path), package) - {part}
        wrong[str(path.relative_to(ROOT))] = {
            o for o in others if FLOORS.get(o, 99) >= FLOORS[part]
        }
    assert {file: others for file, others in wrong.items() if others} == {}


def test_the_import_finder_sees_every_form():
    text = (
        "import core.metrics\nfrom core import data\ndef f():\n    from core.models import "
        "b\nfrom ..server import x\nimport lab"
    )
    found = parts_imported(list(ast.walk(ast.parse(text))), "core.algorithms")
    assert found == {"metrics", "data", "models", "server", "lab"}


def texts_and_imports(path: Path) -> set[str]:
    """Whole texts in a file and the modules that it imports from packages."""
    return {node.value for node in nodes(path) if isinstance(node, ast.Constant)} | {
        alias.name
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_one_file_is_one_algorithm():
    papers, baselines = CORE / "algorithms", CORE / "baselines"
    files = [path.stem for path in [*papers.glob("*.py"), *baselines.glob("*.py")]]
    packages = [path.parent.name for path in papers.glob("*/__init__.py")]
    named_once = sorted([name for name in files if name != "__init__"] + packages)
    assert list(algorithms.names()) == named_once == sorted(set(named_once))
    assert {"fedvck", "fediod", "gddfl", "fedmk"} == {
        name for name in algorithms.names() if "algorithms" in algorithms.find(name).__module__
    }
    tests = (ROOT / "tests/algorithms").glob("test_*.py")
    tested = set().union(*map(texts_and_imports, tests))
    for name in algorithms.names():
        found = algorithms.find(name)
        assert issubclass(found, Algorithm) and found.__module__.endswith(f".{name}")
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
            "from core.baselines import fedavg\n"
            "class Settings(fedavg.Settings): part = 0.5\nclass Loose(fedavg.FedAvg): ...\n",
            r"odd\.py has a class Settings that Loose does not use: write Settings = Settings",
        ),
    ],
    ids=["two algorithms", "settings that are not used"],
)
def test_what_is_odd_in_an_algorithms_file_is_named(text, message, tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text(text)
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    monkeypatch.setattr(algorithms, "names", algorithms.names.__wrapped__)
    try:
        with pytest.raises(InputError, match=message):
            algorithms.create("odd")
    finally:
        sys.modules.pop("core.algorithms.odd", None)


def test_no_lower_floor_names_an_algorithm():
    for path in FILES:
        texts = {node.value for node in nodes(path) if isinstance(node, ast.Constant)}
        above = FLOORS[part_of(path)] >= FLOORS["baselines"]
        assert above or not texts & set(algorithms.names()), path


def test_core_imports_without_plots_notebooks_and_data_packages():
    """A bare GPU machine has none of these."""
    heavy = "matplotlib jupytext papermill nbformat IPython medmnist torchvision PIL sklearn sphinx"
    heavy = f"{heavy} playwright ray flwr".split()
    code = (
        f"import sys\nfor name in {heavy}: sys.modules[name] = None\n"
        "import lab.__main__, core.data, core.models, core.metrics, core.federation, core.algorithms\n"
        "import lab.table, lab.report, lab.report.notebooks, lab.report.site\n"
        "[core.algorithms.find(name) for name in core.algorithms.names()]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_nothing_is_loaded_as_a_pickle():
    """A file of unknown origin must never be able to run code."""
    for path in ALL:
        for node in nodes(path):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or "", *(a.name for a in node.names)]
                modules = {name.split(".")[0] for name in names}
                assert not {"pickle", "dill", "cloudpickle", "joblib"} & modules, path
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                given = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
                assert name not in ("pickle.load", "pickle.loads"), path
                assert name != "torch.load" or given.get("weights_only") is True, path
                safe = given.get("allow_pickle") is False
                assert name not in ("np.load", "numpy.load") or safe, path
