"""Elements of self-contained HTML pages: escaped text, tables, pictures, data, and a slider over frames."""

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

# Characters that HTML does not allow, even escaped: controls, and halves of surrogate pairs.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def text(value: Any) -> str:
    """Escape any value for use as the text of a page or of an attribute."""
    return escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", str(value)))


def prose(value: Any) -> str:
    """Escape a sentence for a page, with the words between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", text(value))


def fill_template(package: str, template: str, **parts: str) -> str:
    """A template of a package with its `$names` filled in; `$style` and `$player` are the same for all pages."""
    shared = {"style": own_text(__package__, "page.css"), "player": own_text(__package__, "player.js")}
    return Template(own_text(package, template)).substitute(**shared, **parts)


def own_text(package: str, name: str) -> str:
    """The text of a file in the `templates` folder of a package."""
    return resources.files(package).joinpath(f"templates/{name}").read_text(encoding="utf-8")


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """An HTML table with these column heads and rows."""
    top = "".join(f'<th scope="col">{text(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def as_script(name: str, content: Any) -> str:
    """A script element with JSON, which scripts of the page read by its id.

    `<`, `>` and `&` are escaped in the JSON, so that no string can end the element.
    """
    content_text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        content_text = content_text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{text(name)}">{content_text}</script>'


def slider(frames: int, start: int = 0) -> str:
    """A play button, a slider over the frames and its label, which `player.js` drives."""
    return (
        '<div class="controls"><button type="button">play</button>'
        f'<input type="range" min="0" max="{frames - 1}" value="{start}" aria-label="iteration"><output></output></div>'
    )
