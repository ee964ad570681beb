"""Parts of the book's notebooks for a class: their exercises, and their text as plain Markdown
for student notebooks and slides.

In a source an exercise states how hard it is and how long it takes in its first line, such as
`*Easy, 10 minutes.*`. Where an answer can be checked, two code cells follow its solution: one
tagged `solution` computes the answer, one tagged `check` asserts what a right answer fulfils. The
book runs both, so that every check is known to accept its solution. The text of the exercise names
the answers as code, such as `best` or `best(x)`; what else the solution computes is its own affair.
"""

from __future__ import annotations

import base64
import functools
import html
import re
import shutil
from collections.abc import Container, Iterable
from pathlib import Path

import pandas as pd

from lab.report import notebooks

#: the figures of the book that are drawn by hand, and the folder beside a notebook that has those it shows
FIGURES, SHOWN = notebooks.ROOT / "book" / "_static", "figures"
#: what the buttons to Colab and Binder open, which show plain Markdown only
PLAIN = notebooks.ROOT / "book" / "plain" / "notebooks"
_BLOCK = re.compile(
    r"^(?P<fence>`{3,})\{(?P<kind>exercise|solution|admonition)\} *(?P<title>[^\n]*)\n"
    r"(?P<options>(?::[^\n]*\n)*)\n*(?P<text>.*?)\n(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
#: a formula in a title, which the text of a link cannot show
_FORMULA = re.compile(r" *\$[^$]+\$")
_EXERCISE = re.compile(
    r"^`{3,}\{exercise\} *(?P<title>[^\n]*)\n:label: (?P<label>\S+)\n\n"
    r"\*(?P<level>Easy|Medium|Hard), (?P<minutes>\d+) minutes\.\*\n*(?P<text>.*?)\n`{3,}$",
    re.MULTILINE | re.DOTALL,
)


def exercises(source: Path) -> list[dict[str, str]]:
    """The exercises of a notebook: `title`, `label`, `level`, `minutes` and `text` of each."""
    cells = [cell.source for cell in notebooks.read(source).cells if cell.cell_type == "markdown"]
    return [match.groupdict() for cell in cells for match in _EXERCISE.finditer(cell)]


def exercise_table(sources: Iterable[Path]) -> pd.DataFrame:
    """All exercises: chapter and exercise by their titles, as links of the book, level, minutes, and
    whether the student notebook checks the answer by itself.
    """
    rows = []
    for path in sources:
        cells = notebooks.read(path).cells
        checked = [cell.metadata["name"] for cell in cells if "check" in notebooks.tags(cell)]
        rows += [
            {
                "chapter": f"[{notebooks.title(path)}](../notebooks/{path.stem})",
                "exercise": f"[{_FORMULA.sub('', exercise['title'])}]({exercise['label']})",
                "level": exercise["level"].lower(),
                "minutes": exercise["minutes"],
                "checked": "yes" * (exercise["label"] in checked),
            }
            for exercise in exercises(path)
        ]
    return pd.DataFrame(rows)


# ---- pages as any notebook shows them


def copy_figures(written: Path) -> None:
    """Put the figures that a file shows into the folder beside it."""
    for name in re.findall(rf"\b{SHOWN}/([\w-]+\.svg)", written.read_text(encoding="utf-8")):
        (written.parent / SHOWN).mkdir(exist_ok=True)
        shutil.copyfile(FIGURES / name, written.parent / SHOWN / name)


_EQUATION = re.compile(r"\$\$ \(eq:([\w-]+)\)")
_FIGURE = re.compile(
    r"```\{figure\} (?P<file>\S+)\n:alt: (?P<alt>[^\n]*)\n(?P<options>(?::[^\n]*\n)*)\n*"
    r"(?P<text>.*?)\n```",
    re.DOTALL,
)


@functools.cache
def _numbers() -> dict[str, str]:
    """The number of each of the book's equations: that of its page, and its place there."""
    texts = {path: path.read_text(encoding="utf-8") for path in notebooks.NOTEBOOKS.glob("*.py")}
    return {
        label: f"{int(path.stem[:2])}.{k}"
        for path, text in texts.items()
        for k, label in enumerate(_EQUATION.findall(text), 1)
    }


def _number(label: str) -> str:
    return _numbers().get(label, label)


#: a link to a page with code, from the plan or from another such page
_PAGE = re.compile(r"\[([^\]]+)\]\((?:\.\./notebooks/)?(\d\d_\w+)(?:#[^)]*)?\)")


def linked(text: str, stems: Container[str]) -> str:
    """A text with links to the notebooks of a folder by stem; other links become plain words."""
    return _PAGE.sub(
        lambda link: f"[{link[1]}]({link[2]}.ipynb)" if link[2] in stems else link[1], text
    )


def plain(text: str) -> str:
    """The Markdown of a page of the book as any notebook shows it: no solutions, exercises under
    headings, equations with the number of their page and their place on it, figures from the folder
    beside it, no roles, directives and targets, no links to these and to the book's pages of prose.
    """

    def block(match: re.Match[str]) -> str:
        if match["kind"] == "admonition":
            return f"**{match['title']}.** {match['text']}"
        return f"### Exercise: {match['title']}\n\n{match['text']}" * (match["kind"] == "exercise")

    text = _FIGURE.sub(_figure, _BLOCK.sub(block, text))
    text = re.sub(r"\[([^\]]+)\]\((?:\.\./book/|#)[^)]*\)", r"\1", text)
    text = re.sub(r"^\([\w-]+\)=\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\n\$\$ \(eq:([\w-]+)\)", lambda at: f"\\tag{{{_number(at[1])}}}\n$$", text)
    text = re.sub(r"\{eq\}`eq:([\w-]+)`", lambda at: f"({_number(at[1])})", text)
    text = re.sub(r"\s*\{cite:[pt]\}`[^`]*`", "", text)
    text = re.sub(r"\{(?:term|doc|ref)\}`(?:([^`<]+?) *<[^`>]*>|([^`]+))`", r"\1\2", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _figure(match: re.Match[str]) -> str:
    """A figure as an image of the width that it has in the book, and its caption."""
    width = re.search(r"^:width: (\d+)px$", match["options"], re.MULTILINE)
    size = f' width="{width[1]}"' if width else ""
    file, alt = f"{SHOWN}/{Path(match['file']).name}", html.escape(match["alt"])
    return f'<img src="{file}" alt="{alt}"{size}>\n\n{match["text"]}'


def plain_copy(source: Path) -> str:
    """Text of the .ipynb of a .py in plain Markdown, with its figures in it."""
    notebook, pages = notebooks.read(source), notebooks.chapters()
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            text = linked(plain(cell.source), pages)
            cell.source = re.sub(rf'src="{SHOWN}/([\w-]+\.svg)"', _within, text)
    notebook.cells = [cell for cell in notebook.cells if cell.source.strip()]
    return notebooks.written(notebook)


def _within(match: re.Match[str]) -> str:
    content = base64.b64encode((FIGURES / match[1]).read_bytes()).decode()
    return f'src="data:image/svg+xml;base64,{content}"'


def sync_plain() -> list[Path]:
    """Write the plain copy of every notebook, and return the changed files."""
    PLAIN.mkdir(parents=True, exist_ok=True)
    copies = {PLAIN / f"{name}.ipynb": notebooks.find(name) for name in notebooks.chapters()}
    for old in set(PLAIN.glob("*.ipynb")) - set(copies):
        old.unlink()
    return [file for file, of in copies.items() if notebooks.update(file, plain_copy(of))]
