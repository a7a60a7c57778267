"""PyMC models as targets: PyMC's own density, exact means, draws from prior and predictive, and clear refusals."""

import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from scipy import stats

import steinkern as sk
from steinkern.targets import BoundTarget
from tests.helpers.commands import invoke
from tests.helpers.processes import output_of

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC's own imports are deprecated by PyTensor here and there
        import pymc as pm

        from_model = sk.interop.pymc.from_model
except ModuleNotFoundError:  # `make test` installs it; who has an environment of their own may not
    pytest.skip("needs PyMC: pip install 'steinkern[pymc]'", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore:::pytensor", "ignore:::pymc"),
    pytest.mark.thorough,  # the import of PyMC alone takes as long as a hundred other tests
]

Y = np.array([0.3, -1.0, 2.0, 0.7])


@pytest.fixture(scope="module")
def target():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0)
        pm.Dirichlet("weights", np.ones(3))
        pm.Uniform("share", 0.0, scale)
        cuts = pm.Normal("cuts", 0.0, 1.0, shape=2, transform=pm.distributions.transforms.ordered, initval=[-1, 1])
        pm.Deterministic("gap", cuts[1] - cuts[0])
        pm.Normal("y", cuts[0], scale, observed=Y)
    return from_model(model)


def gamma():
    return pm.Gamma("x", 3.0, 1.0)


def model_of(variable):
    with pm.Model() as model:
        variable()
    return model


@pytest.mark.parametrize(
    ("variable", "mean"), [(gamma, 3.0), (lambda: pm.Exponential("x", 1.0), 1.0)], ids=["gamma", "exponential"]
)
def test_constrained_variables_have_the_right_mean(variable, mean, key):
    target = from_model(model_of(variable))
    result = sk.fit(key, target, sk.svgd(), target.prior(key, 50), num_steps=500)
    # Without the log-Jacobian the means would be 2 and 0.
    assert float(result.particles["x"].mean()) == pytest.approx(mean, abs=0.04)


@pytest.fixture(scope="module")
def hierarchical():
    """Groups around a centre, beside a share, a simplex and two levels in order, each with something observed."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        centre = pm.Normal("centre", 0.0, 2.0)
        spread = pm.HalfNormal("spread", 1.0)
        groups = pm.Normal("groups", centre, spread, shape=8)
        share = pm.Uniform("share", 0.2, 0.9)
        weights = pm.Dirichlet("weights", np.ones(3))
        levels = pm.Normal("levels", 0.0, 1.0, shape=2, transform=pm.distributions.transforms.ordered, initval=[-1, 1])
        pm.Normal("y", groups, 0.5, observed=rng.normal(rng.normal(1.0, 1.0, 8), 0.5, (10, 8)))
        pm.Binomial("hits", 20, share, observed=13)
        pm.Multinomial("counts", 30, weights, observed=[5, 10, 15])
        pm.Normal("low", levels[0], 0.5, observed=[-0.4, -0.1, 0.2])
        pm.Normal("high", levels[1], 0.5, observed=[0.3, 0.6, 0.9])
    return model


@pytest.mark.thorough
def test_a_hierarchical_model_has_the_moments_of_pymcs_nuts(hierarchical, key):
    target = from_model(hierarchical)
    falling = optax.rmsprop(optax.cosine_decay_schedule(0.1, 500))
    sampler = sk.matrix_svgd("average", sk.Hessian(), sk.IMQ(), falling)
    result = sk.fit(key, target, sampler, target.prior(jr.fold_in(key, 1), 100), num_steps=500)
    loose = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with warnings.catch_warnings(), loose[0], loose[1]:
        warnings.simplefilter("ignore")  # neither chains run one after another nor PyMC's own future matter here
        draws = pm.sample(
            1000, tune=500, chains=2, cores=1, random_seed=1, progressbar=False, compute_convergence_checks=False,
            model=hierarchical, compile_kwargs={"mode": "JAX"},  # C takes a minute to compile
        )  # fmt: skip
    for name, values in target.sites(result.particles).items():
        exact = np.asarray(draws.posterior[name])
        exact = exact.reshape(-1, *exact.shape[2:])
        mean, sd = exact.mean(axis=0), exact.std(axis=0)
        # Four standard errors of a mean over 2,000 draws that are worth about 1,100.
        np.testing.assert_array_less(np.abs(np.asarray(values).mean(axis=0) - mean), 0.12 * sd, err_msg=name)
        # A hundred particles of the IMQ kernel: their spread is within a few percent in most coordinates, 13 at worst.
        np.testing.assert_allclose(np.asarray(values).std(axis=0), sd, rtol=0.2, err_msg=name)


def test_one_draw_of_the_prior_has_a_particle_axis_too(hierarchical, key):
    target = from_model(hierarchical)
    one, three = target.prior(key, 1), target.prior(key, 3)
    assert {name: value.shape[1:] for name, value in one.items()} == {n: v.shape[1:] for n, v in three.items()}
    assert {len(value) for value in one.values()} == {1}


def test_a_pymc_model_in_a_file_becomes_particles_and_a_page(tmp_path):
    (tmp_path / "schools.py").write_text(
        "import pymc as pm\n"
        "with pm.Model() as model:\n"
        "    scale = pm.HalfNormal('scale', 1.0)\n"
        "    pm.Deterministic('twice', 2 * scale)\n"
        "    pm.Normal('y', 0.0, scale, observed=[0.3, -1.0, 2.0])\n"
    )
    command = ["sample", f"{tmp_path / 'schools.py'}:model", "--particles", "6", "--steps", "4", "--method", "vanilla"]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        done = invoke(*command, "--out", str(tmp_path / "p.npz"))
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "p.npz") as particles:
        assert (particles["scale"] > 0).all()
        np.testing.assert_allclose(particles["twice"], 2 * particles["scale"])
    assert "scale" in (tmp_path / "index.html").read_text()
    with pytest.raises(ValueError, match="`--dim` is for log densities; model is a model"):
        invoke(*command, "--dim", "2")


def test_the_density_is_that_of_the_distributions_with_the_jacobian(target, key):
    point, target = jr.normal(key, (target.space.layout.size,)), BoundTarget(target, target.space)
    values = {name: np.asarray(value) for name, value in target.constrain(point).items()}
    scale, cuts = values["scale"], values["cuts"]
    joint = stats.halfnorm.logpdf(scale) + stats.dirichlet(np.ones(3)).logpdf(values["weights"])
    joint += -np.log(scale) + stats.norm.logpdf(cuts).sum() + stats.norm(cuts[0], scale).logpdf(Y).sum()
    # The Jacobian by brute force: all coordinates but the last, dependent, weight.
    jacobian = jax.jacfwd(lambda u: jnp.concatenate([
        jnp.atleast_1d(v)[: 2 if name == "weights" else None] for name, v in target.constrain(u).items()
    ]))(point)  # fmt: skip
    log_jacobian = np.linalg.slogdet(np.asarray(jacobian))[1]
    np.testing.assert_allclose(target.log_density(point), joint + log_jacobian, rtol=1e-9)
    np.testing.assert_allclose(target.space.log_jacobian(point), log_jacobian, rtol=1e-9)


def test_constraining_undoes_unconstraining_where_bounds_depend_on_variables(target, key):
    draws = target.prior(key, 20)
    assert np.all(np.asarray(draws["share"]) < np.asarray(draws["scale"]))
    space = target.space
    again = jax.jit(jax.vmap(lambda particle: space.constrain(space.unconstrain(particle))))(draws)
    for name in ("scale", "weights", "share"):
        np.testing.assert_allclose(again[name], draws[name], rtol=1e-7, err_msg=name)


def test_a_target_is_written_with_its_free_variables(target):
    assert repr(target) == "PyMCTarget(scale, weights, share, cuts)"


def test_deterministics_observations_and_predictive_draws_have_their_names(target, key):
    draws = target.prior(key, 3)
    particles = {**draws, "cuts": jnp.array([[0.0, 1.0], [1.0, 3.0], [5.0, 9.0]]), "scale": jnp.full(3, 1e-6)}
    sites = target.sites(particles)
    assert set(sites) == {*draws, "gap"}
    np.testing.assert_allclose(sites["gap"], [1.0, 2.0, 4.0])
    np.testing.assert_array_equal(target.observed()["y"], Y)
    predicted = target.predictive(key, particles)["y"]
    np.testing.assert_allclose(predicted, np.repeat([[0.0], [1.0], [5.0]], 4, axis=1), atol=1e-4)
    assert not np.array_equal(predicted, target.predictive(jr.fold_in(key, 1), particles)["y"])


def test_first_particles_are_draws_from_the_prior(key):
    draws = np.asarray(from_model(model_of(gamma)).prior(key, 500)["x"])
    assert stats.kstest(draws, stats.gamma(3).cdf).pvalue > 1e-3


def test_models_that_cannot_be_targets_are_refused_in_one_line():
    with pm.Model() as discrete:
        pm.Poisson("count", 1.0)
        gamma()
    with pm.Model() as observed:
        pm.Normal("y", 0.0, 1.0, observed=Y)
    for model, message in (
        (discrete, "continuous free variables, but 'count' is discrete: .*pymc.Mixture"),
        (observed, "at least one free variable, got none"),
        (gamma, "`model` must be a `pymc.Model`, got <function"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            from_model(model)
        assert "\n" not in str(error.value)


def test_particles_outside_the_support_are_refused_by_name(key):
    with pytest.raises(ValueError, match="x has values outside what the model allows"):
        sk.fit(key, from_model(model_of(gamma)), sk.svgd(), {"x": jnp.array([1.0, -1.0])}, num_steps=1)


def test_shares_that_were_rounded_to_single_precision_are_inside_their_support():
    shares = np.random.default_rng(0).dirichlet(np.ones(3), 40).astype(np.float32).astype(float)
    space = from_model(model_of(lambda: pm.Dirichlet("p", np.ones(3)))).space
    space.check({"p": shares})
    with pytest.raises(ValueError, match="p has values outside what the model allows"):
        space.check({"p": 1.0001 * shares})


def test_the_import_asks_for_no_more_devices():
    code = "import jax, steinkern as sk; sk.interop.pymc.from_model; print(len(jax.devices()))"
    assert output_of("-c", code, XLA_FLAGS="").split()[-1] == "1"


def test_axes_labels_and_log_likelihoods_reach_arviz(key):
    arviz = pytest.importorskip("arviz", reason="needs ArviZ: pip install 'steinkern[arviz]'")
    del arviz
    rng = np.random.default_rng(0)
    y = rng.normal(size=(3, 4))
    with pm.Model(coords={"school": ["A", "B", "C"], "pupil": range(4)}) as model:
        centre = pm.Normal("centre", 0.0, 1.0)
        offset = pm.Normal("offset", centre, 1.0, dims="school")
        pm.Deterministic("twice", offset + offset, dims="school")
        scale = pm.HalfNormal("scale", 1.0)
        pm.Normal("y", offset[:, None], scale, observed=y, dims=("school", "pupil"))
    target = from_model(model)
    start = target.prior(key, 5)
    data = sk.fit(key, target, sk.ensemble(1e-6), start, num_steps=1).to_arviz(key=jr.fold_in(key, 1))
    assert data["posterior"]["offset"].dims == data["posterior"]["twice"].dims == ("chain", "draw", "school")
    assert data["posterior_predictive"]["y"].dims == ("chain", "draw", "school", "pupil")
    posterior = data["posterior"]
    chosen = posterior["offset"].sel(school="B").values[0]
    expected = stats.norm(chosen[:, None], posterior["scale"].values[0][:, None]).logpdf(y[1])
    np.testing.assert_allclose(data["log_likelihood"]["y"].sel(school="B").values[0], expected, rtol=1e-9)


@pytest.mark.filterwarnings("ignore")  # PyMC's, that it imputes
def test_missing_entries_are_free_and_the_whole_variable_is_a_site(key):
    y = np.array([np.nan, 0.5, np.nan, -1.0])
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("centre", 0.0, 1.0), 1.0, observed=y)
    target = from_model(model)
    result = sk.fit(key, target, sk.ensemble(1e-6), target.prior(key, 5), num_steps=1)
    whole = np.asarray(target.sites(result.particles)["y"])
    np.testing.assert_array_equal(whole[:, [1, 3]], np.tile(y[[1, 3]], (5, 1)))
    np.testing.assert_allclose(whole[:, [0, 2]], result.particles["y_unobserved"], rtol=1e-12)
    pytest.importorskip("arviz", reason="needs ArviZ: pip install arviz")
    terms = result.to_arviz(key=key)["log_likelihood"]["y_observed"].values[0]
    expected = stats.norm(np.asarray(result.particles["centre"])[:, None]).logpdf(y[[1, 3]])
    np.testing.assert_allclose(terms, expected, rtol=1e-9)


def test_a_result_of_a_model_goes_to_another_place_by_a_file(target, key, tmp_path):
    result = sk.fit(key, target, sk.ensemble(1e-6), target.prior(key, 5), num_steps=1)
    again = sk.load(result.save(tmp_path / "run.result"), target=target)
    np.testing.assert_allclose(again.scores(), result.scores(), rtol=1e-9)
