"""The README and the pages: their code runs and prints what they print; their names, links and numbers exist."""

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

import steinkern as sk
from docs._build import pictures, tables
from tests.helpers import browser

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *DOCS, ROOT / "CONTRIBUTING.md"]
NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)\n\n(.*)")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def assert_printed(printed: str, expected: str) -> None:
    """The same words, and the same numbers to 15 percent, to 0.05, or to one unit of the last digit expected."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", expected).split(), printed
    for number, wanted in zip(NUMBER.findall(printed), NUMBER.findall(expected), strict=True):
        digits = len(wanted.partition(".")[2].partition("e")[0])
        # Another machine's float32 takes another path, and so does another level of optimisation.
        unit = 1.01 * 10.0**-digits
        value = float(number.replace(",", ""))
        assert value == pytest.approx(float(wanted.replace(",", "")), rel=0.15, abs=max(unit, 0.05)), printed


@pytest.mark.thorough
def test_every_section_of_the_readme_runs_on_its_own(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    parts = re.split(r"^## (.*)$", (ROOT / "README.md").read_text(), flags=re.M)
    names: dict[str, dict] = {}
    printed: dict[str, str] = {}
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for title, text in zip(parts[1::2], parts[2::2], strict=True):
            for code, _ in pictures.BLOCK.findall(text):
                exec(compile(code, f"README.md: {title}", "exec"), names.setdefault(title, {}))
                printed[title] = capsys.readouterr().out
    spread = {line.split()[0]: float(line.split()[2]) for line in printed["Fit"].splitlines() if "x[" in line}
    # The README rounds to one decimal, which is 0.05; another machine's float32 moves the last digits.
    assert spread["x[0]"] == pytest.approx(2.0, abs=0.1)
    assert spread["x[1]"] == pytest.approx(1.3, abs=0.1)
    assert "log_density" in (tmp_path / "out" / "banana" / "index.html").read_text()
    assert "converged" in printed["Sample"]
    assert_near_nuts(names["Data and minibatches"]["logistic"].particles)


def assert_near_nuts(particles: dict) -> None:
    """As the README says of its logistic regression. The reference: 10,000 draws of NumPyro's NUTS on all rows."""
    mean, sd = np.array([0.3284, 1.1477, -2.1242, 0.5252]), np.array([0.0629, 0.0719, 0.1004, 0.0661])
    found = np.column_stack([particles["intercept"], particles["weights"]])
    # 0.2 and 5 % in the README; another machine's float32 draws other batches' worth of rounding.
    assert (np.abs(found.mean(axis=0) - mean) < 0.3 * sd).all(), found.mean(axis=0)
    assert (np.abs(found.std(axis=0) / sd - 1) < 0.1).all(), found.std(axis=0)


@pytest.mark.thorough
@pytest.mark.parametrize("page", [page for page in DOCS if pictures.blocks(page)], ids=lambda page: page.stem)
@pytest.mark.filterwarnings("ignore:::pytensor", "ignore:::pymc", "ignore:::arviz")
def test_the_code_of_a_page_runs_and_prints_what_the_page_prints(page: Path, as_installed, tmp_path, monkeypatch):
    double = "import pymc" in page.read_text()  # PyTensor switches JAX to double precision
    if double:
        pytest.importorskip("pymc")
    if "import arviz" in page.read_text() and int(version("arviz").partition(".")[0]) < 1:
        pytest.skip("the page is written for ArviZ 1")
    monkeypatch.chdir(tmp_path)
    with jax.enable_x64(double), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        outputs = pictures.run_page(page)
    for printed, expected in outputs:
        assert_printed(printed, expected)
    for name in pictures.saved_pictures(page):
        assert (tmp_path / name).stat().st_size > 1000, name


@each_page
def test_names_on_a_page_exist(page: Path):
    for name in re.findall(r"`(?:sk|steinkern)\.([A-Za-z_.0-9]+)", page.read_text()):
        value = sk
        for part in name.rstrip(".").split("."):
            assert hasattr(value, part), f"{page.name} names {name}"
            value = getattr(value, part)


@each_page
def test_links_on_a_page_lead_somewhere(page: Path):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)  # code has brackets of its own
    for link in re.findall(r"\]\(([^)#]+)\)", prose):
        assert link.startswith("http") or (page.parent / link).exists(), f"{page.name} links to {link}"


@each_page
def test_pictures_have_alternative_text_and_a_sentence_and_are_small(page: Path):
    text = page.read_text()
    images = IMAGE.findall(text)
    assert len(images) == text.count("![")
    for alternative, link, sentence in images:
        assert len(alternative) > 20, link
        assert page.name == "README.md" or sentence.startswith("*"), f"{page.name} says nothing below {link}"
        assert (page.parent / link).stat().st_size < 300_000, link
    for name in pictures.saved_pictures(page):
        assert name in [Path(link).name for _, link, _ in images], f"{page.name} does not show {name}"
        assert (pictures.IMAGES / name).exists(), "run `python docs/_build/pictures.py`"


@pytest.mark.parametrize(
    "page", [page for page in tables.PAGES if "<!--" in page.read_text()], ids=lambda page: page.stem
)
def test_the_numbers_of_a_page_are_those_of_the_results(page: Path):
    assert tables.filled(page.read_text()) == page.read_text(), "run `make results`"


def test_pages_are_few_and_short():
    lengths = {page.name: len(page.read_text().splitlines()) for page in PAGES}
    assert max(lengths.values()) <= 150, lengths
    assert len(DOCS) <= 35
    assert sum(lengths[page.name] for page in DOCS) <= 3000


def texts_of_the_library() -> tuple[str, set[str]]:
    """All texts in the library, with … for what is put into them, and the codes of its notices."""

    def text(node: ast.AST) -> str:
        if isinstance(node, ast.JoinedStr):
            return "".join(map(text, node.values))
        return str(node.value) if isinstance(node, ast.Constant) else "…"

    texts, codes = [], set()
    for path in sorted((ROOT / "src" / "steinkern").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr | ast.Constant):
                texts.append(text(node))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Notice":
                codes.add(text(node.args[0]))
    return " ".join(" ".join(texts).split()), codes


def test_troubleshooting_has_every_status_and_the_words_of_the_library():
    page = " ".join((ROOT / "docs" / "troubleshooting.md").read_text().split())
    for status in sk.Status:
        assert f"| `{status.value}` |" in page, status
    texts, codes = texts_of_the_library()
    assert {code for code in codes - {"…"} if f"`{code}`" not in page} == set()
    rows = re.findall(
        r"^\| ((?:`[a-z0-9-]+`(?:, )?)+) \|", (ROOT / "docs" / "troubleshooting.md").read_text(), flags=re.M
    )
    named = {code for row in rows for code in re.findall(r"`(.*?)`", row)}
    assert named <= codes | {status.value for status in sk.Status}
    quoted = re.findall(r'(?:\*\*|\| )"([^"]+)"', page)
    assert len(quoted) >= 8
    for quote in quoted:
        for piece in quote.replace("9th", "…").split("…"):
            assert piece.strip() in texts, quote


@each_page
def test_files_named_on_a_page_exist(page: Path):
    for name in re.findall(r"`((?:tests|src|studies|benchmarks|docs|examples)/[\w/.]+)`", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_everything_public_has_a_docstring():
    public = {name: getattr(sk, name) for name in dir(sk)}
    for name, value in public.items():
        if not name.startswith("_") and callable(value):
            assert value.__doc__, name
            for method, function in vars(value).items() if isinstance(value, type) else ():
                if not method.startswith("_") and callable(function):
                    inherited = any(getattr(getattr(base, method, None), "__doc__", None) for base in value.__mro__)
                    assert inherited, f"{name}.{method}"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("docs") / "site"
    built = subprocess.run(  # with `--quiet` MkDocs counts no warnings, and `--strict` is without effect
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", place],
        cwd=ROOT, timeout=600, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return place


@pytest.mark.thorough
def test_the_site_builds_strictly_names_everything_public_and_asks_the_network_for_nothing(site):
    pages = {path.relative_to(site): path.read_text() for path in site.rglob("*.html")}
    reference = "\n".join(text for path, text in pages.items() if path.parts[0] == "api")
    public = [name for name in dir(sk) if not name.startswith("_") and not inspect.ismodule(getattr(sk, name))]
    for name in public:
        assert re.search(rf'id="steinkern\.[a-z_.]*{name}"', reference), f"{name} is on no page of the API"
    for path, text in pages.items():
        loaded = re.findall(r"<(?:script|img|iframe)[^>]+src=\"?([^\s\">]+)", text)
        loaded += re.findall(r"<link[^>]+rel=\"?(?:stylesheet|icon|preconnect)[^>]*href=\"?([^\s\">]+)", text)
        assert loaded, path
        for address in loaded:
            assert not re.match(r"(https?:)?//", address), f"{path} loads {address}"


SEARCH = """
const wait = (time) => new Promise((done) => setTimeout(done, time));
document.querySelector("#__search").click();
const field = document.querySelector("[data-md-component=search-query]");
field.focus();
field.value = "bandwidth";
field.dispatchEvent(new Event("input", { bubbles: true }));
field.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
let links = [];
for (let tries = 0; tries < 80 && !links.length; tries++) {
  await wait(100);
  links = [...document.querySelectorAll(".md-search-result__item a")].map((link) => link.getAttribute("href"));
}
return links;
"""


@pytest.mark.thorough
@pytest.mark.browser
@pytest.mark.parametrize("page", ["index.html", "api/fit.html"])
def test_the_search_finds_pages_where_the_site_is_opened_from_a_folder(site, page):
    links = browser.ask(site / page, (site / page).parent, SEARCH)
    assert any("api/kernels.html" in link for link in links), links


def test_the_workflow_runs_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    assert yaml.safe_load(workflow)["permissions"] == {"contents": "read"}
    named = re.findall(r"make PYTHON=python ([a-z-]+)", workflow)
    assert len(named) >= 4
    assert set(named) <= targets


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == project
