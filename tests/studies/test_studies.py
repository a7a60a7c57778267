"""What all studies have in common: refusals, settings files, recorded settings, and quick runs."""

import json
from pathlib import Path

import numpy as np
import optax
import pytest

import steinkern as sk
from studies import driver
from studies.__main__ import STUDIES, main
from studies.covtype.study import REPORTED
from studies.data.text import TEXTS
from studies.methods import COLORS, TITLES, build
from studies.sentences.runs import EPOCHS
from studies.toy import targets as toy
from studies.uci import study as uci

RESULTS = Path(__file__).parents[2] / "results"
BY_NAME = {study.name: study for study in STUDIES}
SEARCHED = {"toy": {*toy.PAPER}, "covtype": {"covtype"}, "uci": {*uci.PAPER}, "sentences": {*TEXTS}}
"""The cases of studies with a recorded search; the settings of the others are starting points."""
CASES = {"toy": "sine", "covtype": "covtype", "uci": "boston", "sentences": "mr", "images": "mlp"}
"""A case of each study that its search has settings for."""
OPTIONS = {"toy": "--targets", "uci": "--datasets", "sentences": "--datasets", "images": "--cases"}
"""The option that names cases."""


KINDS = {
    "sgld": sk.samplers.SGLD,
    "psgld": sk.samplers.PSGLD,
    "vanilla": sk.samplers.FixedKernel,
    "svn": sk.samplers.SVN,
    "average": sk.samplers.AverageMetric,
    "mixture": sk.samplers.AnchorMixture,
    "ensemble": sk.samplers.Ensemble,
    "point": sk.samplers.Ensemble,
}
"""The sampler of each method, or the rule of its kernel."""

COMMON = [
    (["--quick", "--tune"], "leave out `--quick`"),
    (["--tune", "--settings", "some.json"], "leave out `--quick` and `--settings`"),
    (["--settings", "nowhere.json"], "nowhere.json"),
    (["--settings", "broken.json"], "broken.json must be JSON"),
    (["--settings", "other.json"], "must be a settings.json from --tune"),
    (["--settings", "names.json"], "a setting must have "),
    (["--settings", "list.json"], "a setting must have "),
    (["--settings", "zero.json"], "`step_size` must be positive"),
    (["--settings", "null.json"], "`step_size` must be a positive number"),
    (["--settings", "method.json"], "`method` must be one of"),
    (["--quick", "--settings", "empty.json"], "`--settings` holds none for"),
    (["--quick", "--out", f"{__file__}/nowhere"], "Not a directory"),
    (["--quick", "--jobs", "0"], "`--jobs` must be a whole number"),
]
OWN = {
    "toy": [(["--seeds", "0"], "`--seeds` must be a whole number")],
    "covtype": [
        (["--trials", "0"], "`--trials` must be a whole number"),
        (["--trials", "1001"], "`--trials` must be at most 1000"),
    ],
    "uci": [],
    "sentences": [
        (["--datasets", "generated"], "must be among mr, cr, subj, mpqa, each once, got generated"),
        (["--folds", "11"], "`--folds` must be a whole number from 1 to 10"),
        (["--data", "nowhere"], "docs/data.md"),
        (["--settings", "few.json"], "there must be 10 of step_size, one a fold"),
        (["--quick", "--datasets", "mr"], "`--quick` runs on a generated corpus"),
        (["--tune", "--folds", "2"], "`--tune` searches settings for all folds"),
        (["--tune", "--all-weights"], "`--tune` has nothing to search with `--all-weights`"),
        (["--quick", "--all-weights", "--settings", "own.json"], "`--settings` has no effect"),
    ],
    "images": [
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
    (",", "got none"),
    ("{0},{0}", "each once"),
]


def refusals():
    """Every study with every bad line of arguments, and what the error says."""
    for name, study in BY_NAME.items():
        lines = [*COMMON, *OWN[name]]
        if name in OPTIONS:
            lists = [[OPTIONS[name], listed.format(CASES[name])] for listed, _ in LISTS]
            for tune in ([], ["--tune"]):
                lines += [([*line, *tune], message) for line, (_, message) in zip(lists, LISTS, strict=True)]
        if study.selectable:
            lines += [(["--methods", "svm"], "`--methods` must be among"), (["--methods", ","], "got none")]
        if name in ("sentences", "images"):  # their quick runs have settings of their own
            lines = [line for line in lines if "empty.json" not in line[0]]
        for options, message in lines:
            yield pytest.param(name, options, message, id=f"{name} {' '.join(options)}")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A directory with settings files that are none, for every study."""
    monkeypatch.chdir(tmp_path)

    def write(name: str) -> None:
        case = CASES[name]
        sgld = driver.read_settings(BY_NAME[name], None)[case]["sgld"]
        changes = {
            "names": {**sgld, "step": 1},
            "list": [0.1],
            "zero": {**sgld, "step_size": np.zeros_like(sgld["step_size"]).tolist()},
            "null": {**sgld, "step_size": None},
            "few": {**sgld, "step_size": [0.1]},
        }
        contents = {file: json.dumps({"winners": {case: {"sgld": setting}}}) for file, setting in changes.items()}
        contents |= {"broken": "{", "other": "[1, 2]", "empty": '{"winners": {}}'}
        contents["method"] = json.dumps({"winners": {case: {"svm": sgld}}})
        for file, content in contents.items():
            Path(f"{file}.json").write_text(content)

    return write


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("name", "options", "message"), list(refusals()))
def test_bad_input_ends_the_command_with_one_line(name, options, message, files, tmp_path):
    files(name)
    out = [] if "--out" in options else ["--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as error:
        main([name, *options, *out])
    assert str(error.value).startswith("studies: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("name", SEARCHED)
def test_recorded_settings_are_the_winners_of_the_recorded_search_and_of_the_recorded_results(name):
    study = BY_NAME[name]
    recorded = driver.read_settings(study, None)
    search = json.loads((RESULTS / name / "search.json").read_text())
    reported = json.loads((RESULTS / name / "results.json").read_text())["settings"]["winners"]
    assert set(recorded) == SEARCHED[name]
    for case, methods in recorded.items():
        assert set(methods) == set(study.methods)
        for method, setting in methods.items():
            cells = study.cells(method, case, Searched(name, case))
            pieces = [search[cell.key] for cell in cells]
            values = [study.values(piece["result"]) for piece in pieces]
            chosen = driver.choose(f"{method} on {case}", cells, [value for single in values for value in single])
            assert setting == chosen == reported[case][method]
            for cell, piece in zip(cells, pieces, strict=True):
                made_from = json.loads(json.dumps({**cell.made_from, **Searched(name, case).protocol()}))
                assert piece["made_from"] == made_from


class Searched:
    """Stands for the task of a recorded search: what its search.json says about data and sizes."""

    def __init__(self, name: str, case: str):
        self.target = toy.TARGETS.get(case)
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
        ("covtype", "sgld,mixture", "breast_cancer", ("curves.png", "rows.json")),
    ],
)
def test_quick_mode_needs_no_download(name, methods, case, files, tmp_path):
    main([name, "--quick", "--methods", methods, "--out", str(tmp_path)])
    for file in ("results.json", "table.md", *files):
        assert (tmp_path / file).stat().st_size > 300, file
    assert {row["case"] for row in json.loads((tmp_path / "results.json").read_text())["rows"]} == {case}


@pytest.mark.parametrize("method", KINDS)
def test_methods_are_made_of_their_samplers(method):
    moves = build(method, optax.adam(0.1), 0.1, sk.Hessian())
    assert type(getattr(moves, "rule", moves)) is KINDS[method]


def test_every_method_has_a_color_and_no_figure_has_two_of_one():
    assert set(COLORS) == set(TITLES.values())
    for study in STUDIES:
        colors = [COLORS[TITLES[method]] for method in study.methods]
        assert len(set(colors)) == len(colors)
