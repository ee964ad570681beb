"""What a page shows in Python runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)  # what a reader tries in a minute, on a busy machine
def test_the_programs_of_how_to_run(tmp_path):
    text = (ROOT / "book" / "how_to_run.md").read_text().split("## The methods from Python")[1]
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    (tmp_path / "page.py").write_text(
        f"{program}\nprint(len(hospitals), record.settings['kernel'])"
    )
    where = os.environ | {"PYTHONPATH": str(ROOT), "FEDCON_DATA": str(tmp_path)}
    command = [sys.executable, "page.py"]
    done = subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *_, own, last = done.stdout.splitlines()
    assert last == "2 energy" and float(own) > 0.5  # of what learns from condensed images alone
