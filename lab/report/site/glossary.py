"""Links into the glossary: on each page the first use of each of its terms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

#: terms whose words mean something else in most sentences
_EVERYDAY = (
    *("record", "profile", "kernel", "anchors", "audit", "student", "teacher"),
    *("print", "move", "seed"),
)
#: what is left as it is: fences, display equations, headings, rows of tables, options of directives
_BLOCKS = re.compile(
    r"(?ms)^(`{3,}|~{3,}|:{3,}).*?^\1[ \t]*$|^\$\$.*?^\$\$[^\n]*$|^[ \t]*(?:#|\||:|\().*?$"
)
#: and within a line: code, roles, equations, links, emphasised and quoted names, HTML
_SPANS = re.compile(
    r"(?:\{[\w:]+\})?`[^`]*`|\$[^$\n]+\$|!?\[[^\]]*\]\([^)]*\)|<[^>\n]*>|\*+[^*]+\*+"
)
_ROLE = re.compile(r"\{term\}`(?:[^`<]*<([^>]*)>|([^`]*))`")


def terms(page: Path) -> list[str]:
    """The terms that a glossary page explains."""
    text = page.read_text(encoding="utf-8")
    (body,) = re.findall(r"```\{glossary\}\n(.*?)\n```", text, re.DOTALL)
    return re.findall(r"(?m)^(\S.*)$", body)


class Linker:
    """Links terms in the texts of one page, cell after cell; each term once."""

    def __init__(self, terms: Iterable[str]) -> None:
        names = sorted(set(terms) - set(_EVERYDAY), key=len, reverse=True)
        self._names = {name.lower(): name for name in names}
        words = "|".join(re.escape(name) for name in names)
        self._term = re.compile(rf"(?<![\w-])({words})(s?)(?![\w-])", re.IGNORECASE)
        self._done: set[str] = set()

    def link(self, text: str) -> str:
        """A text in Markdown with its terms linked, as far as no text before had them."""
        for block in _outside(_BLOCKS, text):
            self._done |= {(a or b).strip().lower() for a, b in _ROLE.findall(block)}
        return _changed(_BLOCKS, text, lambda rest: _changed(_SPANS, rest, self._linked))

    def _linked(self, prose: str) -> str:
        def role(found: re.Match[str]) -> str:
            name = self._names[found[1].lower()]
            if name in self._done:
                return found[0]
            self._done.add(name)
            return f"{{term}}`{name}`" if found[0] == name else f"{{term}}`{found[0]} <{name}>`"

        return self._term.sub(role, prose)

    def notebook(self, content: bytes) -> bytes:
        """A notebook with its terms linked."""
        notebook = json.loads(content)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                text = self.link("".join(cell["source"]))
                cell["source"] = text.splitlines(keepends=True)
        return json.dumps(notebook, indent=1, ensure_ascii=False).encode()


def _outside(pattern: re.Pattern[str], text: str) -> list[str]:
    parts, at = [], 0
    for found in pattern.finditer(text):
        parts.append(text[at : found.start()])
        at = found.end()
    return [*parts, text[at:]]


def _changed(pattern: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """A text with everything changed that the pattern does not cover."""
    covered = [found[0] for found in pattern.finditer(text)]
    parts = [change(part) for part in _outside(pattern, text)]
    return "".join(a + b for a, b in zip(parts, [*covered, ""], strict=True))
