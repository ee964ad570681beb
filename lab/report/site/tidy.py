"""Tables of executed notebooks as a reader wants them: no NaN, no counts as floats, and sentences that
wrap.

pandas makes floats of whole numbers as soon as one of a column is missing.
"""

from __future__ import annotations

import re

#: what stands where there is no value
ABSENT = "–"
#: from so many characters on the text of a cell is wrapped; shorter ones stay on one line
LONG = 32
_TABLE = re.compile(r'<table border="1" class="dataframe">.*?</table>', re.DOTALL)
_ROW = re.compile(r"<tr.*?</tr>", re.DOTALL)
_CELL = re.compile(r'<td(?: class="long")?>(.*?)</td>', re.DOTALL)
_WHOLE = re.compile(r"(-?\d+)\.0+")
_TAG = re.compile("<[^>]*>")


def tidy(html: str) -> str:
    """The HTML of an output, with a dash for each NaN, without the zeros behind the point in columns
    of whole numbers, and with the class `long` where a cell holds a long text; what is not a table
    of pandas stays as it is.
    """
    return _TABLE.sub(lambda found: _tidy_table(found.group()), html)


def _tidy_table(table: str) -> str:
    rows = [_CELL.findall(row) for row in _ROW.findall(table)]
    width = max(map(len, rows), default=0)
    columns = [[row[j] for row in rows if len(row) == width] for j in range(width)]
    whole = [all(_WHOLE.fullmatch(cell) for cell in column if cell != "NaN") for column in columns]

    def tidy_row(row: re.Match[str]) -> str:
        position = iter(range(width))
        return _CELL.sub(lambda cell: _tidy_cell(cell[1], whole[next(position)]), row.group())

    return _ROW.sub(tidy_row, table)


def _tidy_cell(text: str, whole: bool) -> str:
    shown = ABSENT if text == "NaN" else _WHOLE.sub(r"\1", text) if whole else text
    long = len(_TAG.sub("", shown)) >= LONG
    return f'<td class="long">{shown}</td>' if long else f"<td>{shown}</td>"
