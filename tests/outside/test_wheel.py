"""The built package, installed where there is no repository; records lie where the user is."""

import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUICK = "run --algorithm fedavg --profile quick --rounds 1 --clients 2 --set local_steps=1"


@pytest.fixture(scope="module")
def fedcon(tmp_path_factory):
    """A function that calls the installed `fedcon`, as another process in a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    source, env, here = (folder / name for name in ("source", "env", "here"))
    for name in ("core", "lab", "book"):
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("results", "__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "wheel", *alone, "-w", folder, source], check=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(env)
    (packages,) = env.glob("lib/python*/site-packages")
    subprocess.run([*pip, "--python", env, "install", "--no-compile", *alone, wheel], check=True)
    (packages / "lent.pth").write_text("\n".join(site.getsitepackages()))  # PyTorch and the others
    here.mkdir()

    def call(*arguments: str) -> subprocess.CompletedProcess:
        command = [env / "bin" / "fedcon", *arguments]
        bare = {"PATH": "/usr/bin:/bin", "HOME": str(here), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=here, env=bare, capture_output=True, text=True)

    call.here, call.packages, call.python = here, packages, env / "bin" / "python"
    return call


PAGE = f"""# %% [markdown]
# # A page

# %%
from lab.__main__ import main

print(main("{QUICK}".split()), main(["table", "fedmk/1"]), main.__code__.co_filename)
"""


def test_in_a_notebook_of_ones_own_a_run_keeps_its_record_and_tables_are_there(fedcon):
    """The table says where the records of the book are."""
    (fedcon.here / "page.py").write_text(PAGE)
    done = fedcon("notebook", "page.py", "--out", "done.ipynb")
    assert done.returncode == 0, done.stderr
    said = (fedcon.here / "done.ipynb").read_text()
    assert f"0 0 {fedcon.packages}" in said and len(list(fedcon.here.glob("results/adhoc/*"))) == 1
    assert "book's records are in its repository" in said and "FedMK" in said


def test_the_types_are_the_packages_own_and_nothing_is_left_in_the_source(fedcon):
    assert all((fedcon.packages / name / "py.typed").exists() for name in ("core", "lab"))
    assert not (ROOT / "build").exists() and not list(ROOT.glob("*.egg-info"))


def test_another_folder_named_core_is_named(fedcon):
    (fedcon.here / "core").mkdir()
    (fedcon.here / "core" / "__init__.py").touch()
    done = subprocess.run(
        [fedcon.python, "-m", "lab"], cwd=fedcon.here, capture_output=True, text=True
    )
    *_, said = done.stderr.splitlines()
    assert done.returncode == 1 and "here/core" in said and "is another package named core" in said
