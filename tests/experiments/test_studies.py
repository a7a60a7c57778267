"""What all studies have in common: refusals, settings files, recorded settings, quick runs, and where they import."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steinkern import cli
from steinkern.cli.studies import STUDIES
from steinkern.core.extras import install_command
from steinkern.experiments import driver
from steinkern.experiments.methods import COLOURS, TITLES

RESULTS = Path(__file__).parents[2] / "results"
BY_NAME = {study.name: study for study in STUDIES}
NAMES = tuple(BY_NAME)
SEARCHED = tuple(name for name in NAMES if name != "images")
"""The studies with a recorded search; the settings of the others are starting points."""
CASES = {"toy": "sine", "covtype": "covtype", "uci": "boston", "sentences": "mr", "images": "mlp"}
"""A case of each study that its search has settings for."""
OPTIONS = {"toy": "--targets", "uci": "--datasets", "sentences": "--datasets", "images": "--cases"}
"""The option that names cases."""


def wrap(name: str, settings: object) -> dict[str, object]:
    """The content of a settings file with these settings by method."""
    return {"winners": settings if name == "covtype" else {CASES[name]: settings}}


COMMON = [
    (["--quick", "--tune"], "exclude each other"),
    (["--tune", "--settings", "some.json"], "leave out `--settings`"),
    (["--settings", "nowhere.json"], "`--settings` nowhere.json cannot be read"),
    (["--settings", "broken.json"], "is not a settings.json from --tune"),
    (["--settings", "other.json"], "is not a settings.json from --tune: it has another layout."),
    (["--settings", "names.json"], "a setting must have "),
    (["--settings", "list.json"], "a setting must have "),
    (["--settings", "zero.json"], "`step_size` must be positive"),
    (["--settings", "null.json"], "`step_size` must be a positive number"),
    (["--settings", "method.json"], "`method` must be one of"),
    (["--quick", "--settings", "empty.json"], "`--settings` holds none for"),
    (["--quick", "--out", f"{__file__}/nowhere"], "cannot be written to"),
]
OWN = {
    "toy": [(["--seeds", "0"], "`--seeds` must be a whole number")],
    "covtype": [
        (["--trials", "0"], "`--trials` must be a whole number"),
        (["--trials", "1001"], "`--trials` must be at most 1000"),
        (["--data", "nowhere"], "steinkern data fetch covtype"),
        (["--settings", "undamped.json"], "`damping` must be given for mixture, got none"),
    ],
    "uci": [
        (["--datasets", "year", "--data", "nowhere"], "steinkern data fetch year"),
        (["--datasets", "boston", "--data", "nowhere"], "steinkern data fetch boston"),
        (["--hidden-layers", "0"], "`--hidden-layers` must be a whole number"),
        (["--settings", "undamped.json"], "`damping` must be given for mixture, got none"),
    ],
    "sentences": [
        (["--datasets", "generated"], "`--datasets` must be among mr, cr, subj, mpqa, got generated"),
        (["--folds", "11"], "`--folds` must be a whole number from 1 to 10"),
        (["--data", "nowhere"], "docs/data.md"),
        (["--settings", "few.json"], "there must be 10 of step_size, one a fold"),
        (["--settings", "undamped.json"], "`damping` must be given for mixture, got none"),
        (["--quick", "--datasets", "mr"], "`--quick` runs on a generated corpus"),
        (["--tune", "--folds", "2"], "`--tune` searches settings for all folds"),
    ],
    "images": [
        (["--data", "nowhere"], "steinkern data fetch"),
        (["--seeds", "0"], "`--seeds` must be a whole number"),
        (["--seeds", "1001"], "`--seeds` must be at most 1000"),
        (
            ["--cases", "lenet_time", "--times", "nowhere.json"],
            "`--times` must hold the seconds of the mixture and of every method to run on lenet",
        ),
    ],
}
LISTS = [
    ("moon", "must be among"),
    (",", "must name at least one of"),
    ("{0},{0}", "each once"),
]


def refusals():
    """Every study with every bad line of arguments, and what the error says."""
    for name, study in BY_NAME.items():
        lines = [*COMMON, *OWN[name]]
        if name in OPTIONS:
            lists = [(listed.format(CASES[name]), message) for listed, message in LISTS]
            lines += [([OPTIONS[name], listed], f"`{OPTIONS[name]}` {message}") for listed, message in lists[:2]]
            lines += [([OPTIONS[name], lists[2][0], *tune], "each once") for tune in ([], ["--tune"])]
            lines += [([OPTIONS[name], listed, "--tune"], message) for listed, message in lists[:2]]
        if study.selectable:
            lines += [(["--methods", "svm"], "`--methods` must be among"), (["--methods", ","], "at least one of")]
        if study.parallel:
            lines.append((["--quick", "--jobs", "0"], "`--jobs` must be a whole number"))
        if name in ("sentences", "images"):  # their quick runs have settings of their own
            lines = [line for line in lines if "empty.json" not in line[0]]
        for options, message in lines:
            yield pytest.param(name, options, message, id=f"{name} {' '.join(options)}")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A directory with settings files that are none, for every study."""
    monkeypatch.chdir(tmp_path)

    def write(name: str) -> None:
        whole = driver.read_settings(BY_NAME[name], None)[CASES[name]]
        sgld, mixture = dict(whole["sgld"]), dict(whole["mixture"])
        sizes = sgld["step_size"]
        contents = {
            "broken.json": None,
            "other.json": [1, 2],
            "empty.json": {"winners": {}},
            "names.json": wrap(name, {"sgld": {**sgld, "step": 1}}),
            "list.json": wrap(name, {"sgld": [0.1]}),
            "zero.json": wrap(name, {"sgld": {**sgld, "step_size": [0.0] * 10 if isinstance(sizes, list) else 0.0}}),
            "null.json": wrap(name, {"sgld": {**sgld, "step_size": None}}),
            "method.json": wrap(name, {"svm": sgld}),
            "few.json": wrap(name, {"sgld": {**sgld, "step_size": [0.1]}}),
            "undamped.json": wrap(name, {"mixture": {key: mixture[key] for key in mixture if key != "damping"}}),
        }
        for file, content in contents.items():
            Path(file).write_text("{" if content is None else json.dumps(content))

    return write


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("name", "options", "message"), list(refusals()))
def test_bad_input_is_one_line_and_a_non_zero_exit(name, options, message, files, tmp_path, monkeypatch, capsys):
    files(name)
    out = [] if "--out" in options else ["--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["steinkern", "reproduce", name, *options, *out])
    with pytest.raises(SystemExit) as error:
        cli.main()
    assert error.value.code == 2
    printed = capsys.readouterr().err.strip()
    assert printed.startswith("steinkern: ")
    assert message in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("file", "arguments", "message"),
    [
        ("settings.json", ["--settings", "{}/settings.json"], "is not a settings.json from --tune"),
        ("search.json", ["--tune"], "is not the journal of an experiment"),
        ("journal", ["--quick"], "is not the journal of an experiment"),
    ],
    ids=["settings", "search", "journal"],
)
def test_a_file_nested_beyond_measure_is_one_clear_line(file, arguments, message, name, tmp_path, monkeypatch, capsys):
    study = BY_NAME[name]
    monkeypatch.setattr(type(study), "tuning_tasks", lambda self, **options: {})
    (tmp_path / (study.journal if file == "journal" else file)).write_text("[" * 100_000)
    given = [argument.format(tmp_path) for argument in arguments]
    monkeypatch.setattr("sys.argv", ["steinkern", "reproduce", name, "--out", str(tmp_path), *given])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("name", SEARCHED)
def test_recorded_settings_are_the_winners_of_the_recorded_search_and_of_the_recorded_results(name):
    study = BY_NAME[name]
    recorded = driver.read_settings(study, None)
    search = json.loads((RESULTS / name / "search.json").read_text())
    reported = json.loads((RESULTS / name / "results.json").read_text())["settings"]["winners"]
    assert set(recorded) == {case for case in cases_of(name) if case not in study.settings_from}
    for case, methods in recorded.items():
        assert set(methods) == set(study.methods)
        for method, setting in methods.items():
            cells = study.cells(method, case, Searched(name, case))
            pieces = [search[cell.key] for cell in cells]
            values = [study.values(piece if study.bare_search else piece["result"]) for piece in pieces]
            chosen = driver.choose(f"{method} on {case}", cells, [value for own in values for value in own])
            shown = reported[method] if study.single_case else reported[case][method]
            assert setting == chosen == shown
            for cell, piece in zip(cells, pieces, strict=True):
                if not study.bare_search:
                    made_from = json.loads(json.dumps({**cell.made_from, **Searched(name, case).protocol()}))
                    assert piece["made_from"] == made_from


def cases_of(name: str) -> tuple[str, ...]:
    from steinkern.experiments.data.text import TEXTS
    from steinkern.experiments.images.networks import NETWORKS
    from steinkern.experiments.toy.targets import PAPER
    from steinkern.experiments.uci import study as uci

    return {"toy": PAPER, "covtype": ("covtype",), "uci": uci.PAPER, "sentences": TEXTS, "images": NETWORKS}[name]


class Searched:
    """Stands for the task of a recorded search: what its search.json says about data and sizes."""

    def __init__(self, name: str, case: str):
        from steinkern.experiments.covtype.study import REPORTED
        from steinkern.experiments.sentences.runs import EPOCHS
        from steinkern.experiments.toy.targets import TARGETS

        self.target = TARGETS["sine"] if case not in TARGETS else TARGETS[case]
        self.epochs, self.checkpoints, self.all_weights = EPOCHS, REPORTED, False
        search = json.loads((RESULTS / name / "search.json").read_text())
        pieces = [piece for key, piece in search.items() if name == "covtype" or key.startswith(f"{case}/")]
        self._made_from = {} if name == "toy" else pieces[0]["made_from"]

    def protocol(self) -> dict[str, object]:
        return {name: value for name, value in self._made_from.items() if name not in ("settings", "numbers")}

    def epochs_of(self, method: str) -> int:
        return self._made_from["epochs"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "methods", "case", "files"),
    [
        ("uci", "average,ensemble", "diabetes", ("diabetes.png", "rows.json")),
        ("covtype", "sgld,mixture", "breast_cancer", ("curves.png", "curves.json")),
    ],
)
def test_quick_mode_needs_no_download(name, methods, case, files, tmp_path):
    arguments = ["reproduce", name, "--quick", "--methods", methods, "--out", str(tmp_path)]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    for file in ("results.json", "table.md", *files):
        assert (tmp_path / file).stat().st_size > 300, file
    assert {row["case"] for row in json.loads((tmp_path / "results.json").read_text())["rows"]} == {case}


def test_every_method_has_a_colour_and_no_figure_has_two_of_one():
    assert set(COLOURS) == set(TITLES.values())
    for study in STUDIES:
        drawn = [COLOURS[TITLES[method]] for method in study.methods]
        assert len(set(drawn)) == len(drawn)


@pytest.mark.thorough
def test_studies_import_where_nothing_can_be_installed():
    blocked = ("typer", "rich", "matplotlib", "sklearn", "pooch", "openpyxl", "jinja2")
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked}))\n"
    code += "".join(f"import steinkern.experiments.{name}.study\n" for name in NAMES)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_packages_of_figures_and_pages_are_asked_for_before_the_study_runs(tmp_path, monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "jinja2" else found(name, *rest)
    )
    monkeypatch.setattr(sys, "argv", ["steinkern", "reproduce", "toy", "--quick", "--out", str(tmp_path / "toy")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert f"`reproduce` needs jinja2: {install_command('experiments')}." in capsys.readouterr().err
    assert not (tmp_path / "toy").exists()
