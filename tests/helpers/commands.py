"""The `steinkern` command in this process, as `main` runs it."""

import contextlib
import io
import sys

from typer.testing import CliRunner

from steinkern import cli


def invoke(*arguments: str):
    """The outcome of the command in this process; what it raises is raised."""
    return CliRunner().invoke(cli.app, list(arguments), catch_exceptions=False)


def run(patch, words: list[str]) -> tuple[int, str, str]:
    """The exit code, and what went to standard output and error, of the command in this process."""
    patch.setattr(sys, "argv", ["steinkern", *words])
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    return code, out.getvalue(), errors.getvalue()


def check_words(code: int, out: str, errors: str) -> None:
    """No traceback and nothing unforeseen."""
    assert code in (0, 1, 2, 130), errors + out
    assert "Traceback" not in out + errors
