"""Texts of files on a page: read as they stand, never as HTML."""

from __future__ import annotations

import attrs


def plain(text: object) -> str:
    """A text in Markdown in which no letter begins HTML; its other marks keep their meaning."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;")


@attrs.frozen
class Markdown:
    """Sentences that a page computes, shown as Markdown; nothing in them becomes HTML."""

    text: str

    def _repr_markdown_(self) -> str:
        return plain(self.text)
