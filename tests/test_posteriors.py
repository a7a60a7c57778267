"""The benchmark of everyday posteriors: targets and references fit together. Nothing long is run."""

from argparse import Namespace
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.posteriors import coverage, methods, minibatch, references, shapes
from benchmarks.posteriors.methods import Outcome, with_functions
from benchmarks.posteriors.run import BENCHMARKS, Judgement, rows_of, summary
from benchmarks.posteriors.target import read_references
from benchmarks.posteriors.targets import KINDS, TARGETS
from steinkern import Status
from steinkern.interop.numpyro import from_model

REFERENCES = read_references()


GAUSSIANS = {"gaussian-anisotropic": shapes.ANISOTROPIC, "gaussian-100": shapes.WIDE}


@pytest.fixture(scope="module")
def evaluated():
    """Log densities and gradients of all targets, in one program: compiling is all the time that this takes.

    The points are the start, another, the reference mean; and for a Gaussian its mean plus columns of its covariance.
    """
    points = {}
    for name, target in TARGETS.items():
        rows = [target.start, references.other_point(target), np.array(REFERENCES[name]["mean"][: target.dim])]
        if name in GAUSSIANS:
            mean, covariance = GAUSSIANS[name]
            rows += [mean, *(mean + covariance)]
        points[name] = jnp.asarray(np.stack(rows))

    @jax.jit
    def run(points):
        return {
            name: jax.vmap(jax.value_and_grad(target.log_density))(points[name]) for name, target in TARGETS.items()
        }

    return jax.tree.map(np.asarray, run(points))


@pytest.mark.thorough
@pytest.mark.parametrize("name", TARGETS)
def test_density_and_gradient_are_finite_at_the_start_and_at_the_reference_mean(name, evaluated):
    target, reference = TARGETS[name], REFERENCES[name]
    num_functions = 0 if target.functions is None else jax.eval_shape(target.functions, target.start).size
    assert len(reference["mean"]) == len(reference["sd"]) == target.dim + num_functions
    values, gradients = evaluated[name]
    assert (values.dtype, gradients.dtype) == (np.float64, np.float64)
    assert np.isfinite(values).all()
    assert np.isfinite(gradients).all()
    np.testing.assert_allclose(values[:2], reference["made_from"][:2], rtol=1e-5)  # kept to six digits


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.functions is not None])
def test_a_reference_is_of_the_functions_that_the_target_has(name):
    np.testing.assert_allclose(REFERENCES[name]["made_from"], references.fingerprint(TARGETS[name]), rtol=1e-5)


MODELS = [name for name, target in TARGETS.items() if target.model is not None]


@pytest.mark.every(4)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_and_its_functions_are_finite_where_a_chain_may_start_and_the_library_has_its_density(name):
    target, random = TARGETS[name], np.random.default_rng(0)
    library = from_model(target.model)
    points = jnp.asarray(np.stack([target.start, *random.uniform(-2, 2, (4, target.dim))]))
    assert library.space.layout.size == target.dim

    @jax.jit
    def evaluate(points):
        ours = jax.vmap(lambda x: library.log_joint(x, None))(points)
        return *jax.vmap(jax.value_and_grad(target.log_density))(points), jax.vmap(target.functions)(points), ours

    values, gradients, functions, ours = map(np.asarray, evaluate(points))
    assert np.isfinite(values).all()
    assert np.isfinite(gradients).all()
    assert np.isfinite(functions).all()
    np.testing.assert_allclose(ours, values, rtol=1e-8)


def test_targets_run_in_single_precision():
    jax.clear_caches()  # JAX keeps the types of indices that were traced in double precision
    for target in TARGETS.values():
        with jax.enable_x64(target.model is None):  # a model follows the precision of JAX, a density that of its vector
            value = jax.eval_shape(target.log_density, jax.ShapeDtypeStruct((target.dim,), jnp.float32))
        assert (value.shape, value.dtype) == ((), jnp.float32), target.name


def test_references_are_complete_and_converged():
    assert set(REFERENCES) == {*TARGETS, *minibatch.PROBLEMS}
    for name, reference in REFERENCES.items():
        assert min(reference["sd"]) > 0
        assert np.isfinite(reference["mean"]).all()
        assert name in minibatch.PROBLEMS or reference["warmup_gradients"]["diagonal"] >= 1000
        if name in TARGETS and reference["how"].startswith("NUTS"):
            assert reference["r_hat"] < 1.01, name
            assert reference["ess"] > 2500, name  # a standard error of the mean below 0.02 sd
            assert reference["ess_of_squares"] > 2000, name
        if "means_apart" in reference:  # two samplers
            assert reference["r_hat"] < 1.01, name
            assert min(reference["ess"], reference["ess_of_squares"]) > 2000, name
            assert max(reference["means_apart"], reference["sds_apart"]) < 0.1, name
    assert {name for name in MODELS if "means_apart" not in REFERENCES[name]} == {"sparse-dirichlet"}


def test_the_posterior_of_the_dirichlet_is_of_independent_beta_variables():
    """The density of a logit of Beta(a, b) is σᵃ(1 - σ)ᵇ; the moments of the reference follow."""
    observed = np.array([2.0, 2, 0, 1, 0, 0, 0, 0, 0, 0]) + 0.1
    points = np.random.default_rng(0).uniform(-3, 3, (6, 9))
    logits = points - np.log(np.arange(9.0, 0.0, -1.0))
    after = observed.sum() - np.cumsum(observed)[:-1]
    logs = -np.logaddexp(0, -logits) @ observed[:-1] - np.logaddexp(0, logits) @ after
    values = jax.vmap(TARGETS["sparse-dirichlet"].log_density)(jnp.asarray(points))
    np.testing.assert_allclose(values - values[0], logs - logs[0], atol=1e-9)
    reference = REFERENCES["sparse-dirichlet"]
    draws = np.random.default_rng(1).beta(observed[0], after[0], 200_000)
    logits = np.log(draws / (1 - draws)) + np.log(9.0)
    moments = [reference["mean"][0], reference["sd"][0], reference["mean"][9], reference["sd"][9]]
    np.testing.assert_allclose([logits.mean(), logits.std(), draws.mean(), draws.std()], moments, rtol=0.02)


@pytest.mark.thorough
@pytest.mark.parametrize("name", references.REWRITTEN)
def test_easier_coordinates_of_a_reference_have_the_log_determinant_of_their_map(name):
    rewrite = references.REWRITTEN[name]
    point = jnp.asarray(np.random.default_rng(0).normal(size=TARGETS[name].dim) / 2)
    sign, log_determinant = jnp.linalg.slogdet(jax.jit(jax.jacfwd(lambda x: rewrite(x)[0]))(point))
    assert abs(sign) == 1
    np.testing.assert_allclose(rewrite(point)[1], log_determinant, rtol=1e-9)


def test_functions_are_graded_at_the_points_beside_the_coordinates():
    target = TARGETS["horseshoe"]
    points = np.random.default_rng(0).normal(size=(20, target.dim))
    outcome = with_functions(Outcome(points.mean(0), points.std(0), hessians=2, points=points, dim=66), target)
    assert outcome.evaluations == 132
    library = from_model(target.model)
    particles = jax.jit(jax.vmap(library.space.constrain))(jnp.asarray(points))
    beta = library.sites(particles)["beta"]
    np.testing.assert_allclose(outcome.mean, [*points.mean(0), *beta.mean(0), (particles["precision"] ** -0.5).mean()])
    right = {"mean": outcome.mean, "sd": outcome.sd}
    assert Judgement.of(outcome.mean, outcome.sd, right).within((0.1, 0.9, 1.1))
    wide = np.append(outcome.sd[:-1], 2 * outcome.sd[-1])
    assert not Judgement.of(outcome.mean, wide, right).within((0.35, 0.7, 1.4))


def test_models_are_run_without_a_start_and_what_cannot_be_found_is_an_outcome(monkeypatch):
    calls = []

    def refuse(key, problem, start, **options):
        calls.append((type(problem).__name__, start))
        raise ValueError("no start was found")

    monkeypatch.setattr(methods.sk, "sample", refuse)
    outcome = methods.run_method("ours", TARGETS["sparse-dirichlet"], 0)
    assert calls == [("NumPyroTarget", None)]
    assert outcome.warnings == ("no start was found",)
    assert outcome.mean.shape == (13,)
    assert np.isnan(outcome.mean).all()
    assert {method for case, method in BENCHMARKS["posteriors"].pairs if case in MODELS} == set(methods.OF_MODELS)


def test_halves_are_of_equal_size_and_each_has_every_kind():
    assert len(TARGETS) >= 20
    assert len(set(Counter(target.half for target in TARGETS.values()).values())) == 1
    for targets in KINDS.values():
        counts = Counter(target.half for target in targets)
        assert set(counts) == {"rules", "held out"}
        assert abs(counts["rules"] - counts["held out"]) <= 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", GAUSSIANS)
def test_references_of_gaussians_follow_from_their_log_density(name, evaluated):
    dim, reference, (mean, covariance) = TARGETS[name].dim, REFERENCES[name], GAUSSIANS[name]
    _, scores = evaluated[name]  # -Σ⁻¹ (x - mean): 0 at the mean, and -1 in each direction
    np.testing.assert_allclose(scores[3:], np.concatenate([np.zeros((1, dim)), -np.eye(dim)]), atol=1e-10)
    np.testing.assert_allclose(reference["mean"], mean, rtol=1e-5)  # six digits are stored
    np.testing.assert_allclose(reference["sd"], np.sqrt(np.diagonal(covariance)), rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["banana", "four-modes", "banana of coverage"])
def test_exact_moments_in_two_dimensions_agree_with_a_grid(name):
    axis = np.linspace(-12, 12, 201)
    points = np.stack(np.meshgrid(axis, axis * 2 + 6, indexing="ij"), -1).reshape(-1, 2)
    if name == "banana of coverage":
        log_density, *moments = coverage.CASES["banana"]
        points[:, 1] = points[:, 1] / 8 + points[:, 0] ** 2 / 4  # the ridge is narrow
    else:
        log_density, moments = TARGETS[name].log_density, [REFERENCES[name]["mean"], REFERENCES[name]["sd"]]
    weights = np.asarray(jax.nn.softmax(jax.jit(jax.vmap(log_density))(jnp.asarray(points))))
    mean = weights @ points
    # Stored moments have six digits, and the grid has steps of 0.1 to 0.2 and an end.
    np.testing.assert_allclose(moments[0], mean, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(moments[1], np.sqrt(weights @ (points - mean) ** 2), rtol=1e-4)


def test_the_sds_of_the_heavy_tailed_target_of_coverage_are_those_of_its_radii():
    log_density, mean, sd = coverage.CASES["student-five"]
    radii = np.linspace(0.0, 3000.0, 300_001)
    weights = radii**4 * np.exp(jax.vmap(log_density)(jnp.asarray(radii[:, None] * np.eye(5)[0])))
    np.testing.assert_allclose(sd, np.sqrt(np.sum(weights * radii**2) / np.sum(weights) / 5), rtol=1e-5)
    np.testing.assert_array_equal(mean, 0)


def test_coverage_counts_moments_within_two_stated_errors_and_keys_that_are_narrow_without_a_word(monkeypatch):
    exact = coverage.CASES["banana"]
    offsets = iter([(1.9, 1.0, []), (2.1, 0.8, []), (0.0, 0.8, ["a warning"]), (0.0, 1.0, [])])

    def sample(key, log_density, start, throw):
        offset, ratio, texts = next(offsets)
        points = exact.mean + exact.sd * (np.array([[-1.0], [1.0]]) + 0.1 * offset)
        errors = SimpleNamespace(mean_errors=np.full(2, 0.1), sd_errors=np.full(2, 0.1))
        return SimpleNamespace(points=points, draws=ratio * points[None], diagnostics=errors, warnings=texts)

    monkeypatch.setattr(coverage.sk, "sample", sample)
    rows, _ = coverage.run("banana", "sample", Namespace(seeds=4))
    assert [row.mean for row in rows] == pytest.approx([0.75, 1.0, 0.8, 1])


@pytest.mark.thorough
def test_the_reference_of_the_funnel_agrees_with_draws():
    rng = np.random.default_rng(0)
    log_variance = rng.normal(0, 3, 100_000)
    assert abs(log_variance.std() / REFERENCES["funnel"]["sd"][0] - 1) < 0.02
    # The variance is heavy-tailed: importance draws from N(9, 9), where exp(v) p(v) lies, have no such trouble.
    shifted = log_variance + 9
    second_moment = np.mean(np.exp(shifted + ((shifted - 9) ** 2 - shifted**2) / 18))
    np.testing.assert_allclose(REFERENCES["funnel"]["sd"][1:], np.sqrt(second_moment), rtol=1e-5)


def test_a_run_that_diverged_is_not_silent():
    result = SimpleNamespace(points=np.ones((2, 3)), warnings=[], status=Status.DIVERGED, message="not finite")
    assert methods._of(result).warnings == ("not finite",)


def test_judgement_is_in_reference_standard_deviations_and_nan_is_not_good():
    reference = {"mean": [1.0, 2.0], "sd": [0.5, 10.0]}
    judged = Judgement.of([1.1, 3.0], [0.5, 11.0], reference)
    assert judged.max_mean_error == pytest.approx(0.2)
    assert judged.mean_mean_error == pytest.approx(0.15)
    assert (judged.min_sd_ratio, judged.max_sd_ratio) == pytest.approx((1.0, 1.1))
    assert judged.within((0.35, 0.7, 1.4))
    assert not judged.within((0.1, 0.9, 1.1))
    for far in (np.nan, np.inf):
        judged = Judgement.of([far, 2.0], [0.5, 10.0], reference)
        assert not judged.within((0.35, 0.7, 1.4))
        assert np.isnan(judged.max_mean_error)  # a file of results holds no infinity


def test_rows_count_a_hessian_as_d_gradients_and_the_summary_counts_by_half():
    reference = REFERENCES["banana"]
    right = Outcome(np.array(reference["mean"]), np.array(reference["sd"]), gradients=10, hessians=3)
    wrong = Outcome(right.mean + 5, right.sd)
    rows = rows_of("banana", "ours", [right] * 3, reference) + rows_of("banana", "svgd", [wrong] * 3, reference)
    found = {row[:3]: row.mean for row in rows + summary(rows)}
    assert found["banana", "ours", "evaluations"] == 16
    assert found["all", "ours", "excellent_targets"] == 1
    assert found["held out", "svgd", "good_targets"] == 0
    assert found["all", "svgd", "silent_failures"] == 1
    alarms = rows_of("banana", "ours", [replace(right, warnings=("a warning",)), right], reference)
    assert {row[:3]: row.mean for row in summary(alarms)}["all", "ours", "excellent_alarms"] == 1
    assert found["all", "ours", "excellent_alarms"] == found["all", "svgd", "excellent_alarms"] == 0
    assert ("rules", "ours", "targets") not in found
