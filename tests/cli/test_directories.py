"""Directories of `steinkern sample`: what `--restart` replaces, and one command at a time."""

import os

import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.core.archive import lock_directory
from tests.helpers.commands import run


@pytest.fixture
def recorded(tmp_path):
    """The directory of a run as the command leaves it, with a file of somebody else's."""
    out = tmp_path / "run" / "p.npz"
    (tmp_path / "density.py").write_text("def f(x):\n    return -0.5 * (x**2).sum()\n")
    start = np.random.default_rng(0).normal(size=(4, 2))
    options = {"num_steps": 3, "checkpoint": out.parent / "checkpoint"}
    sk.fit(jr.key(0), lambda x: -0.5 * (x**2).sum(), sk.svgd(), start, **options)
    out.touch()
    (out.parent / "checkpoint" / "thesis.txt").touch()
    return out.parent


def refusal(patch, directory, *options: str) -> str:
    def refuse(*arguments, **options):
        raise ValueError("nothing runs here.")

    patch.setattr("steinkern.cli.sampling.run", refuse)
    words = ["sample", f"{directory.parent / 'density.py'}:f", "--dim", "2", "--out", str(directory / "p.npz")]
    code, _, errors = run(patch, [*words, *options])
    assert code == 2
    return errors


def test_a_restart_removes_the_checkpoints_alone(recorded, monkeypatch):
    assert "would replace" in refusal(monkeypatch, recorded, "--method", "vanilla")
    assert "nothing runs here" in refusal(monkeypatch, recorded, "--restart", "--method", "vanilla")
    assert os.listdir(recorded / "checkpoint") == ["thesis.txt"]


def test_two_commands_do_not_write_to_one_directory(recorded, monkeypatch):
    lock = lock_directory(recorded, "")
    assert "is in use: another run writes there at this moment" in refusal(monkeypatch, recorded, "--restart")
    lock.release()


def test_ctrl_c_ends_with_130_and_an_error_that_nobody_foresaw_is_one_line(monkeypatch, tmp_path):
    for error, code, words in ((KeyboardInterrupt(), 130, ""), (KeyError("a\nb"), 3, "KeyError")):

        def fail(*arguments, error=error, **options):
            raise error

        monkeypatch.setattr("steinkern.cli.reporting.load", fail)
        monkeypatch.delenv("STEINKERN_TRACEBACK", raising=False)
        ended, _, errors = run(monkeypatch, ["report", str(tmp_path)])
        assert ended == code
        assert words in errors
        assert len(errors.splitlines()) <= 1
