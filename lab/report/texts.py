"""Texts of files on a page: read as they stand, never as HTML."""

from __future__ import annotations

import attrs


def plain(text: object) -> str:
    """A text in Markdown in which no letter begins HTML; its other marks keep their meaning."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;")


@attrs.frozen
class Markdown:
    """Sentences that a page computes: the last value of a cell, shown as Markdown.

    Names, notes and reasons come into them from specifications, records and data sets; so whatever
    stands in the text, none of it becomes HTML.
    """

    text: str

    def _repr_markdown_(self) -> str:
        return plain(self.text)
