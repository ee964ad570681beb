"""What a page shows in Python runs as it stands."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)  # what a reader tries in a minute, on a busy machine
def test_the_programs_of_how_to_run(tmp_path, monkeypatch):
    text = (ROOT / "book" / "how_to_run.md").read_text().split("## The methods from Python")[1]
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    (tmp_path / "page.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDCON_DATA", str(tmp_path))
    page = runpy.run_path("page.py")
    assert len(page["hospitals"]) == 2 and page["record"].settings["kernel"] == "energy"
    # what has learned from condensed images alone
    assert page["task"].evaluate(page["own"])["accuracy"] > 0.5
