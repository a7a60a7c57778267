"""Printing to a terminal without control characters."""

import re
import sys
from typing import Any

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SPACE = re.compile("[\t\n\r\f\v]+")
_LONGEST = 4000


def printable(text: Any) -> str:
    """Text as one line. Replaces control characters, such as cursor escapes, and cuts the line at 4000 characters."""
    line = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _SPACE.sub(" ", str(text)))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def say(text: Any = "", *, error: bool = False) -> None:
    """Print each line of a text through `printable`, since names, paths and messages may come from untrusted files."""
    stream = sys.stderr if error else sys.stdout
    for line in str(text).split("\n"):
        own = printable(line)
        encoding = getattr(stream, "encoding", None) or "utf-8"
        print(own.encode(encoding, "replace").decode(encoding), file=stream)
