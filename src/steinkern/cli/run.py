"""`run.json`: the options of `steinkern sample` and the end of its run, for `--resume` and `steinkern report`."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.files import read_json, write_text
from ..results.result import Result

NAME = "run.json"
AUTO = "auto"
"""The default method, that of `steinkern.sample`, which keeps no checkpoints."""
STEIN = "stein"
"""`steinkern.fit` without a sampler, which stops by itself and keeps checkpoints."""
PAGE = "index.html"
_LARGEST = 2**20  # the most bytes of a run.json
TARGET = "FILE.py:NAME"
"""The key of the target among the options."""
_END = ("step", "status", "message", "warnings")


def write(directory: Path, options: Mapping[str, Any], files: Iterable[Path], result: Result | None = None) -> None:
    """Write `run.json`: the options before the first step, and the end of the run after the last.

    Args:
        directory: of the run.
        options: of the command.
        files: that the run writes into the directory. Their names are recorded, so that the run may replace them.
        result: of the run, once it has ended.
    """
    end = None
    if result is not None:
        own = (result.num_steps, result.status.value, result.message, list(result.warnings))
        end = dict(zip(_END, own, strict=True))
    names = sorted({PAGE, *(path.name for path in files), *(written_files(directory) or ())})
    text = json.dumps({"options": dict(options), "end": end, "files": names}, indent=1)
    write_text(directory / NAME, text + "\n")


def read(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options and the end of the run in a directory; empty where `run.json` is missing or invalid."""
    content = _content(directory)
    options, end = content.get("options"), content.get("end") or {}
    if not (isinstance(options, dict) and isinstance(options.get(TARGET), str) and isinstance(end, dict)):
        return {}, {}
    if any(isinstance(value, dict | list) for value in options.values()):  # not what `write` wrote
        return {}, {}
    step, status, message, warnings = (end.get(name) for name in _END)
    said = [status, message, *warnings] if isinstance(warnings, list) else [None]
    if end and not (isinstance(step, int) and all(isinstance(text, str) for text in said)):
        return {}, {}
    return options, end


def written_files(directory: Path) -> list[str] | None:
    """The names of the files that the recorded run wrote beside its `run.json`; `None` where no run is recorded."""
    if not read(directory)[0]:
        return None
    files = _content(directory).get("files")
    return [name for name in files if isinstance(name, str)] if isinstance(files, list) else []


def _content(directory: Path) -> dict[str, Any]:
    try:
        content = read_json(directory / NAME, _LARGEST)
    except (OSError, ValueError):  # the file is missing, or not what `write` wrote
        return {}
    return content if isinstance(content, dict) else {}


def check_same(directory: Path, options: Mapping[str, Any]) -> None:
    """Raise where the run to resume had other options, naming each with both values."""
    before, _ = read(directory)
    differing = list(_differences(before, options))
    if differing:
        was = " and ".join(_said(name, before[name]) for name in differing)
        now = " and ".join(_said(name, options[name]) for name in differing)
        raise ValueError(
            f"`--resume` goes on with the run in {directory}, which had {was}; this command has {now}. Give it what "
            "that run had, or --restart to begin anew in its place, or an --out in another directory."
        )


def in_a_line(options: Mapping[str, Any], out: Path) -> str:
    """The command line with all its options."""
    all_options = {**options, "--out": shlex.quote(str(out))}
    given = [f"{name} {value}" for name, value in all_options.items() if name != TARGET and value is not None]
    return " ".join(["steinkern sample", shlex.quote(str(options[TARGET])), *given])


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name, value in now.items():
        if name not in before:
            continue
        same = before[name] == value
        if name == TARGET:  # the path may be given from another directory; checkpoints compare the code
            same = str(before[name]).rpartition(":")[2] == str(value).rpartition(":")[2]
        if not same:
            yield name


def _said(name: str, value: Any) -> str:
    if not name.startswith("--"):
        return str(value)
    return f"no {name}" if value is None else f"{name} {value}"
