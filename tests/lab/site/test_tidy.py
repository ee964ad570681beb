"""Tables of the site: a dash where pandas writes NaN, whole numbers as such."""

from html.parser import HTMLParser
from math import isnan

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.report.site.tidy import ABSENT, LONG, tidy


class Cells(HTMLParser):
    """The texts of a table's cells, row by row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.inside = False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.rows += [[]] if tag == "tr" else []
        self.inside = tag == "td" or (self.inside and tag != "tr")
        self.rows[-1:] = [[*self.rows[-1], ""]] if tag == "td" else self.rows[-1:]

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "td"

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data


def cells(html):
    return [row for row in Cells(html).rows if row]


def test_counts_are_no_floats_and_nothing_is_a_dash():
    nothing = float("nan")
    frame = pd.DataFrame({"images": [1280.0, nothing], "accuracy": [50.0, 61.5], "none": nothing})
    assert cells(tidy(frame.to_html())) == [["1280", "50.0", ABSENT], [ABSENT, "61.5", ABSENT]]


def test_a_link_in_a_cell_and_rows_over_rows_do_not_shift_columns():
    frame = pd.DataFrame(
        {"cell": ['<a href="x">1.0</a>', "b"], "count": [2.0, 3.0], "share": [0.5, 1.0]},
        index=pd.MultiIndex.from_tuples([("a", 1.0), ("a", 2.0)]),
    )
    found = tidy(frame.to_html(escape=False))
    assert cells(found) == [["1.0", "2", "0.5"], ["b", "3", "1.0"]]
    assert '<a href="x">1.0</a>' in found


def test_sentences_wrap_and_a_long_address_does_not_make_one():
    frame = pd.DataFrame({"said": ["x" * LONG, "x" * (LONG - 1), f'<a href="{"x" * LONG}">y</a>']})
    found = tidy(frame.assign(count=1.0).to_html(escape=False))
    assert found.count('<td class="long">') == 1 and found.count("<td>1</td>") == 3
    assert tidy(found) == found


@pytest.mark.parametrize("html", ["<p>NaN and 1.0</p>", "<table><td>1.0</td></table>", ""])
def test_what_pandas_did_not_write_stays(html):
    assert tidy(html) == html


@given(st.lists(st.floats(width=32), min_size=1, max_size=6))
def test_values_stay_the_same(values):
    html = pd.DataFrame({"value": values}).to_html()
    for (before,), (after,) in zip(cells(html), cells(tidy(html)), strict=True):
        same = float(before) == float(after) if after != ABSENT else isnan(float(before))
        assert same
    assert tidy(tidy(html)) == tidy(html)
