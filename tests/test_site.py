"""The documentation site: what its pages print is run and compared, it builds strictly, and it leaves nothing out."""

import ast
import inspect
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import jax
import pytest
from docs import pictures

import steinkern as sk
from steinkern.experiments.tables import read_results
from tests import browser

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


def assert_said(printed: str, said: str) -> None:
    """The same words, and the same numbers to 15 percent, to 0.05, or to one unit of the last digit that is said."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", said).split(), printed
    for number, expected in zip(NUMBER.findall(printed), NUMBER.findall(said), strict=True):
        digits = len(expected.partition(".")[2].partition("e")[0])
        # Another machine's float32 takes another path, and so does another level of optimisation.
        unit = 1.01 * 10.0**-digits
        value = float(number.replace(",", ""))
        assert value == pytest.approx(float(expected.replace(",", "")), rel=0.15, abs=max(unit, 0.05)), printed


@pytest.mark.thorough
@pytest.mark.parametrize("page", [page for page in PAGES if pictures.blocks(page)], ids=lambda page: page.stem)
@pytest.mark.filterwarnings("ignore:::pytensor", "ignore:::pymc", "ignore:::arviz")
def test_examples_run_as_printed_and_print_what_is_said(page: Path, as_installed, tmp_path, monkeypatch):
    double = "import pymc" in page.read_text()  # PyTensor switches JAX to double precision
    if double:
        pytest.importorskip("pymc")
    if "import arviz" in page.read_text() and int(version("arviz").partition(".")[0]) >= 1:
        pytest.skip("the page is written for ArviZ 0.23, and says what 1.0 has in its place")
    monkeypatch.chdir(tmp_path)
    with jax.enable_x64(double), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        outputs = pictures.run_page(page)
    for printed, said in outputs:
        assert_said(printed, said)
    for name in pictures.saved_pictures(page):
        assert (tmp_path / name).stat().st_size > 1000, name


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
    assert len(pages) > len(PAGES)
    reference = "\n".join(text for path, text in pages.items() if path.parts[0] == "api")
    for name in public_names():
        assert f'id="{name}"' in reference, f"{name} is on no page of the API"
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
    found = browser.ask(site / page, (site / page).parent, SEARCH)
    assert any("api/kernels.html" in link for link in found), found


def public_names() -> list[str]:
    """Where each public name is defined."""
    names = []
    for name, value in {name: getattr(sk, name) for name in dir(sk)}.items():
        if name.startswith("_") or (inspect.ismodule(value) and name not in ("initial", "models", "interop")):
            continue
        if name in ("initial", "models"):
            functions = [part for part in vars(value).values() if getattr(part, "__module__", "") == value.__name__]
            names += [f"{value.__name__}.{part.__name__}" for part in functions if part.__name__[0] != "_"]
        elif not inspect.ismodule(value):
            module = getattr(value, "__module__", type(value).__module__)
            names.append(f"{module}.{getattr(value, '__qualname__', name)}")
    assert len(names) > 80
    return names


def sentences(module: str) -> list[str]:
    """The texts in a module of the library, with … for what is put into them."""
    found = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        else:
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(ast.parse((ROOT / "src" / "steinkern" / f"{module}.py").read_text()))
    return found


def notices_of(module: str) -> dict[str, str]:
    """The notices that a module makes: their texts by their codes, with … for what is put into them."""

    def text(node: ast.AST) -> str:
        if isinstance(node, ast.JoinedStr):
            return "".join(map(text, node.values))
        return str(node.value) if isinstance(node, ast.Constant) else "…"

    tree = ast.parse((ROOT / "src" / "steinkern" / f"{module}.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Notice"]
    return {text(call.args[0]): "".join(map(text, call.args[1:])) for call in calls}


WARNING = ("start_warnings", "run_warnings", "double_precision")


def warnings_of_a_run() -> list[str]:
    """The texts that `fit` warns with."""
    return [text for name in WARNING for text in notices_of(f"inference/{name}").values()]


def test_troubleshooting_has_every_status_and_every_warning_and_no_other():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    for status in sk.Status:
        assert f"| `{status.value}` |" in page, status
    headings = re.findall(r'^### "(.*)"$', page, flags=re.M)
    texts = warnings_of_a_run()
    assert len(texts) == len(headings) >= 8
    for text in texts:
        assert sum(heading in text for heading in headings) == 1, text
    for name in WARNING:
        assert all(f"\nCode `{code}`.\n" in page for code in notices_of(f"inference/{name}"))
    sample_page = (ROOT / "docs" / "default.md").read_text()
    for name in ("quality", "second_component"):
        assert all(f"`{code}`" in sample_page for code in notices_of(f"inference/automatic/{name}"))
    for field in sk.Faults.__dataclass_fields__:
        assert f"| `{field}` |" in page or field == "largest_damping", field


SPEAKING = (
    "inference/fit", "inference/prepare", "core/arrays", "inference/end_check", "core/particles", "results/result",
    "results/outcome", "core/notices", "inference/start_warnings", "inference/run_warnings", "inference/advice",
    "inference/double_precision",
)  # fmt: skip


def test_messages_quoted_in_troubleshooting_are_those_of_the_library():
    page = " ".join((ROOT / "docs" / "troubleshooting.md").read_text().split())
    said = " ".join(text for module in SPEAKING for text in sentences(module))
    said = said.replace("…th in a row", "9th in a row")  # LONG_STEPS + 1
    quoted = re.findall(r'(?:\*\*|\| )"([^"]+)"', page)
    assert len(quoted) >= 8
    for quote in quoted:
        for piece in quote.split("…"):
            assert piece.strip() in said, quote


def test_the_table_of_the_gpu_is_that_of_the_benchmark():
    assert (ROOT / "benchmarks" / "results" / "gpu.md").read_text() in (ROOT / "docs" / "scale.md").read_text()


@pytest.mark.parametrize("name", ["fits.md", "fits-gpu.md", "first.md"])
def test_the_tables_of_whole_calls_are_those_of_the_benchmark(name):
    assert (ROOT / "benchmarks" / "results" / name).read_text() in (ROOT / "docs" / "speed.md").read_text()


def test_the_speeds_of_steps_are_those_of_the_benchmark():
    page = " ".join((ROOT / "docs" / "speed.md").read_text().split())
    assert " ".join((ROOT / "benchmarks" / "results" / "cpu.md").read_text().split()) in page
    _, settings, rows = read_results(ROOT / "benchmarks" / "results" / "cpu.json")
    found = {(row.case, row.method, row.metric): row.mean for row in rows}
    assert f"to the power {found['n=4000..50000,d=50', 'vanilla', 'exponent']:.2f} from 4,000" in page
    rates = [1e3 / found["n=1000,d=50", method, "milliseconds"] for method in ("vanilla", "blackjax", "numpyro")]
    told = (
        f"{rates[0]:.0f} steps a second here, {rates[1]:.1f} with BlackJAX {settings['blackjax']} "
        f"and {rates[2]:.1f} with NumPyro {settings['numpyro']}"
    )
    assert told in " ".join((ROOT / "docs" / "coming" / "blackjax.md").read_text().split())


def test_the_table_of_devices_is_that_of_the_benchmark():
    assert (ROOT / "benchmarks" / "results" / "scaling.md").read_text() in (ROOT / "docs" / "scale.md").read_text()


def test_the_counts_of_untuned_methods_are_those_of_the_benchmark():
    _, _, rows = read_results(ROOT / "benchmarks" / "results" / "posteriors.json")
    found = {
        (row.case, row.method, row.metric): round(row.mean) for row in rows if row.case in ("all", "rules", "held out")
    }
    page = (ROOT / "docs" / "default.md").read_text().replace("**", "")
    front = " ".join((ROOT / "README.md").read_text().split())

    def counts(method: str, half: str = "all") -> tuple[int, int]:
        return found[half, method, "good_targets"], found[half, method, "excellent_targets"]

    names = {
        "ours": "`sample`",
        "stein": "`fit` without",
        "nuts": "NUTS, as many",
        "laplace": "Laplace",
        "pathfinder": "Pathf",
        "svgd": "SVGD, 1000",
    }
    for method, name in names.items():
        line = next(line for line in page.splitlines() if line.startswith(f"| {name}"))
        good, excellent = counts(method)
        cells = [cell.strip() for cell in line.split("|")[2:-1]]
        medians = [f"{found['all', method, metric]:,}" for metric in ("median_evaluations", "median_sequential")]
        silent = str(found["all", method, "silent_failures"])
        assert [cells[0].split(" of ")[0], *cells[1:]] == [str(good), str(excellent), silent, *medians], line
    assert f"{found['all', 'nuts-warmup-diagonal', 'median_sequential']:,} in the median" in page
    (good, excellent), (held_good, held_excellent) = counts("ours", "rules"), counts("ours", "held out")
    assert f'("rules": {good} of 14 good, {excellent} excellent)' in page
    assert f'("held out") it is {held_good} and {held_excellent}' in " ".join(page.split())
    told = [" and ".join(map(str, counts(method))) for method in ("nuts", "laplace", "pathfinder", "svgd")]
    assert (
        f"{counts('ours')[0]} good and {counts('ours')[1]} excellent, where NUTS with as many gradients has {told[0]}"
        in front
    )
    assert f"Laplace {told[1]}, Pathfinder {told[2]}, plain SVGD {told[3]};" in front


def test_the_table_of_spreads_is_that_of_the_benchmark():
    _, _, rows = read_results(ROOT / "benchmarks" / "results" / "spread.json")
    page = (ROOT / "docs" / "choose.md").read_text()
    measured = {(row.case, row.method): f"{row.mean:.2f}" for row in rows}
    for n in (20, 50, 200, 500):
        cells = [measured[f"d={d},n={n}", kernel] for d in (2, 10, 30) for kernel in ("RBF", "IMQ")]
        assert f"| {n} | {' | '.join(cells)} |" in page


def test_rows_of_results_in_how_to_choose_are_those_of_the_results():
    page = (ROOT / "docs" / "choose.md").read_text()
    table = (ROOT / "results" / "toy" / "table.md").read_text()
    for method in ("Vanilla SVGD", "SVN", "Matrix-SVGD (average)", "Matrix-SVGD (mixture)"):
        cells = next(line for line in table.splitlines() if line.startswith(f"| {method} |")).split(" | ")
        assert f"| {method} | {cells[1]} | {cells[3]} | {cells[5]} |" in page


COMPARED = {"steinkern": "vanilla", "BlackJAX": "blackjax", "NumPyro": "numpyro", "PyMC": "pymc"}


def means_of(path: str) -> dict[tuple[str, str, str], float]:
    _, _, rows = read_results(ROOT / path)
    return {(row.case, row.method, row.metric): row.mean for row in rows}


def test_every_number_of_the_comparison_has_its_source_beside_it():
    measured = (ROOT / "docs" / "compare.md").read_text().partition("## Measured\n")[2]
    paragraphs = re.split(r"\n\n(?=\*\*)", measured.strip())
    assert len(paragraphs) >= 4
    for paragraph in paragraphs:
        sources = re.findall(r"\]\(\.\./((?:benchmarks/)?results/[^)]+)\)", paragraph)
        assert sources, paragraph
        assert all((ROOT / source).exists() for source in sources)


def test_the_steps_and_velocities_of_the_comparison_are_those_of_the_benchmarks():
    page = (ROOT / "docs" / "compare.md").read_text()
    said = " ".join(page.split())
    times = means_of("benchmarks/results/cpu.json")
    for name, method in COMPARED.items():
        cells = re.search(rf"^\| {name} \| (.* m?s) \|$", page, flags=re.M)[1].split(" | ")
        for case, cell in zip(("n=50,d=2", "n=100,d=50", "n=1000,d=50", "n=5000,d=50"), cells, strict=True):
            number, unit = cell.split()
            found = times[case, method, "milliseconds"]
            assert float(number) * (1e3 if unit == "s" else 1) == pytest.approx(found, rel=5e-3)
    here, blackjax, numpyro, pymc = (times["logreg,n=50,d=54", method, "milliseconds"] for method in COMPARED.values())
    told = f"{here:.3g} ms here, {blackjax:.3g} ms in BlackJAX, {numpyro:.3g} ms in NumPyro and {pymc:.3g} ms in PyMC"
    assert told in said
    found = means_of("benchmarks/results/gpu.json")
    million, many = (
        {name: found[f"n={n},d=50", "vanilla-float32", name] for name in ("milliseconds", "gigabytes")}
        for n in (2**20, 2**16)
    )
    dense = {name: found["n=65536,d=50", "vanilla-xla-dense", name] for name in ("milliseconds", "gigabytes")}
    assert f"takes {million['milliseconds'] / 1e3:.1f} s and {million['gigabytes']:.1f} GB on one NVIDIA H200" in said
    assert f"65,536 particles {many['milliseconds']:.1f} ms and {many['gigabytes']:.2f} GB" in said
    assert f"all pairs takes {dense['milliseconds']:.0f} ms and {dense['gigabytes']:.0f} GB" in said


def test_the_counts_of_the_comparison_are_those_of_the_benchmarks():
    page = (ROOT / "docs" / "compare.md").read_text()
    said = " ".join(page.split())
    table = (ROOT / "benchmarks" / "results" / "posteriors.md").read_text()

    def row(half: str, method: str) -> list[str]:
        return re.search(rf"^\| {half} \| {method} \| (.*) \|$", table, flags=re.M)[1].split(" | ")

    names = {
        "`sk.sample`": "ours",
        "`sk.fit` without a sampler": "stein",
        "NUTS": "nuts",
        "SVGD": "svgd",
        "Laplace": "laplace",
        "Pathfinder": "pathfinder",
    }
    for name, method in names.items():
        wanted = f"| {' | '.join(row('all', method)[1:6])} |"
        assert re.search(rf"^\| {name}.*{re.escape(wanted)}$", page, flags=re.M), name
    number, good, excellent = row("held out", "ours")[:3]
    assert f"it has {good} good and {excellent} excellent of {number}" in said
    times = f"median time is {row('all', 'nuts')[-1]} seconds and that of `sample` {row('all', 'ours')[-1]},"
    assert times in said


def test_the_networks_of_the_comparison_are_those_of_the_results():
    said = " ".join((ROOT / "docs" / "compare.md").read_text().split())
    _, _, rows = read_results(ROOT / "results" / "uci" / "results.json")
    found = {(row.case, row.method): row for row in rows if row.metric == "rmse"}
    below, near = [], []
    for case in sorted({case for case, method in found if method == "mixture"}):
        ours, others = found[case, "mixture"], found[case, "ensemble"]
        distance = (ours.mean - others.mean) / (ours.stderr**2 + others.stderr**2) ** 0.5
        assert distance < 2, case
        (below if distance < -2 else near).append(case)
    assert f"that of the deep ensemble on {', '.join(below[:-1])} and {below[-1]}, and within two" in said
    assert len(near) == 5
