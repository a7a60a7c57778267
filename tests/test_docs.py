"""What the README and the docs print is run, and what they name exists."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from docs import default_tables, pictures, tables

import steinkern as sk
from steinkern.experiments.tables import read_results

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]


@pytest.fixture
def single_precision():
    """The README is read by people who have not switched on double precision."""
    with jax.enable_x64(False):
        yield


def python_blocks(text: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S))


def sections_with_code(page: Path) -> dict[str, str]:
    """The Python of every section of a page, under its title."""
    parts = re.split(r"^## (.*)$", page.read_text(), flags=re.M)
    codes = {title: python_blocks(text) for title, text in zip(parts[1::2], parts[2::2], strict=True)}
    return {title: code for title, code in codes.items() if code}


@pytest.mark.thorough
def test_the_first_lines_of_the_readme_run(single_precision, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    code = sections_with_code(ROOT / "README.md")["Fit"]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(code, "README.md: Fit", "exec"), {})
    assert_first_lines(capsys.readouterr().out)
    assert "log_density" in (tmp_path / "out" / "banana" / "index.html").read_text()


def assert_first_lines(printed: str) -> None:
    spread = {line.split()[0]: float(line.split()[2]) for line in printed.splitlines() if "x[" in line}
    # The README rounds to one decimal, which is 0.05; another machine's float32 moves the last digits.
    assert spread["x[0]"] == pytest.approx(2.0, abs=0.1)
    assert spread["x[1]"] == pytest.approx(1.3, abs=0.1)


@pytest.mark.thorough
def test_every_section_of_the_readme_runs_on_its_own_and_says_what_it_says(
    single_precision, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    found: dict[str, dict] = {}
    printed: dict[str, str] = {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for title, code in sections_with_code(ROOT / "README.md").items():
            exec(compile(code, f"README.md: {title}", "exec"), names := {})
            found[title], printed[title] = names, capsys.readouterr().out
    assert_first_lines(printed["Fit"])
    assert "converged" in printed["Sample: nothing to tune"]
    assert_near_nuts(found["Data and minibatches"]["logistic"].particles)


def assert_near_nuts(particles: dict) -> None:
    """As the README says of its logistic regression. The reference: 10,000 draws of NumPyro's NUTS on all rows."""
    mean, sd = np.array([0.3284, 1.1477, -2.1242, 0.5252]), np.array([0.0629, 0.0719, 0.1004, 0.0661])
    found = np.column_stack([particles["intercept"], particles["weights"]])
    # 0.2 and 5 % in the README; another machine's float32 draws other batches' worth of rounding.
    assert (np.abs(found.mean(axis=0) - mean) < 0.3 * sd).all(), found.mean(axis=0)
    assert (np.abs(found.std(axis=0) / sd - 1) < 0.1).all(), found.std(axis=0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_the_docs_exist(page: Path):
    text = page.read_text()
    for name in re.findall(r"`(?:sk|steinkern)\.([A-Za-z_.0-9]+)", text):
        owner = sk
        for part in name.rstrip(".").split("."):
            assert hasattr(owner, part), f"{page.name} names {name}"
            owner = getattr(owner, part)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_in_the_docs_lead_somewhere(page: Path):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)  # code has brackets of its own
    for link in re.findall(r"\]\(([^)#]+)\)", prose):
        assert link.startswith("http") or (page.parent / link).exists(), f"{page.name} links to {link}"


IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)\n\n(.*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_picture_has_alternative_text_and_a_sentence_and_is_small(page: Path):
    text = page.read_text()
    shown = IMAGE.findall(text)
    assert len(shown) == text.count("![")
    for alternative, link, sentence in shown:
        assert len(alternative) > 20, link
        assert page.name == "README.md" or sentence.startswith("*"), f"{page.name} says nothing below {link}"
        assert (page.parent / link).stat().st_size < 300_000, link


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "tutorials").glob("*.md")), ids=lambda page: page.stem)
def test_every_tutorial_shows_a_picture_that_its_code_makes(page: Path):
    assert pictures.saved_pictures(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_picture_that_the_code_of_a_page_makes_is_shown_on_the_page(page: Path):
    shown = [Path(link).name for _, link, _ in IMAGE.findall(page.read_text())]
    for name in pictures.saved_pictures(page):
        assert name in shown, f"{page.name} does not show {name}"
        assert (pictures.IMAGES / name).exists(), "run `make docs-pictures`"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", tables.pages(), ids=lambda page: page.stem)
def test_the_pages_of_results_hold_the_tables_of_the_results(page: Path):
    text = page.read_text()
    assert tables.filled(page) == text, "run `make results-pages`"
    assert text.count("\n|") > 5


def test_the_page_of_both_defaults_holds_the_tables_of_the_benchmarks():
    text = default_tables.PAGE.read_text()
    assert default_tables.filled_default() == text, "run `make results-pages`"
    assert all(f"<!-- table: {name} -->" in text for name in default_tables.TABLES)


def test_the_row_of_every_study_in_the_readme_is_that_of_its_results():
    readme = (ROOT / "README.md").read_text()

    def means(study: str, metric: str) -> dict[tuple[str, str], tuple[float, float | None]]:
        _, _, rows = read_results(ROOT / "results" / study / "results.json")
        return {(row.case, row.method): (row.mean, row.paper) for row in rows if row.metric == metric}

    toy = means("toy", "log_mmd2@30")
    assert f"| −{-toy['sine', 'mixture'][0]:.2f} ± 0.11 |" in readme
    assert f"(vanilla SVGD −{-toy['sine', 'vanilla'][0]:.2f})" in readme
    errors = means("sentences", "error")
    sets = ("mr", "cr", "subj", "mpqa")
    ours, paper = (", ".join(f"{errors[name, 'mixture'][place]:.1f}" for name in sets) for place in (0, 1))
    assert f"| {ours} | {paper} |" in readme
    rmse = means("uci", "rmse")
    best = {case: min(paper for (other, _), (_, paper) in rmse.items() if other == case and paper is not None)
            for case, method in rmse if method == "mixture"}  # fmt: skip
    below = sum(rmse[case, "mixture"][0] <= value + 5e-4 for case, value in best.items())
    assert f"| {below} of {len(best)} |" in readme


def test_every_promise_of_reliability_names_tests_that_exist():
    page = (ROOT / "docs" / "reliability.md").read_text()
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_[a-z_0-9]+)(…?)`", page)
    assert len(named) > 20
    for name, shortened in named:
        assert re.search(rf"def {name}{'' if shortened else chr(92) + '('}", tests), name


def test_the_table_of_faults_is_that_of_the_benchmark():
    _, _, rows = read_results(ROOT / "benchmarks" / "results" / "faults.json")
    page = (ROOT / "docs" / "reliability.md").read_text()
    counts = {case: {} for case in dict.fromkeys(row.case for row in rows)}
    for row in rows:
        counts[row.case][row.metric] = int(row.mean)
    assert sum(count["injected"] for count in counts.values()) >= 100
    for case, count in counts.items():
        assert f"| {case} | {count['injected']} | {count['survived']} | {count['lost']} |" in page
        assert count["lost"] == 0


def test_everything_public_has_a_docstring():
    public = {name: getattr(sk, name) for name in dir(sk)}
    assert len(public) > 100
    for name, value in public.items():
        if not name.startswith("_") and callable(value):
            assert value.__doc__, name
            for method, function in vars(value).items() if isinstance(value, type) else ():
                if not method.startswith("_") and callable(function):
                    inherited = any(getattr(getattr(base, method, None), "__doc__", None) for base in value.__mro__)
                    assert inherited, f"{name}.{method}"
