"""A Sphinx extension: on each page the first use of a term of the glossary leads to it, and no page
has Thebe.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes

GLOSSARY = Path(__file__).resolve().parents[3] / "book" / "reference.md"
#: terms whose words mean something else in most sentences
EVERYDAY = {"record", "profile", "kernel", "anchors", "audit", "student", "teacher", "seed"}
#: pages of prose that are read as chapters; the others are lists and tables
PROSE = ("book/intro", "book/how_to_run", "book/errata")
#: what is left as it is, with all that is in it
APART = (
    *(nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.raw, nodes.image),
    *(nodes.reference, addnodes.pending_xref, nodes.title, nodes.table, nodes.emphasis),
    *(nodes.strong, nodes.system_message),
)


def terms() -> list[str]:
    """The terms that the glossary explains."""
    (body,) = re.findall(r"(?s)```\{glossary\}\n(.*?)\n```", GLOSSARY.read_text(encoding="utf-8"))
    return re.findall(r"(?m)^(\S.*)$", body)


def link_terms(page: str, doctree: nodes.document) -> None:
    """Link each term at its first use in the prose of a page."""
    names = {name.lower(): name for name in sorted(set(terms()) - EVERYDAY, key=len, reverse=True)}
    pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, names))})s?(?![\w-])", re.I)
    roles = doctree.findall(addnodes.pending_xref)
    linked = {role["reftarget"].lower() for role in roles if role.get("reftype") == "term"}
    for text in list(doctree.findall(nodes.Text)):
        if _is_apart(text):
            continue
        parts, at = list[nodes.Node](), 0
        for match in pattern.finditer(text):
            if (term := match[1].lower()) not in linked:
                linked.add(term)
                parts += [nodes.Text(text[at : match.start()]), _role(page, match[0], names[term])]
                at = match.end()
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(text[at:])])


def _is_apart(node: nodes.Node) -> bool:
    while (node := node.parent) is not None:
        # a cell of a notebook: code and outputs
        if isinstance(node, APART) or "cell" in getattr(node, "attributes", {}).get("classes", ()):
            return True
    return False


def _role(page: str, shown: str, term: str) -> nodes.Node:
    about = {"refdoc": page, "refdomain": "std", "reftype": "term", "reftarget": term}
    words = nodes.inline("", shown, classes=["xref", "std", "std-term"])
    return addnodes.pending_xref("", words, refexplicit=True, refwarn=True, **about)


def _without_thebe(
    app: Any, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Leave out scripts for live code, which needs other servers; Jupyter Book always adds them."""
    scripts = context.get("script_files", [])
    context["script_files"] = [file for file in scripts if "thebe" not in str(vars(file)).lower()]


def _with_terms(app: Any, doctree: nodes.document) -> None:
    page = app.env.docname
    if page in PROSE or page.startswith("notebooks/"):
        link_terms(page, doctree)


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("doctree-read", _with_terms)
    app.connect("html-page-context", _without_thebe, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
