"""The page of a run: what it says is what happened, and no name or number from outside can break it."""

import base64
import dataclasses
import json
import re
from html import unescape

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern.results import html as markup
from steinkern.results.report import charts
from steinkern.results.report.animation import MISSING, animate
from steinkern.results.report.write import MAX_ROWS, facts
from steinkern.results.summary import moments
from tests.helpers.pages import result_of

pytestmark = pytest.mark.thorough

EVIL = "<script>alert('x')</script> & \"µ\" \u2028 \ud800 " + 200 * "long "


def log_density(parameters):
    return -0.5 * jnp.sum(parameters["weights"] ** 2) - parameters["scale"]


def fitted(directory, **options):
    target = sk.LogDensity(log_density, support={"scale": sk.positive})
    start = {"weights": jr.normal(jr.key(1), (12, 2)), "scale": jnp.linspace(0.5, 2.0, 12)}
    return sk.fit(jr.key(7), target, sk.svgd(sk.IMQ()), start, num_steps=6, checkpoint=directory, **options)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def result(directory):
    return fitted(directory, record_particles=True)


@pytest.fixture(scope="module")
def html(result, tmp_path_factory):
    return read(result.report(tmp_path_factory.mktemp("page")))


def read(path) -> str:
    return path.read_text(encoding="utf-8")


def flow_of(html: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="flow">(.*?)</script>', html)[1])


def decoded(content: dict) -> np.ndarray:
    """The numbers that the script draws, with axes (frame, coordinate, particle)."""
    codes = np.frombuffer(base64.b64decode(content["codes"]), "<u2")
    codes = codes.reshape(len(content["steps"]), len(content["names"]), content["particles"])
    low, high = (np.array(end)[None, :, None] for end in zip(*content["windows"], strict=True))
    return np.where(codes == MISSING, np.nan, low + codes / (MISSING - 1) * (high - low))


def test_the_page_says_what_was_run_and_how_it_ended(html, result):
    words = unescape(html)
    for fact in ("LogDensity(function=log_density, support={'scale': GreaterThan(lower=0)})",
                 repr(result.sampler), f"jax {jax.__version__}",
                 "12 particles, 6 steps", "scale [], weights [2]", "record_particles True"):  # fmt: skip
        assert fact in words, fact
    assert result.message.text[1:] in words
    assert "<strong>finished</strong>" in html


def test_the_table_has_the_numbers_of_the_summary(html, result):
    rows = re.findall(r"<tr><td>(.*?)</td>(.*?)</tr>", html)
    found = {name: re.findall(r"<td>(.*?)</td>", cells) for name, cells in rows}
    for line in result.summary().splitlines()[1:-2]:
        name, *numbers = line.split()
        # Both print four digits; numpy and JAX sum in another order.
        np.testing.assert_allclose([float(n) for n in found[name]], [float(n) for n in numbers], rtol=2e-3)


def test_the_script_gets_the_particles_of_the_history_in_their_own_coordinates(html, result):
    content = flow_of(html)
    assert content["names"] == ["scale", "weights[0]", "weights[1]"]
    assert content["steps"] == [1, 2, 3, 4, 5, 6]
    drawn = decoded(content)
    expected = np.stack([result.history.particles["scale"], *np.moveaxis(result.history.particles["weights"], 2, 0)], 1)
    # Sixteen bits of a window that is some standard deviations wide.
    np.testing.assert_allclose(drawn, expected, atol=1e-3)


def test_all_four_traces_are_drawn_and_the_discrepancy_is_that_of_the_particles(html, result):
    assert html.count('class="curve"') == 4
    scores = jnp.concatenate([1 - result.particles["scale"][:, None], -result.particles["weights"]], axis=1)
    expected = float(jnp.sqrt(jax.jit(lambda x, s: sk.ksd2(x, s, sk.IMQ()))(result.points, scores)))
    # The page prints three digits.
    assert float(re.search(r"last particles; (\S+) at the end", html)[1]) == pytest.approx(expected, rel=5e-3)
    assert "KSD" not in result.summary()  # that of the diagnostics has another kernel, in other units


def test_the_page_needs_no_network(html):
    assert not re.search(r"(src|href|url|@import)\s*[=(]\s*[\"']?(?!data:)http", html)
    assert "//" not in re.sub(r"<script.*?</script>", "", html, flags=re.S)


def test_what_is_missing_is_said_with_the_way_to_have_it(tmp_path):
    result = fitted(None)
    html = unescape(read(result.report(tmp_path)))
    assert "Give <code>record_particles=True</code> to <code>fit</code>" in html
    assert flow_of(html)["steps"] == [6]
    assert 'id="particles" class="still"' in html


def test_a_result_without_history_has_a_page(tmp_path, result):
    html = read(sk.combine([result, result]).report(tmp_path))
    assert html.count("Nothing was recorded") == 3
    assert "combined from 2 results" in html.lower()


def test_data_are_asked_for_where_the_discrepancy_needs_them(tmp_path):
    posterior = sk.Posterior(lambda x: -0.5 * x**2, lambda x, row: -0.5 * (row - x) ** 2, 5)
    data = jnp.arange(5.0)
    result = sk.fit(jr.key(0), posterior, sk.svgd(), jnp.linspace(0.0, 1.0, 4), data, num_steps=2)
    assert "It needs the data" in read(result.report(tmp_path))
    assert "It needs the data" not in read(result.report(tmp_path, data))
    with pytest.raises(ValueError, match="`data` has 3 rows"):
        result.report(tmp_path, data[:3])


def test_no_name_breaks_the_page(tmp_path):
    sites = {EVIL: np.linspace(-1.0, 1.0, 5), "größe": np.linspace(0.0, 1.0, 5)}
    recorded = {name: np.stack([values] * 3) for name, values in sites.items()}
    written = {"message": sk.Notice("evil", EVIL), "warnings": (sk.Notice("evil", EVIL),)}
    settings = {"target": EVIL, "sampler": EVIL, "versions": {EVIL: EVIL}, "command": EVIL}
    html = read(result_of(sites, recorded, settings=settings, **written).report(tmp_path, title=EVIL))
    assert "<script>alert" not in html
    assert html.count("</script>") == html.count("<script") == 2
    assert flow_of(html)["names"][0].startswith("<script>alert('x')</script>")
    assert "größe" in html


def test_hundreds_of_coordinates_are_limited_and_can_be_chosen(result, tmp_path):
    wide = {"w": np.random.default_rng(0).normal(size=(3, 500, 20, 30)), "scale": np.ones((3, 500))}
    content, left_out = animate(np.arange(3), wide, None)
    assert len(content["names"]) == 24
    assert "24 of 601 coordinates" in left_out
    assert "400 of 500 particles" in left_out
    assert animate(np.arange(3), wide, ["scale", "w[3,4]"])[0]["names"] == ["scale", "w[3,4]"]
    rows, more = moments({"w": wide["w"][0]}, MAX_ROWS)
    assert (len(rows), more) == (MAX_ROWS, 600 - MAX_ROWS)
    with pytest.raises(ValueError, match=r"`coordinates` must name sites .* scale, weights; got 'nosuch'"):
        result.report(tmp_path, coordinates=["nosuch"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308], ids=str)
def test_numbers_that_are_not_finite_are_left_out_and_counted(bad, result, tmp_path):
    particles = {"weights": result.particles["weights"].at[0, 0].set(bad), "scale": jnp.full(12, bad).at[0].set(-bad)}
    broken = dataclasses.replace(
        result, particles=particles, history=dataclasses.replace(result.history, particles=None)
    )
    html = read(broken.report(tmp_path))
    assert ("13 numbers of the particles are NaN or infinite" in html) == (not np.isfinite(bad))
    drawn = decoded(flow_of(html))
    assert np.isfinite(drawn[0, 1:]).sum() == (24 if np.isfinite(bad) else 23)
    assert "nan" not in re.sub(r"<pre.*?</pre>|<script.*?</script>", "", html, flags=re.S).lower().replace(
        "nan or inf", ""
    )


def test_entries_that_do_not_vary_are_not_drawn():
    factor = np.zeros((2, 30, 9, 9))
    factor[:, :, 0, 0] = 1
    factor[:, :, *np.tril_indices(9, -1)] = np.random.default_rng(0).normal(size=(2, 30, 36))
    names = animate(np.arange(2), {"L": factor}, None)[0]["names"]
    assert names == [f"L[{i},{j}]" for i in range(9) for j in range(i)][: len(names)]
    assert animate(np.arange(2), {"L": factor}, ["L[0,0]"])[0]["names"] == ["L[0,0]"]
    assert len(animate(np.arange(1), {"L": factor[:1, :1]}, None)[0]["names"]) == 24  # one particle


def test_one_particle_in_one_dimension_has_a_page(tmp_path):
    result = sk.fit(jr.key(0), lambda x: -0.5 * x**2, sk.svgd(), jnp.ones(1), num_steps=1, record_particles=True)
    content = flow_of(read(result.report(tmp_path)))
    assert (content["names"], content["steps"], content["particles"]) == (["x"], [1], 1)


def test_shared_parameters_are_named_and_the_discrepancy_is_that_of_the_end(tmp_path):
    particles, shared = sk.split({"a": jnp.linspace(0.0, 1.0, 4), "net": jnp.ones((2, 3))}, "a")
    target = sk.LogDensity(lambda p: -0.5 * (p["a"] - jnp.sum(p["net"])) ** 2, shared=shared)
    sampler = sk.half_bayesian(sk.svgd(), 0.01)
    result = sk.fit(jr.key(0), target, sampler, particles, num_steps=2, record_particles=True)
    html = read(result.report(tmp_path))
    assert "6 numbers in 1 array, point estimates" in html
    assert dict(facts(result))["Method"].startswith("HalfBayesian(sampler=SVGD(")
    assert "The shared parameters had other values at earlier steps" in html
    assert flow_of(html)["steps"] == [1, 2]


def test_code_in_advice_is_code_on_the_page_and_nothing_in_it_is_markup(tmp_path, result):
    warned = dataclasses.replace(
        result, warnings=(sk.Notice("steps", "raise `num_steps`, or `<b>`."),), message=sk.Notice("note", "see `fit`.")
    )
    html = read(warned.report(tmp_path))
    assert "<li>Raise <code>num_steps</code>, or <code>&lt;b&gt;</code>.</li>" in html
    assert "<span>See <code>fit</code>.</span>" in html


def test_a_page_of_a_checkpoint_has_the_same_particles_and_traces(directory, result, html, tmp_path):
    again = read(sk.load(directory, target=result.target.target).report(tmp_path))
    assert flow_of(again) == flow_of(html)
    assert re.findall(r'class="curve" points="(.*?)"', again) == re.findall(r'class="curve" points="(.*?)"', html)
    assert "a checkpoint after 6 steps" in again.lower()
    without = read(sk.load(directory).report(tmp_path))
    assert flow_of(without) == flow_of(html)
    assert "It needs the target" in without


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (-3.2, 17.0), (1e-12, 1.1e-12), (-1e300, 1e300), (5.0, 5.0 + 1e-9)]
)
def test_ticks_are_few_and_within(low, high):
    found = charts.ticks(low, high)
    slack = 1e-6 * (high - low)
    assert 2 <= len(found) <= 7
    assert all(low - slack <= tick <= high + slack for tick in found)


@pytest.mark.parametrize(
    "value", [[np.nan, 1.0, np.inf, 2.0], [0.0, 0.0, 0.0, 0.0], [1e-300, 1.0, 1e300, 5.0]], ids=str
)
@pytest.mark.parametrize("log", [False, True])
def test_a_trace_is_drawn_with_gaps_and_never_with_nan(value, log):
    chart = charts.trace("KSD", np.arange(4), np.array(value), log=log)
    assert "nan" not in chart
    assert ("<svg" in chart) == (not (log and not any(value)))


def test_text_of_a_page_holds_no_markup_and_no_forbidden_character():
    assert (
        markup.text("<b a='1'>\x00\ud800&")
        == "&lt;b a=&#x27;1&#x27;&gt;\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}&amp;"
    )
    assert markup.as_script("x", {"</script>": 1}).count("</script>") == 1
