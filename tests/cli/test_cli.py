"""The command line, end to end and in process."""

import re

import pytest

import steinkern as sk
from steinkern import cli
from tests.helpers.commands import invoke


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], ["sample", "report"]), (["sample"], ["START", "SUPPORT", "--resume", "Exit codes"]), (["report"], [])],
)
def test_help_reads_well(arguments, words):
    result = invoke(*arguments, "--help")
    assert result.exit_code == 0
    assert all(word in result.output for word in ["Usage", *words])
    assert "Traceback" not in result.output
    assert "completion" not in result.output


def test_version_is_printed():
    assert re.search(r"steinkern \d", invoke("--version").output)


def test_a_run_that_diverges_is_one_clear_line(monkeypatch, capsys):
    def diverges():
        raise sk.DivergedError.__new__(sk.DivergedError, "step 3 gave numbers that are not finite")  # without a run

    monkeypatch.setattr(cli, "app", diverges)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    error = capsys.readouterr().err.strip()
    assert error.startswith("steinkern: step ")
    assert "\n" not in error
