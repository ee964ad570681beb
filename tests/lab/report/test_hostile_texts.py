"""Whatever text stands in a specification, a list of printed numbers, a claim, a record or a data
set's classes: a page shows it as text.
"""

import json
import re

import attrs
import numpy as np
import pandas as pd
import pytest
import yaml
from bs4 import BeautifulSoup
from markdown_it import MarkdownIt

import lab
from core.errors import InputError
from lab import Experiment, Record, TableSpec
from lab.report import claims, condensed_images, partition_plot, tables
from lab.report.figures import to_html
from lab.report.site.generated import markdown_table
from tests.lab.report import made

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt;b&gt;"
PRINTED = "paper,table,method,dataset,model,split,rounds,setting,metric,value,std,unit,better,note"


def evil(what: str) -> str:
    """Hostile, and another text for each place."""
    return f"{what} {EVIL}"


TABLE = """
paper: fedvck
table: 99
title: "title EVIL"
metric: accuracy
note: "note EVIL"
seeds: [0]
rows:
  - {name: "row EVIL", algorithm: fedavg, settings: {lr: 0.1}, note: "note of a row EVIL"}
  - {name: "other EVIL", algorithm: fedprox, settings: {mu: 0.1}}
columns:
  - {name: "column EVIL", dataset: digits, rounds: 1, note: "column's EVIL",
     match: {dataset: digits, rounds: 1}}
  - {name: apart, dataset: digits, rounds: 2, not_testable: "reason EVIL", match: {rounds: 2}}
  - {name: "stood in for EVIL", dataset: isic2020, rounds: 1, match: {dataset: isic2020}}
substitutes: {isic2020: digits}
absent: [{rows: ["other EVIL"], columns: [apart], reason: "absent EVIL"}]
"""


@pytest.fixture
def spec(tmp_path, monkeypatch) -> TableSpec:
    """The one table of a book in which every text is hostile."""
    path = tmp_path / "fedvck" / "99.yaml"
    path.parent.mkdir()
    path.write_text(TABLE.replace("EVIL", json.dumps(EVIL)[1:-1]))
    quoted = evil("printed").replace('"', '""')
    rows = [
        f'fedvck,99,{method},{dataset},convnet,,{rounds},,accuracy,50.0,,percent,higher,"{quoted}"'
        for method in ("fedavg", "fedprox")
        for dataset, rounds in (("digits", 1), ("digits", 2), ("isic2020", 1))
    ]
    (path.parent / "published.csv").write_text("\n".join([PRINTED, *rows]))
    spec = TableSpec.load(path)
    monkeypatch.setattr(lab.table, "TABLES", tmp_path)
    return spec


def record(experiment: Experiment) -> Record:
    """With hostile texts where a record may have any."""
    return attrs.evolve(
        made.record(experiment, accuracy=0.5),
        environment={"device": evil("device"), "machine": evil("machine")},
        bytes={"up": {evil("kind"): 1}, "down": {}},
        notes=[evil("a record's note")],
    )


def shown(page: str) -> str:
    """The text of a page, on which nothing runs and nothing is fetched."""
    soup = BeautifulSoup(page, "html.parser")
    assert not soup.find_all(["script", "iframe", "object", "embed", "form", "b"])
    for tag in soup.find_all(True):
        assert not [name for name in tag.attrs if name.startswith("on")], tag
        for link in ("src", "href"):
            assert re.match(r"[\w./-]*$", tag.get(link, "")), tag
        assert re.match(r"data:image/png|#?[\w-]*$", tag.get("xlink:href", "")), tag
    titles = " ".join(tag["title"] for tag in soup.find_all(title=True))
    alts = " ".join(tag["alt"] for tag in soup.find_all(alt=True))
    labels = " ".join(tag["aria-label"] for tag in soup.find_all(attrs={"aria-label": True}))
    return f"{soup.get_text()} {titles} {alts} {labels}"


def measured(spec: TableSpec) -> dict[str, Record]:
    runs = [run for cell in spec.cells("laptop") for run in cell.experiments]
    return {run.id: record(run) for run in runs}


def test_texts_of_a_table(spec):
    for known in ({}, measured(spec)):
        page = shown(tables.table("fedvck", 99, "laptop", measured=known)._repr_html_())
        for what in ("title", "row", "other", "column", "stood in for", "printed"):
            assert evil(what) in page, what
        assert known or evil("reason") in page


def test_texts_of_claims_and_summaries(spec, tmp_path, monkeypatch):
    assert "title <script>" in shown(tables.progress(measured=measured(spec))._repr_html_())
    monkeypatch.setattr(claims, "CLAIMS", tmp_path)
    kinds = {kind: evil(kind) for kind in ("test", "open", "not_testable")}
    kinds["paper_numbers"] = {"agrees": True, "because": evil("paper_numbers")}
    texts = {"claim": evil("claim"), "where": evil("where")}
    listed = [texts | {kind: text} for kind, text in kinds.items()]
    (tmp_path / "fedmk.yaml").write_text(yaml.safe_dump({"claims": listed}))
    page = shown(claims.claims_table("fedmk")._repr_html_())
    assert all(evil(what) in page for what in (*texts, *kinds))
    (tmp_path / "fedmk.yaml").write_text(yaml.safe_dump({"claims": [texts | {"page": EVIL}]}))
    with pytest.raises(InputError, match="claims, 1, page"):
        claims.claims("fedmk")


def test_names_of_classes_and_words_of_figures():
    labels, names = np.arange(20) % 2, ["<b>", '"><i>']
    pixels = np.zeros((20, 1, 8, 8), np.uint8)
    for figure in (
        partition_plot(labels, [[0, 2], [1, 3]], names, title="<b>figure"),
        condensed_images(pixels, labels, names, title="<b>figure"),
    ):
        assert "<b>" in shown(to_html(figure))
        assert evil("alt") in shown(to_html(figure, alt=evil("alt")))


def test_cells_of_the_tables_of_the_first_page():
    frame = pd.DataFrame({evil("head"): [evil("cell | 1"), "x"]})
    # as the book makes it: Markdown in which HTML is allowed
    made = MarkdownIt("commonmark", {"html": True}).enable("table")
    page = shown(made.render(markdown_table(frame)))
    assert evil("head") in page and evil("cell | 1") in page
