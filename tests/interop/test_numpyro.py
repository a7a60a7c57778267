"""NumPyro models as targets: NumPyro's own density and maps, exact means, its NUTS, minibatches, and clear refusals."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from scipy import stats

import steinkern as sk
from steinkern.core.extras import install_command
from steinkern.targets import BoundTarget

pytest.importorskip("numpyro", reason="needs NumPyro: pip install 'steinkern[numpyro]'")

import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.util import log_density, potential_energy

from tests.helpers import numpyro_reference as reference
from tests.helpers.processes import output_of

from_model = sk.interop.numpyro.from_model


def bound(target):
    return BoundTarget(target, target.space)


@pytest.fixture(scope="module")
def hierarchical():
    return from_model(reference.model, *reference.data())


@pytest.fixture(scope="module")
def draws(hierarchical):
    """Particles spread around the origin of unconstrained space: cheaper to compile than this model's prior."""
    points = 0.5 * jr.normal(jr.key(1), (100, hierarchical.space.layout.size))
    return jax.jit(jax.vmap(hierarchical.space.constrain))(points)


def gamma():
    numpyro.sample("x", dist.Gamma(3.0, 1.0))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "mean"),
    [(gamma, 3.0), (lambda: numpyro.sample("x", dist.Exponential(1.0)), 1.0)],
    ids=["gamma", "exponential"],
)
def test_constrained_sites_have_the_right_mean(model, mean, key):
    target = from_model(model)
    result = sk.fit(key, target, sk.svgd(), target.prior(key, 50), num_steps=500)
    # Without the log-Jacobian the means would be 2 and 0; fifty particles were within 0.007 of the truth on five seeds.
    assert float(result.particles["x"].mean()) == pytest.approx(mean, abs=0.02)


@pytest.mark.thorough
def test_means_and_spreads_are_those_of_nuts(hierarchical, draws, key):
    schedule = optax.cosine_decay_schedule(0.1, 600)
    sampler = sk.svgd(sk.IMQ(), optax.adam(schedule))
    result = sk.fit(key, hierarchical, sampler, draws, num_steps=600)
    columns = reference.coordinates(hierarchical.sites(result.particles))
    assert set(columns) == set(reference.MOMENTS)
    for name, (mean, sd, _) in reference.MOMENTS.items():
        column = np.asarray(columns[name])
        # One standard error of as many independent draws: 0.1 sd of the mean; two of the spread, 2/√(2·100) = 0.14. On
        # five seeds the worst were 0.034 and 0.085. The kernel matters: an RBF's spreads are too narrow here.
        assert column.mean() == pytest.approx(mean, abs=0.1 * sd), name
        assert column.std() == pytest.approx(sd, rel=0.14), name


def test_the_density_is_numpyros_own_and_its_jacobian_what_remains(hierarchical, key, relaxed):
    target = bound(hierarchical)

    @jax.jit
    def numbers(point):
        potential = potential_energy(reference.model, reference.data(), {}, target.space.layout.unravel(point))
        joint, _ = log_density(reference.model, reference.data(), {}, target.constrain(point))
        return target.log_density(point), -potential, target.space.log_jacobian(point), -potential - joint

    density, expected_density, jacobian, expected_jacobian = numbers(jr.normal(key, (target.space.layout.size,)))
    np.testing.assert_allclose(density, expected_density, rtol=1e-12)
    np.testing.assert_allclose(jacobian, expected_jacobian, rtol=1e-9)


def test_first_particles_are_draws_from_the_prior(key):
    target = from_model(gamma)
    draws = np.asarray(target.prior(key, 2000)["x"])
    assert stats.kstest(draws, stats.gamma(3).cdf).pvalue > 1e-3
    assert not np.allclose(draws, target.prior(jr.fold_in(key, 1), 2000)["x"])


def improper(y):
    location = numpyro.sample("location", dist.ImproperUniform(dist.constraints.positive, (), ()))
    numpyro.sample("y", dist.Normal(location, 1.0), obs=y)


def test_improper_priors_start_near_the_origin_of_unconstrained_space(key):
    draws = np.log(from_model(improper, np.ones(3)).prior(key, 200)["location"])
    assert -2 < draws.min() < -1.5
    assert 1.5 < draws.max() < 2


def narrow(y):
    width = numpyro.sample("width", dist.Uniform(0.0, 10.0))
    numpyro.sample("y", dist.Uniform(0.0, width), obs=y)  # impossible below the largest observation


def test_first_particles_stand_where_the_posterior_is_finite(key):
    target = from_model(narrow, np.array([3.0, 4.0]))
    draws = target.prior(key, 200)
    assert jnp.all(jnp.isfinite(bound(target).log_densities(jax.vmap(target.space.unconstrain)(draws))))
    assert float(draws["width"].min()) > 4


def test_a_model_without_a_start_says_so(key):
    with pytest.raises(ValueError, match=r"`model` has no start: after 100 draws .* 3 of 3 particles"):
        from_model(narrow, np.array([11.0])).prior(key, 3)


def test_bounds_may_depend_on_other_sites(key):
    def triangle():
        upper = numpyro.sample("upper", dist.Uniform(0.0, 1.0))
        numpyro.sample("lower", dist.Uniform(0.0, upper))

    target = bound(from_model(triangle))
    point = jnp.array([0.3, -0.7])  # lower, upper: sites are in alphabetical order
    values = target.constrain(point)
    upper = jax.nn.sigmoid(point[1])
    np.testing.assert_allclose([values["lower"], values["upper"]], [upper * jax.nn.sigmoid(point[0]), upper])
    # The density of (lower, upper) is 1/upper; the map's Jacobian is upper·σ'(u₀)·σ'(u₁).
    slopes = jax.nn.sigmoid(point) * jax.nn.sigmoid(-point)
    np.testing.assert_allclose(target.log_density(point), jnp.sum(jnp.log(slopes)), rtol=1e-12)
    np.testing.assert_allclose(target.space.unconstrain(values), point, rtol=1e-9)


def test_deterministic_and_observed_sites_have_their_names(hierarchical, draws):
    sites = hierarchical.sites(draws)
    assert set(sites) == {*draws, "correlation"}
    np.testing.assert_array_equal(sites["correlation"], draws["root"][:, 1, 0])
    observed = hierarchical.observed()
    assert set(observed) == {"y", "category", "rating", "pair"}
    np.testing.assert_array_equal(observed["y"], reference.data()[2])


def test_a_summary_lists_latent_sites_and_then_deterministic_ones(key, tmp_path):
    def ratio():
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.deterministic("inverse", 1 / scale)
        numpyro.deterministic("powers", {"second": scale**2, "third": scale**3})

    target = from_model(ratio)
    result = sk.fit(key, target, sk.ensemble(1e-9), {"scale": jnp.array([1.0, 2.0, 4.0])}, num_steps=1)
    rows = [line.split() for line in result.summary().splitlines()[1:5]]
    assert [row[0] for row in rows] == ["scale", "inverse", "powers.second", "powers.third"]
    assert float(rows[1][3]) == pytest.approx(0.275, abs=1e-3)  # the 5 % quantile of 1, 1/2 and 1/4, to four digits
    assert "inverse" not in sk.load(result.save(tmp_path / "run.npz")).summary()


def regression(x, y, subsample_size=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", len(x), subsample_size=subsample_size) as rows:
        numpyro.sample("y", dist.Normal(slope * x[rows], 0.5), obs=y[rows])


X = np.linspace(-1, 1, 40)
Y = 1.5 * X + 0.5 * np.sin(7 * np.arange(40))


def test_predictive_draws_follow_the_observed_sites_distribution(key):
    target = from_model(regression, X, Y)
    draws = target.predictive(key, {"slope": jnp.full(500, 1.5)})["y"]
    assert draws.shape == (500, 40)
    assert stats.kstest(np.asarray((draws - 1.5 * X[None]) / 0.5).ravel(), "norm").pvalue > 1e-3


def test_each_step_draws_a_minibatch_of_the_models_own_plate(key):
    models = from_model(regression, X, Y), from_model(regression, X, Y, subsample_size=8)
    assert models[1].plates == (("rows", 40, 8),)
    whole, part = map(bound, models)
    vector = jnp.array([0.7])
    np.testing.assert_allclose(part.log_density(vector), whole.log_density(vector), rtol=1e-12)  # no batch: all rows
    batches = [part.batch(None, None, own) for own in jr.split(key, 2)]
    assert batches[0]["rows"].shape == (8,)
    assert not np.array_equal(batches[0]["rows"], batches[1]["rows"])
    rows = np.asarray(batches[0]["rows"])
    expected = stats.norm(0, 2).logpdf(0.7) + 40 / 8 * stats.norm(0.7 * X[rows], 0.5).logpdf(Y[rows]).sum()
    np.testing.assert_allclose(part.log_density(vector, batches[0]), expected, rtol=1e-10)


def test_minibatch_scores_average_to_the_full_score(key):
    part = bound(from_model(regression, X, Y, subsample_size=8))
    vector = jnp.array([0.7])
    scores = jax.jit(jax.vmap(lambda own: part.score(vector, part.batch(None, None, own))))(jr.split(key, 4000))
    error = scores.std() / 4000**0.5
    assert abs(float(scores.mean() - part.score(vector)[0])) < 4 * float(error)


@pytest.mark.thorough
def test_minibatches_reach_the_posterior_of_all_rows(key):
    part = from_model(regression, X, Y, subsample_size=8)
    precision = 1 / 4 + (X**2).sum() / 0.25
    mean, sd = (X * Y).sum() / 0.25 / precision, precision**-0.5
    sampler = sk.svgd(optimizer=optax.adam(optax.cosine_decay_schedule(0.03, 1000)))
    runs = [sk.fit(own, part, sampler, part.prior(own, 20), num_steps=1000) for own in jr.split(key, 4)]
    # Steps that shrink to nothing leave little of the minibatches' noise: 0.11 sd over ten keys, and half of it in the
    # mean of four runs. One fixed batch has its own mean elsewhere.
    assert np.mean([run.particles["slope"].mean() for run in runs]) == pytest.approx(mean, abs=0.3 * sd)
    first = part.batch(None, None)["rows"]
    assert abs((X * Y)[first].sum() / (X**2)[first].sum() - mean) > 0.5 * sd


def test_new_data_of_the_same_shape_trace_nothing(key):
    traces = []

    def model(x):
        traces.append(x)
        numpyro.sample("x", dist.Normal(numpyro.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=x)

    sampler = sk.svgd()
    start = {"mean": jnp.arange(3.0)}
    first = sk.fit(key, from_model(model, jnp.zeros(4)), sampler, start, num_steps=2)
    other = from_model(model, jnp.ones(4))
    count = len(traces)
    second = sk.fit(key, other, sampler, start, num_steps=2)
    assert len(traces) == count
    assert not np.allclose(first.particles["mean"], second.particles["mean"])


def test_models_that_need_their_data_while_traced_get_them(key):
    def model(group, y):
        with numpyro.plate("groups", len(np.unique(group))):
            level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(level[group], 1.0), obs=y)

    target = from_model(model, np.array([0, 1, 1, 2]), np.arange(4.0))
    # Each level has k observations: N(Σy/(1 + k), 1/(1 + k)).
    score = bound(target).score(jnp.array([0.0, 1.5, 1.5]))
    np.testing.assert_allclose(score, [0 - 0, 1 + 2 - 3 * 1.5, 3 - 2 * 1.5], atol=1e-12)


@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")  # too few steps to be anywhere
def test_a_fit_goes_on_from_its_result(key):
    target = from_model(regression, X, Y, subsample_size=8)
    start = target.prior(key, 5)
    sampler = sk.svgd()
    whole = sk.fit(key, target, sampler, start, num_steps=6)
    part = sk.fit(key, target, sampler, sk.fit(key, target, sampler, start, num_steps=2), num_steps=4)
    np.testing.assert_array_equal(part.particles["slope"], whole.particles["slope"])


def mixture(y):
    weight = numpyro.sample("weight", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        label = numpyro.sample("label", dist.Bernoulli(weight))
        numpyro.sample("y", dist.Normal(label.astype(float), 1.0), obs=y)


def local(y):
    with numpyro.plate("rows", 4, subsample_size=2) as rows:
        centre = numpyro.sample("centre", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(centre, 1.0), obs=y[rows])


def fixed(y):
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (mixture, (np.zeros(3),), r"continuous latent sites, but 'label' is discrete: .*MixtureSameFamily.*condition"),
        (local, (np.zeros(4),), r"latent site 'centre' inside the subsampled plate 'rows': .*`subsample_size`"),
        (fixed, (np.zeros(3),), r"at least one latent site, got none"),
        ("model.py", (), r"`model` must be a NumPyro model.* got .model.py. of type str"),
        (lambda: numpyro.sample("spike", dist.Delta(1.0)), (), r"'spike' is a `Delta`: use `numpyro.deterministic`"),
    ],
)
def test_models_that_cannot_be_targets_are_refused_in_one_line(model, arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        from_model(model, *arguments)
    assert "\n" not in str(error.value)


def test_arguments_that_do_not_fit_a_model_are_pythons_error():
    with pytest.raises(TypeError, match=r"fixed\(\) missing 1 required positional argument: 'y'"):
        from_model(fixed)


def test_a_target_is_written_as_the_call_of_its_model():
    target = from_model(regression, X, Y, subsample_size=8)
    x, y = (f"{jnp.result_type(float).name}{list(data.shape)}" for data in (X, Y))
    assert repr(target) == f"NumPyroTarget(regression({x}, {y}, subsample_size=8))"


def test_a_model_that_takes_a_key_is_written_too(tmp_path):
    target = from_model(lambda key: numpyro.sample("x", dist.Normal(jr.normal(key), 1.0)), jr.key(0))
    assert repr(target) == "NumPyroTarget(a function(key<fry>[]))"
    sk.fit(jr.key(1), target, sk.svgd(), num_particles=3, num_steps=1).save(tmp_path / "run.npz")


def test_conditioning_on_a_discrete_site_is_a_way_out():
    target = bound(from_model(handlers.condition(mixture, {"label": np.array([0, 1, 1])}), np.zeros(3)))
    # Beta(2, 3) turned round: weight^2 (1 − weight), with Jacobian weight(1 − weight), at weight 1/2.
    step = target.log_density(jnp.array([np.log(3.0)])) - target.log_density(jnp.array([0.0]))
    np.testing.assert_allclose(step, 3 * np.log(0.75 / 0.5) + 2 * np.log(0.25 / 0.5), rtol=1e-10)


@pytest.mark.parametrize(
    ("particles", "options", "message"),
    [
        ({"slop": jnp.zeros(3)}, {}, r"dictionary of the model's latent sites \['slope'\], got \['slop'\]"),
        (jnp.zeros(3), {}, r"latent sites \['slope'\], got ndarray"),
        ({"slope": jnp.zeros((3, 2))}, {}, r"shapes \{'slope': \(\)\}, got \{'slope': \(2,\)\}"),
        ({"slope": jnp.zeros(3)}, {"data": jnp.zeros(3)}, r"`data` must be left out"),
        ({"slope": jnp.zeros(3)}, {"batch_size": 2}, r"`batch_size` is 2, but .*subsample_size="),
    ],
)
def test_what_does_not_fit_the_model_is_refused(particles, options, message, key):
    with pytest.raises(ValueError, match=message):
        sk.fit(key, from_model(regression, X, Y), sk.svgd(), particles, num_steps=1, **options)


def test_particles_outside_the_support_are_refused_by_name(key):
    with pytest.raises(ValueError, match="x has values outside what the model allows"):
        sk.fit(key, from_model(gamma), sk.svgd(), {"x": jnp.array([1.0, -1.0])}, num_steps=1)


@pytest.mark.thorough
def test_importing_the_library_imports_no_neighbor_and_a_missing_one_is_named():
    program = (
        "import sys\n"
        "import steinkern as sk\n"
        "assert not {'numpyro', 'pymc', 'arviz', 'blackjax', 'xarray'} & set(sys.modules)\n"
        "sys.modules['numpyro'] = None\n"  # as if it were not installed
        "try:\n    sk.interop.numpyro\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    assert install_command("numpyro") in output_of("-c", program)
