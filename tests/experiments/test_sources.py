"""Fetching and checking: miniature originals in their true formats, from a server on this machine.

Not exercised here: the true addresses, and whether what they serve today has the digests in `SOURCES`.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pooch.core
import pytest
from typer.testing import CliRunner

from steinkern import cli
from steinkern.cli import datasets as cli_data
from steinkern.experiments.data.datasets import DATASETS, REGRESSIONS, load_covtype, load_regression, path_of
from steinkern.experiments.data.sources import SOURCES, check, digest, fetch, write_arrays
from tests.miniatures import (
    MINIATURES,
    ROWS,
    Answer,
    Server,
    archive,
    expected_regression,
    lines,
    numbers,
    offer,
    workbook,
)


@pytest.fixture
def server():
    running = Server()
    yield running
    running.close()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Between two tries pooch sleeps for seconds."""
    monkeypatch.setattr(pooch.core, "time", SimpleNamespace(sleep=lambda seconds: None))


def leftovers(directory):
    return [path for path in directory.rglob("*") if path.is_file() and path.suffix != ".npz"]


@pytest.mark.parametrize("name", DATASETS)
def test_an_original_in_its_true_format_becomes_the_dataset(name, server, tmp_path):
    _, expected = MINIATURES[name]()
    (status,) = fetch([name], tmp_path, sources=offer(server, name))
    assert (status.name, status.rows, status.detail) == (name, ROWS, "")
    assert status.state == ("unknown" if name == "year" else "ok")
    assert status.bytes == path_of(name, tmp_path).stat().st_size
    with np.load(path_of(name, tmp_path)) as file:
        assert sorted(file.files) == sorted(expected)
        for key in expected:
            np.testing.assert_array_equal(file[key], expected[key], err_msg=key)
            assert file[key].dtype == expected[key].dtype, key
    assert leftovers(tmp_path) == []
    if name == "covtype":
        np.testing.assert_array_equal(load_covtype(tmp_path).features, expected["X"])
        return
    loaded = load_regression(name, tmp_path)
    np.testing.assert_array_equal(loaded.features, expected["data"][:, expected["index_features"]])
    np.testing.assert_array_equal(loaded.targets, expected["data"][:, expected["index_target"]])
    assert loaded.test_rows.shape == {"year": (1, 2), "protein": (5, 2)}.get(name, (20, 2))


def test_every_dataset_has_a_source_and_all_but_year_a_digest():
    assert tuple(SOURCES) == DATASETS
    for name, source in SOURCES.items():
        assert source.url.startswith("https://")
        assert (source.digest is None) == (name == "year")
        assert source.digest is None or len(bytes.fromhex(source.digest)) == 32


def test_the_digest_sees_names_types_shapes_and_values_but_not_memory_order():
    table = np.arange(6, dtype=np.int16).reshape(2, 3)
    same = digest({"a": table})
    assert digest({"a": np.asfortranarray(table)}) == same
    assert digest({"a": table.astype(">i2")}) == same
    others = [{"b": table}, {"a": table.astype(np.int32)}, {"a": table.reshape(3, 2)}, {"a": table + 1}, {}]
    assert len({same, *map(digest, others)}) == 6


def test_what_is_there_and_good_is_not_downloaded_again(server, tmp_path):
    moved = offer(server, "boston", "year")
    fetch([], tmp_path, sources=moved)
    fetch([], tmp_path, sources=moved)
    assert sorted(server.requests) == ["/boston", "/year"]


def test_other_data_under_the_address_are_refused(server, tmp_path):
    moved = offer(server, "boston")
    expected, found = moved["boston"].digest, digest(expected_regression(numbers(14) + 1, range(13), 13))
    server.answers["/boston"] = [Answer(lines(numbers(14) + 1, " "))]
    with pytest.raises(ValueError, match=r"boston: .* holds other data") as raised:
        fetch(["boston"], tmp_path, sources=moved)
    assert expected in str(raised.value)
    assert found in str(raised.value)
    assert list(tmp_path.rglob("*.npz")) == leftovers(tmp_path) == []


def test_a_published_checksum_of_the_original_is_compared(server, tmp_path):
    moved = offer(server, "covtype")
    moved["covtype"] = replace(moved["covtype"], checksum="sha256:" + "0" * 64)
    with pytest.raises(ValueError, match=r"covtype: .* holds another file"):
        fetch(["covtype"], tmp_path, sources=moved)
    assert list(tmp_path.rglob("*.npz")) == leftovers(tmp_path) == []


@pytest.mark.parametrize("name", DATASETS)
def test_an_original_cut_short_is_refused(name, server, tmp_path):
    moved = offer(server, name)
    body = server.answers[f"/{name}"][0].body
    server.answers[f"/{name}"] = [Answer(body[: len(body) // 2])]
    with pytest.raises(ValueError, match=f"^{name}: .*(not the file expected|holds other data)") as raised:
        fetch([name], tmp_path, sources=moved)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.rglob("*.npz")) == leftovers(tmp_path) == []


@pytest.mark.parametrize("name", DATASETS)
def test_a_page_in_place_of_an_original_is_refused(name, server, tmp_path):
    moved = offer(server, name)
    server.answers[f"/{name}"] = [Answer(b"<html>\n<h1>Please log in</h1>\n</html>\n")]
    with pytest.raises(ValueError, match=f"^{name}: .*not the file expected") as raised:
        fetch([name], tmp_path, sources=moved)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["energy", "power"])
def test_a_workbook_without_the_sheet_is_refused(name, server, tmp_path):
    moved = offer(server, name)
    member = {"energy": "ENB2012_data.xlsx", "power": "Folds5x2_pp.xlsx"}[name]
    table = np.zeros((0, 10)) if name == "energy" else numbers(5)
    server.answers[f"/{name}"] = [Answer(archive(**{member: workbook(table)}))]
    with pytest.raises(ValueError, match="no sheet of it"):
        fetch([name], tmp_path, sources=moved)


def test_an_archive_without_the_file_is_refused(server, tmp_path):
    moved = offer(server, "yacht")
    server.answers["/yacht"] = [Answer(archive(other=b"1 2"))]
    with pytest.raises(ValueError, match=r"no file yacht_hydrodynamics\.data, only Readme\.txt, other"):
        fetch(["yacht"], tmp_path, sources=moved)


@pytest.mark.parametrize(
    "first",
    [[Answer(status=503)], [Answer(status=500), Answer(status=502), Answer(b"1 2 3", missing=400)]],
    ids=["server error", "three failures"],
)
def test_a_passing_failure_is_tried_again(first, server, tmp_path):
    moved = offer(server, "boston")
    server.answers["/boston"] = [*first, *server.answers["/boston"]]
    assert fetch(["boston"], tmp_path, sources=moved)[0].state == "ok"
    assert len(server.requests) == len(first) + 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [(Answer(status=404), "404"), (Answer(b"1 2 3", missing=400), "IncompleteRead")],
    ids=["missing", "connection closed early"],
)
def test_a_lasting_failure_is_one_clear_line(answer, message, server, tmp_path):
    moved = offer(server, "boston")
    server.answers["/boston"] = [answer]
    with pytest.raises(OSError, match=f"boston: .* cannot be downloaded: .*{message}") as raised:
        fetch(["boston"], tmp_path, sources=moved)
    assert "\n" not in str(raised.value)
    assert len(server.requests) == 4
    assert list(tmp_path.rglob("*.npz")) == leftovers(tmp_path) == []


def test_a_failure_replaces_nothing_and_a_success_what_differs(server, tmp_path):
    moved = offer(server, "boston")
    path = path_of("boston", tmp_path)
    write_arrays(path, expected_regression(numbers(14) + 1, range(13), 13))
    before = path.read_bytes()
    server.answers["/boston"].insert(0, Answer(b"sorry"))
    with pytest.raises(ValueError, match="not the file expected"):
        fetch(["boston"], tmp_path, sources=moved)
    assert path.read_bytes() == before
    assert check(tmp_path, sources=moved)[0].state == "differs"
    assert fetch(["boston"], tmp_path, sources=moved)[0].state == "ok"


def test_a_failure_while_writing_leaves_the_old_file(monkeypatch, tmp_path):
    path = path_of("boston", tmp_path)
    write_arrays(path, {"old": np.ones(3)})

    def fill_the_disk(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", fill_the_disk)
    with pytest.raises(OSError, match="No space left"):
        write_arrays(path, {"new": np.ones(3)})
    assert [found.name for found in path.parent.iterdir()] == ["boston.npz"]
    assert np.load(path)["old"].tolist() == [1.0, 1.0, 1.0]


def test_an_interrupted_fetch_leaves_nothing_and_what_a_killed_one_left_does_no_harm(server, tmp_path):
    moved = offer(server, "boston")

    def interrupt(path, most):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(["boston"], tmp_path, sources={"boston": replace(moved["boston"], parse=interrupt)})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".fetch-killed").mkdir()
    (tmp_path / ".fetch-killed" / "boston").write_bytes(b"0.1 0.2")
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci" / ".boston.npzkilled").write_bytes(b"PK")
    assert check(tmp_path, sources=moved)[0].state == "absent"
    assert fetch(["boston"], tmp_path, sources=moved)[0].state == "ok"


def test_one_failure_does_not_keep_the_others_away(server, tmp_path):
    moved = offer(server, "boston", "yacht", "concrete")
    server.answers["/boston"] = [Answer(status=404)]
    with pytest.raises(OSError, match=r"^boston: "):
        fetch([], tmp_path, sources=moved)
    assert [status.state for status in check(tmp_path, sources=moved)] == ["absent", "ok", "ok"]
    server.answers["/yacht"] = [Answer(b"")]
    path_of("yacht", tmp_path).unlink()
    with pytest.raises(OSError, match=r"^2 of 3 failed: boston: .* yacht: "):
        fetch([], tmp_path, sources=moved)


def test_a_directory_that_cannot_be_written_to_is_refused_before_any_download(server, tmp_path):
    (tmp_path / "file").write_text("not a directory")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=r"data directory .* cannot be written to: .* `--data`"):
            fetch(["boston"], directory, sources=offer(server, "boston"))
    assert server.requests == []


def run(*arguments: str):
    return CliRunner().invoke(cli.app, ["data", *arguments], catch_exceptions=False)


def test_check_of_an_empty_directory_says_that_all_is_absent(tmp_path):
    result = run("check", "--data", str(tmp_path / "nothing"))
    assert result.exit_code == 0
    assert [line.split() for line in result.output.splitlines()[: len(DATASETS)]] == [[n, "absent"] for n in DATASETS]
    assert not (tmp_path / "nothing").exists()


def test_fetch_then_check_of_a_good_directory(server, tmp_path, monkeypatch):
    moved = offer(server, "boston", "year", "covtype")
    monkeypatch.setattr(cli_data, "fetch_sources", partial(fetch, sources=moved))
    monkeypatch.setattr(cli_data, "check_sources", partial(check, sources=moved))
    monkeypatch.setenv("STEINKERN_DATA", str(tmp_path))
    for command in (["fetch", "boston", "year"], ["check"]):
        result = run(*command)
        assert result.exit_code == 0
        lines_ = result.output.splitlines()
        assert lines_[0].split()[:4] == ["boston", "present", str(ROWS), "rows"]
        assert lines_[0].endswith("digest ok")
        assert lines_[1].endswith("digest unknown: not verified")
        assert str(tmp_path) in result.output.replace("\n", "")
    assert lines_[2].split() == ["covtype", "absent"]


def test_check_of_a_bad_directory_says_what_is_wrong_and_exits_with_one(tmp_path):
    write_arrays(path_of("boston", tmp_path), expected_regression(numbers(14), range(13), 13))
    result = run("check", "--data", str(tmp_path))
    assert result.exit_code == 1
    assert f"digest differs: expected digest {SOURCES['boston'].digest}, found" in result.output
    path_of("boston", tmp_path).write_bytes(b"PK\3\4 and then nothing")
    result = run("check", "--data", str(tmp_path))
    assert result.exit_code == 1
    assert "damaged" in result.output.splitlines()[0]
    assert "steinkern data fetch boston" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fetch", "bosten"], "`dataset` must be one of 'boston'"),
        (["fetch", "boston", "--data", f"{__file__}/nowhere"], "cannot be written to"),
        (["fetch", "boston"], "cannot be downloaded"),
    ],
    ids=["unknown name", "unwritable", "no network"],
)
def test_a_failed_command_is_one_clear_line_and_a_non_zero_exit(arguments, message, tmp_path, monkeypatch, capsys):
    elsewhere = {"boston": replace(SOURCES["boston"], url="http://127.0.0.1:9/")}
    if message == "cannot be downloaded":
        monkeypatch.setattr(cli_data, "fetch_sources", partial(fetch, sources=elsewhere))
    monkeypatch.setenv("STEINKERN_DATA", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["steinkern", "data", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("steinkern: ")
    assert message in error
    assert "\n" not in error


@pytest.mark.parametrize("arguments", [[], ["fetch"], ["check"]], ids=["data", "fetch", "check"])
def test_help_reads_well(arguments):
    result = run(*arguments, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_all_regressions_are_tried_here():
    assert set(MINIATURES) == {*REGRESSIONS, "covtype"}
