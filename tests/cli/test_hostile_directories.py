"""`steinkern` in directories that somebody forged: a page or one line, no traceback, no file of others lost."""

import ast
import copy
import json
import os
import random
import shutil
from pathlib import Path

import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern import cli
from steinkern.cli import run as cli_run
from steinkern.cli import sampling as cli_sample
from steinkern.cli.target import Loaded
from steinkern.core.checkpoint import newest
from steinkern.core.checkpoint_file import CheckpointContents, read, write
from steinkern.core.files import DirectoryLock
from steinkern.results.report import read_run
from steinkern.results.report.facts import facts
from tests.commands import check_printable, check_words, run

posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes and links of POSIX")
FILE = "def f(x):\n    return -0.5 * (x**2).sum()\n"
ESCAPE = "\x1b]0;title\x07\x1b[2J"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a run as the command leaves it, and the file of its log density."""
    directory = tmp_path_factory.mktemp("finished")
    file, out = directory / "density.py", directory / "run" / "p.npz"
    file.write_text(FILE)
    start = np.random.default_rng(0).normal(size=(4, 2))
    result = sk.fit(
        jr.key(0),
        density,
        sk.svgd(),
        start,
        num_steps=3,
        record_particles=True,
        checkpoint=out.parent / "checkpoint",
    )
    options = {
        cli_run.TARGET: f"{file}:f",
        "--dim": 2,
        "--particles": 4,
        "--steps": 3,
        "--method": "vanilla",
        "--seed": 0,
    }
    cli_run.write(out.parent, options, [out], result)
    for name in (out.name, cli_run.PAGE):
        (out.parent / name).write_text("")
    return out.parent, file


def density(x):
    return -0.5 * (x**2).sum()


@pytest.fixture
def nothing_runs(monkeypatch, finished):
    """The run itself replaced: only what the command does around it is looked at."""

    def refuse(*arguments, **options):
        raise ValueError("`FILE.py:NAME` runs nothing here.")

    loaded = Loaded("f", sk.LogDensity(density), None, np.zeros(2))
    monkeypatch.setattr(cli_sample, "load", lambda target, dim=None: loaded)
    monkeypatch.setattr(Loaded, "particles", lambda self, key, number: np.zeros((number, 2)))
    monkeypatch.setattr(Loaded, "try_out", lambda self, particles: None)
    monkeypatch.setattr(cli_sample, "run_sampler", refuse)
    monkeypatch.setattr(cli_sample, "run_untuned", refuse)
    monkeypatch.setattr(cli_sample, "run_automatically", refuse)


# Forged content.

VALUES = [None, True, -1, 0, 7, 2**62, -(10**400), 1.5, float("nan"), float("inf"), "", "x" * 3000,
          "a.<locals>.schedule", ESCAPE, "\ud800", [], {}, [[]], [1, "a", None], {"class": 5},
          {"function": {"function": []}}, [[2**40] * 40], {"class": "Real"}, "scale_by_" * 500, [["a", [1]]],
          {"layout": {"names": ["x"], "shapes": [[2]]}}]  # fmt: skip


def places(value, path=()):
    """The paths to all entries of JSON."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        yield from places(entry, (*path, name))


def altered(value, generator: random.Random):
    """JSON with one to three entries replaced, removed, repeated or nested."""
    value = copy.deepcopy(value)
    for _ in range(generator.randint(1, 3)):
        *path, last = generator.choice([path for path in places(value) if path] or [(None,)])
        if last is None:
            return generator.choice(VALUES)
        inside = value
        for name in path:
            inside = inside[name]
        how = generator.choice(["replace", "replace", "replace", "remove", "repeat", "nest"])
        if how == "replace":
            inside[last] = copy.deepcopy(generator.choice(VALUES))
        elif how == "remove":
            del inside[last]
        elif how == "nest":
            inside[last] = {"function": inside[last], "class": [inside[last]]}
        elif isinstance(inside, list):
            inside.extend(inside[:3])
        else:
            inside["again"] = inside[last]
    return value


def altered_arrays(arrays, generator: random.Random):
    arrays = list(arrays)
    place = generator.randrange(len(arrays))
    array = arrays[place]
    arrays[place] = generator.choice(
        [array.astype("float16"), array.astype(bool), array.astype("int8"), np.zeros((0, 2)), np.full((4, 2), np.nan),
         np.full(array.shape, 1e308), np.full(array.shape, -5e-324), np.zeros(()), np.zeros((1, 2, 3)),
         array[None], array[..., :0] if array.ndim else array]
    )  # fmt: skip
    if generator.random() < 0.3:
        generator.shuffle(arrays)
    return arrays


def forge(source: Path, directory: Path, seed: int) -> None:
    """A directory of a run, altered in one of many ways."""
    generator = random.Random(seed)
    shutil.copytree(source, directory)
    where = directory / "checkpoint"
    if generator.random() < 0.3:  # as `fit(..., checkpoint=directory)` leaves it
        for path in where.iterdir():
            path.rename(directory / path.name)
        where.rmdir()
        where = directory
        (directory / cli_run.NAME).unlink()
    file = max(where.glob("step-*.ckpt"))
    saved = read(file)
    how = generator.choice(["settings", "settings", "notes", "arrays", "bytes", "run.json", "thing", "many"])
    if how == "settings":
        changed = altered(saved.settings, generator)
        write(file, saved._replace(settings=changed if isinstance(changed, dict) else {}))
    elif how == "notes":
        changed = altered(saved.notes, generator)
        write(file, saved._replace(notes=changed if isinstance(changed, dict) else {}))
    elif how == "arrays":
        write(file, saved._replace(arrays=altered_arrays(saved.arrays, generator)))
    elif how == "bytes":
        content = bytearray(file.read_bytes())
        for _ in range(3):
            content[generator.randrange(len(content))] ^= generator.randrange(1, 256)
        file.write_bytes(content[: generator.randrange(len(content) + 1)])
    elif how == "run.json":
        text = json.dumps(altered(json.loads((source / cli_run.NAME).read_text()), generator))
        (directory / cli_run.NAME).write_text(generator.choice([text, text, text[:20], "[" * 10**5, ""]))
    elif how == "many":
        for step in range(50):
            (where / f"step-{10**17 + step}.ckpt").write_bytes(generator.choice([b"", b"x" * 99, file.read_bytes()]))
    if how == "thing" or generator.random() < 0.2:
        names = [file, directory / cli_run.NAME, directory / cli_run.PAGE, directory / "p.npz", where / "step-9.ckpt"]
        put_a_thing(generator.choice(names), generator)


def put_a_thing(path: Path, generator: random.Random) -> None:
    """A pipe, a link, a directory or a sparse file in the place of a file."""
    path.unlink(missing_ok=True)
    what = generator.choice(["pipe", "loop", "device", "directory", "sparse", "dangling"])
    if what == "pipe":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
        (path / "inside").write_text("")
    elif what == "sparse":
        path.touch()
        os.truncate(path, 2**36)
    else:
        path.symlink_to({"loop": path.name, "device": "/dev/zero", "dangling": "nowhere"}[what])


def check_directory(seed: int, finished, directory: Path, patch) -> int:
    """Forge a directory, put a file of somebody else's beside it, and let the command loose; the exit code."""
    source, file = finished
    forge(source, directory, seed)
    (directory / "checkpoint").mkdir(exist_ok=True)
    for place in (directory, directory / "checkpoint"):
        (place / "mine.txt").write_text("mine")
        (place / "step-1.ckpt.mine").write_text("mine")
    sample = ["sample", f"{file}:f", "--dim", "2", "--particles", "4", "--out", str(directory / "p.npz")]
    commands = {
        "report": ["report", str(directory)],
        "sample": sample,
        "resume": [*sample, "--steps", "3", "--method", "vanilla", "--resume"],
        "restart": [*sample, "--steps", "3", "--method", "vanilla", "--restart"],
        "restart auto": [*sample, "--restart"],
    }
    name = list(commands)[seed % len(commands)] if seed % 2 else "report"
    code, out, errors = run(patch, commands[name])
    check_words(code, out, errors)
    check_printable(out + errors)
    if code == 2:
        assert errors.startswith("steinkern: "), (seed, errors)
    for place in (directory, directory / "checkpoint"):
        assert (place / "mine.txt").read_text() == "mine"
        assert (place / "step-1.ckpt.mine").read_text() == "mine"
    shutil.rmtree(directory)
    return code


@posix
@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_forged_directories_give_a_page_or_one_line(finished, tmp_path, monkeypatch):
    codes = [check_directory(seed, finished, tmp_path / "forged", monkeypatch) for seed in range(25)]
    assert {0, 2} <= set(codes)  # some are read, some refused


@posix
@pytest.mark.thorough
@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_thousand_forged_directories_give_a_page_or_one_line(finished, tmp_path, monkeypatch):
    codes = [check_directory(seed, finished, tmp_path / "forged", monkeypatch) for seed in range(1000)]
    assert {0, 2} <= set(codes)


# Single forgeries.


def test_names_of_functions_are_read_in_linear_time(finished, tmp_path):
    saved = newest(finished[0] / "checkpoint")
    deep = "x"
    for _ in range(400):
        deep = {"function": [deep]}
    forged = {"update": {"function": "a" * 2_000_000, "inner": ["scale_by_" * 100_000], "deep": deep}}
    settings = {**saved.settings, "sampler": {"class": "x.SVGD", "optimiser": forged}}
    write(tmp_path / "step-000000000003.ckpt", saved._replace(settings=settings))
    assert "Step rule" in dict(facts(read_run(tmp_path)))


def test_a_page_of_very_many_coordinates_names_only_those_it_shows(finished, tmp_path, monkeypatch):
    code, _, _ = run(monkeypatch, ["report", str(wide(finished, tmp_path)), "--out", str(tmp_path / "page")])
    assert code == 0
    assert "The first 400 of 3,000,000 coordinates" in (tmp_path / "page" / "index.html").read_text()


def wide(finished, directory: Path) -> Path:
    """A checkpoint of one particle of three million coordinates."""
    saved = newest(finished[0] / "checkpoint")
    space = {"layout": {"names": ["x"], "shapes": [[3_000_000]]}, "supports": [{"class": "Real"}]}
    arrays = [np.zeros((1, 3_000_000), np.float32), np.arange(2), np.zeros(2), np.zeros(2), np.zeros(2)]
    settings = {"target": {**saved.settings["target"], "space": space}}
    write(directory / "step-000000000003.ckpt", CheckpointContents(3, settings, {"points": 0}, arrays))
    return directory


@pytest.mark.usefixtures("nothing_runs")
def test_escapes_in_a_record_do_not_reach_the_terminal(finished, tmp_path, monkeypatch):
    directory = tmp_path / "run"
    shutil.copytree(finished[0], directory)
    content = json.loads((directory / cli_run.NAME).read_text())
    content["options"][cli_run.TARGET] = f"{ESCAPE}model.py:f"
    content["options"]["--seed"] = ESCAPE
    (directory / cli_run.NAME).write_text(json.dumps(content))
    saved = newest(directory / "checkpoint")
    settings = copy.deepcopy(saved.settings)
    settings["target"]["space"]["supports"] = None
    write(max((directory / "checkpoint").iterdir()), saved._replace(settings=settings))
    code, out, errors = run(monkeypatch, ["report", str(directory)])
    assert code == 0
    assert "model.py:f" in out
    check_words(code, out, errors)
    check_printable(out + errors)
    words = ["sample", f"{finished[1]}:f", "--dim", "2", "--particles", "4", "--steps", "3", "--method", "vanilla"]
    code, out, errors = run(monkeypatch, [*words, "--out", str(directory / "p.npz"), "--resume"])
    assert (code, "which had" in errors) == (2, True)
    check_words(code, out, errors)
    check_printable(out + errors)


# What `--restart` replaces.


@pytest.fixture
def recorded(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


def restarted(patch, finished, directory: Path, *options: str) -> str:
    words = ["sample", f"{finished[1]}:f", "--dim", "2", "--particles", "4", "--out", str(directory / "p.npz")]
    code, _, errors = run(patch, [*words, "--restart", *options])
    assert code == 2
    return errors


VANILLA = ("--steps", "3", "--method", "vanilla")


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("options", [(), VANILLA], ids=["auto", "vanilla"])
def test_a_restart_removes_the_checkpoints_of_the_recorded_run_alone(options, finished, recorded, monkeypatch):
    (recorded / "checkpoint" / "thesis.txt").write_text("mine")
    assert "runs nothing here" in restarted(monkeypatch, finished, recorded, *options)
    assert os.listdir(recorded / "checkpoint") == ["thesis.txt"]


@pytest.mark.usefixtures("nothing_runs")
def test_a_restart_leaves_checkpoints_that_no_run_of_the_command_wrote(finished, recorded, monkeypatch):
    (recorded / cli_run.NAME).unlink()
    for name in ("p.npz", "index.html"):
        (recorded / name).unlink()
    before = sorted(os.listdir(recorded / "checkpoint"))
    assert "runs nothing here" in restarted(monkeypatch, finished, recorded)
    assert "has not recorded, so that --restart does not remove it" in restarted(
        monkeypatch, finished, recorded, *VANILLA
    )
    assert sorted(os.listdir(recorded / "checkpoint")) == before


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("name", ["index.html", "p.npz"])
def test_a_restart_replaces_no_file_that_no_run_wrote(name, finished, tmp_path, monkeypatch):
    (tmp_path / name).write_text("mine")
    assert "which no recorded run wrote" in restarted(monkeypatch, finished, tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert "is a directory" in restarted(monkeypatch, finished, tmp_path)


@pytest.mark.usefixtures("nothing_runs")
def test_a_restart_into_another_file_beside_the_run_replaces_nothing_of_others(finished, recorded, monkeypatch):
    (recorded / "data.npz").write_text("mine")
    before = sorted(os.listdir(recorded / "checkpoint"))
    words = ["sample", f"{finished[1]}:f", "--dim", "2", "--out", str(recorded / "data.npz"), "--restart"]
    for method in ("vanilla", "auto"):
        code, _, errors = run(monkeypatch, [*words, "--method", method])
        assert (code, "data.npz, which no recorded run wrote" in errors) == (2, True)
        assert sorted(os.listdir(recorded / "checkpoint")) == before


@posix
@pytest.mark.usefixtures("nothing_runs")
def test_two_commands_do_not_write_to_one_directory(finished, recorded, monkeypatch):
    with DirectoryLock(recorded) as lock:
        lock.acquire()
        assert "another `steinkern sample` writes at this moment" in restarted(monkeypatch, finished, recorded)


# The command as a whole.


def test_ctrl_c_anywhere_ends_with_130(monkeypatch, tmp_path):
    def pressed(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("steinkern.cli.datasets.check_sources", pressed)
    monkeypatch.setattr("steinkern.experiments.driver.reproduce", pressed)
    for words in (["data", "check", "--data", str(tmp_path)], ["reproduce", "toy", "--quick"]):
        code, _, errors = run(monkeypatch, words)
        assert code == 130
        assert errors.splitlines()[-1] == "Interrupted."


@pytest.mark.parametrize("error", [KeyError("a"), RecursionError(), AttributeError(f"b\n{ESCAPE}"), MemoryError()])
def test_an_error_that_nobody_foresaw_is_one_line(error, monkeypatch, tmp_path):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("steinkern.cli.datasets.check_sources", fail)
    monkeypatch.delenv("STEINKERN_TRACEBACK", raising=False)
    code, _, errors = run(monkeypatch, ["data", "check", "--data", str(tmp_path)])
    assert code == (2 if isinstance(error, MemoryError) else 3)
    assert len(errors.splitlines()) == 1
    assert "\x1b" not in errors
    monkeypatch.setenv("STEINKERN_TRACEBACK", "1")
    if code == 3:
        with pytest.raises(type(error)):
            run(monkeypatch, ["data", "check", "--data", str(tmp_path)])


def test_the_command_prints_in_one_way_alone():
    modules = list(Path(cli.__file__).parent.glob("*.py"))
    assert len(modules) >= 5
    for path in modules:
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not any(isinstance(function, ast.Name) and function.id == "print" for function in calls), path
