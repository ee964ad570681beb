"""Tables of executed notebooks as a reader wants them: no NaN, no counts as floats.

pandas makes floats of whole numbers as soon as one of a column is missing.
"""

from __future__ import annotations

import re

#: what stands where there is no value
ABSENT = "–"
_TABLE = re.compile(r'<table border="1" class="dataframe">.*?</table>', re.DOTALL)
_ROW = re.compile(r"<tr.*?</tr>", re.DOTALL)
_CELL = re.compile(r"(?<=<td>).*?(?=</td>)", re.DOTALL)
_WHOLE = re.compile(r"(-?\d+)\.0+")


def tidy(html: str) -> str:
    """The HTML of an output, with a dash for each NaN and without the zeros behind the point in
    columns of whole numbers; what is not a table of pandas stays as it is.
    """
    return _TABLE.sub(lambda found: _tidy_table(found.group()), html)


def _tidy_table(table: str) -> str:
    rows = [_CELL.findall(row) for row in _ROW.findall(table)]
    width = max(map(len, rows), default=0)
    columns = [[row[j] for row in rows if len(row) == width] for j in range(width)]
    whole = [all(_WHOLE.fullmatch(cell) for cell in column if cell != "NaN") for column in columns]

    def tidy_row(row: re.Match[str]) -> str:
        position = iter(range(width))

        def tidy_cell(cell: re.Match[str]) -> str:
            j, text = next(position), cell.group()
            if text == "NaN":
                return ABSENT
            return _WHOLE.sub(r"\1", text) if whole[j] else text

        return _CELL.sub(tidy_cell, row.group())

    return _ROW.sub(tidy_row, table)
