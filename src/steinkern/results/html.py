"""Elements of self-contained HTML pages: escaped text, tables, and data for scripts."""

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

# Characters that HTML does not allow, even escaped: controls, and halves of surrogate pairs.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def text(value: Any) -> str:
    """Escape any value for use as the text of a page or of an attribute."""
    return escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", str(value)))


def prose(value: Any) -> str:
    """Escape a sentence for a page, with the words between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", text(value))


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """An HTML table with these column heads and rows."""
    top = "".join(f'<th scope="col">{text(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def as_script(name: str, content: Any) -> str:
    """A script element with JSON, which scripts of the page read by its id; no string in it can end the element."""
    data = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{text(name)}">{data}</script>'
