"""Some parameters particles, the rest shared: taking them apart, training them, and what must not change."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import steinkern as sk

pytestmark = pytest.mark.thorough


def tree(n: int = 5):
    return {"net": {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}, "output": jnp.ones((n, 2)), "output_bias": jnp.ones(4)}


def test_named_leaves_are_taken_out_and_put_back():
    particles, shared = sk.split(tree(), "output")
    assert jax.tree.map(jnp.shape, particles) == {"net": {"w": None, "b": None}, "output": (5, 2), "output_bias": None}
    assert shared["output"] is None
    assert eqx.tree_equal(sk.merge(particles, shared), tree())


def test_a_name_stands_for_all_leaves_below_it_and_for_nothing_beside_it():
    particles, shared = sk.split(tree(), ["net", "output"])
    assert len(jax.tree.leaves(particles)) == 3
    assert jax.tree.leaves(shared)[0].shape == (4,)  # output_bias is not below output
    layers = eqx.nn.MLP(2, 1, 3, 1, key=jr.key(0))
    particles, _ = sk.split(layers, "layers.1.weight")
    assert [leaf.shape for leaf in jax.tree.leaves(eqx.filter(particles, eqx.is_array))] == [(1, 3)]


@pytest.mark.parametrize(
    ("names", "got"), [("outputs", "'outputs'"), (["net", "x.y"], "'x.y'"), ([], "no name at all")]
)
def test_unknown_names_are_refused_with_those_that_exist(names, got):
    with pytest.raises(ValueError, match=rf"among net.b, net.w, output, output_bias, got {got}"):
        sk.split(tree(), names)


def regression(key):
    """y = a x₁ + b x₂ with a and b correlated through the data; the posterior of a given b is Gaussian."""
    x_key, noise_key = jr.split(key)
    x = jr.normal(x_key, (40, 2)) @ jnp.array([[1.0, 0.6], [0.0, 0.8]])
    return x, x @ jnp.array([1.5, -0.7]) + jr.normal(noise_key, (40,))


def log_likelihood(parameters, example):
    x, y = example
    return -0.5 * (y - parameters["a"] * x[0] - parameters["b"] * x[1]) ** 2


def log_prior(parameters):
    return -0.5 * (parameters["a"] ** 2 + parameters["b"] ** 2) / 100


def start(n: int = 30):
    return {"a": jnp.linspace(-1.0, 1.0, n), "b": jnp.zeros(())}


def problem(key, n: int = 30):
    """Particles of a, the posterior with a shared b, and data."""
    particles, shared = sk.split(start(n), "a")
    return particles, sk.Posterior(log_prior, log_likelihood, 40, shared=shared), regression(key)


@pytest.mark.parametrize(
    "sampler", [sk.svgd(optimizer=0.3), sk.matrix_svgd("average", sk.Hessian(), optimizer=0.3)], ids=["svgd", "matrix"]
)
def test_particles_follow_the_conditional_and_the_rest_its_best_value(sampler, key):
    """With Gaussian particles the mean log density over them is maximal at b = the joint mode's b."""
    particles, target, (x, y) = problem(key)
    result = sk.fit(
        key, target, sk.half_bayesian(sampler, optax.adam(optax.linear_schedule(0.1, 0.0, 700))), particles, (x, y),
        num_steps=700,
    )  # fmt: skip
    precision = x.T @ x + jnp.eye(2) / 100
    mode = jnp.linalg.solve(precision, x.T @ y)
    np.testing.assert_allclose(result.shared["b"], mode[1], atol=2e-3)
    np.testing.assert_allclose(jnp.mean(result.particles["a"]), mode[0], atol=2e-3)
    # The spread is that of a given b, not the wider marginal one: what a half-Bayesian posterior leaves out. Thirty
    # particles of SVGD are narrower by some percent.
    assert jnp.std(result.particles["a"]) * jnp.sqrt(precision[0, 0]) == pytest.approx(1, abs=0.12)
    assert result.particles["b"] is None


@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")  # too few steps to be anywhere
def test_nothing_shared_but_constants_is_the_fully_bayesian_fit(key):
    """A shared parameter on which nothing depends changes nothing of the particles."""
    x, y = regression(key)
    sampler = sk.matrix_svgd("mixture", sk.Hessian(), optimizer=0.1)
    both = {"a": jnp.linspace(-1.0, 1.0, 10), "b": jnp.linspace(0.0, 1.0, 10)}
    plain = sk.fit(key, sk.Posterior(log_prior, log_likelihood, 40), sampler, both, (x, y), num_steps=20, batch_size=8)
    particles, shared = sk.split({**both, "unused": jnp.ones(3)}, ["a", "b"])
    target = sk.Posterior(log_prior, log_likelihood, 40, shared=shared)
    half = sk.fit(key, target, sk.half_bayesian(sampler, 0.1), particles, (x, y), num_steps=20, batch_size=8)
    np.testing.assert_allclose(half.points, plain.points, rtol=1e-12)
    np.testing.assert_array_equal(half.shared["unused"], jnp.ones(3))


@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")  # one step goes nowhere
def test_shared_parameters_move_along_the_mean_gradient(key):
    particles, target, (x, y) = problem(key, 4)
    sampler = sk.half_bayesian(sk.svgd(), optax.sgd(1e-3))
    result = sk.fit(key, target, sampler, particles, (x, y), num_steps=1)

    def mean_log_density(b):
        def one(a):
            parameters = {"a": a, "b": b}
            rows = jax.vmap(lambda *example: log_likelihood(parameters, example))(x, y)
            return log_prior(parameters) + jnp.sum(rows)

        return jnp.mean(jax.vmap(one)(start(4)["a"]))

    np.testing.assert_allclose(result.shared["b"], 1e-3 * jax.grad(mean_log_density)(jnp.zeros(())), rtol=1e-10)


@pytest.mark.filterwarnings("ignore::steinkern.SteinWarning")  # too few steps to be anywhere
def test_without_training_shared_parameters_stay(key):
    data = regression(key)
    particles, shared = sk.split({**start(), "b": jnp.asarray(0.4)}, "a")
    target = sk.Posterior(log_prior, log_likelihood, 40, shared=shared)
    result = sk.fit(key, target, sk.sgld(1e-3), particles, data, num_steps=5)
    assert result.shared["b"] == 0.4
    assert result.scores(data).shape == (30, 1)


def test_a_fit_goes_on_where_it_stopped_from_its_result_and_from_its_checkpoint(key, tmp_path):
    particles, target, data = problem(key, 6)
    sampler, options = sk.half_bayesian(sk.svgd(), optax.adam(0.01)), {"data": data, "batch_size": 5}
    whole = sk.fit(key, target, sampler, particles, num_steps=10, **options)
    half = sk.fit(key, target, sampler, particles, num_steps=6, checkpoint=tmp_path, **options)
    rest = sk.fit(key, target, sampler, half, num_steps=4, **options)
    resumed = sk.fit(key, target, sampler, particles, num_steps=10, checkpoint=tmp_path, **options)
    for result in (rest, resumed):
        np.testing.assert_array_equal(result.points, whole.points)
        np.testing.assert_array_equal(result.shared["b"], whole.shared["b"])
    other = sk.fit(key, target, sk.sgld(1e-6), whole, data, num_steps=1)
    assert other.shared["b"] == whole.shared["b"]  # another sampler starts from what was learnt
    other = sk.Posterior(log_prior, log_likelihood, 40, shared={"a": None, "b": jnp.ones(())})
    with pytest.raises(ValueError, match="is of another run"):
        sk.fit(key, other, sampler, particles, num_steps=10, checkpoint=tmp_path, **options)


def test_functions_among_the_shared_leaves_stay_where_they_are(key):
    network = eqx.nn.MLP(2, 4, 8, 1, key=key)
    parameters = {"network": network, "output": jr.normal(key, (5, 4))}

    def density(parameters, data):
        x, y = data
        outputs = jax.vmap(parameters["network"])(x) @ parameters["output"]
        return -0.5 * jnp.sum((y - outputs) ** 2) - 0.5 * jnp.sum(parameters["output"] ** 2)

    particles, shared = sk.split(parameters, "output")
    sampler = sk.half_bayesian(sk.svgd(), optax.adam(1e-2))
    data = regression(key)
    result = sk.fit(key, sk.LogDensity(density, shared=shared), sampler, particles, data, num_steps=20)
    assert result.shared["network"].activation is network.activation
    before, after = (
        float(
            jnp.mean(jax.vmap(lambda w, t=tree_: density(sk.merge({"network": None, "output": w}, t), data))(outputs))
        )
        for tree_, outputs in ((shared, parameters["output"]), (result.shared, result.particles["output"]))
    )
    assert after > before


def test_shared_numbers_that_turn_infinite_stop_the_run_before_they_are_kept(key):
    def density(parameters):
        # Overflows in the shared parameter alone: the particles' own scores stay finite one step longer.
        return -0.5 * jnp.sum(parameters["x"] ** 2) + jnp.exp(parameters["v"])

    particles, shared = sk.split({"x": jr.normal(key, (4, 1)), "v": jnp.asarray(700.0)}, "x")
    sampler = sk.half_bayesian(sk.svgd(), optax.sgd(1e10))
    result = sk.fit(key, sk.LogDensity(density, shared=shared), sampler, particles, num_steps=5, throw=False)
    assert result.status is sk.Status.DIVERGED
    assert np.isfinite(result.shared["v"])


def test_kfac_of_the_particles_sees_what_is_shared(key):
    """KFAC is exact on one linear layer with one example: the Fisher information of the whole output layer."""
    keys = jr.split(key, 3)
    parameters = {
        "net": eqx.nn.Linear(2, 3, key=keys[0]),
        "out": eqx.filter_vmap(lambda k: eqx.nn.Linear(3, 2, key=k))(keys),
    }
    particles, shared = sk.split(parameters, "out")

    def model(p, x):
        return p["out"](jnp.tanh(p["net"](x)))

    def log_likelihood(p, x):
        return sk.Gaussian().log_prob(model(p, x), jnp.zeros(2))

    def prior(p):
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(eqx.filter(p["out"], eqx.is_array)))

    target = sk.Posterior(prior, log_likelihood, 1, shared=shared).bind(jax.tree.map(lambda leaf: leaf[0], particles))
    point = jax.vmap(target.space.unconstrain)(particles)[0]
    batch = jr.normal(key, (1, 2))
    found, expected = (kind(model, sk.Gaussian())(target, point, batch).as_matrix() for kind in (sk.KFAC, sk.Fisher))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    sampler = sk.half_bayesian(sk.matrix_svgd("average", sk.KFAC(model, sk.Gaussian())), 0.1)
    result = sk.fit(key, target.target, sampler, particles, batch, num_steps=2)
    assert result.status is sk.Status.FINISHED


def fit_shared(v=0.0, support=None, **options):
    particles, shared = sk.split({"x": jnp.linspace(-1.0, 1.0, 4), "v": jnp.asarray(v)}, "x")
    target = sk.LogDensity(lambda p: -0.5 * p["x"] ** 2 - 0.5 * (p["v"] - 100) ** 2, shared=shared, support=support)
    return sk.fit(jr.key(0), target, sk.half_bayesian(sk.svgd(), 1e-3), particles, num_steps=5, **options)


REFUSED = {
    "a tolerance": (lambda: fit_shared(tolerance=0.05), "`tolerance` has no meaning for HalfBayesian"),
    "a constraint of shared parameters": (
        lambda: fit_shared(support={"v": sk.positive}),
        r"`support\['v'\]` is given for shared parameters, which must be unconstrained",
    ),
    "shared whole numbers": (lambda: fit_shared(v=3), "at least one floating-point array"),
    "nothing shared": (
        lambda: sk.fit(jr.key(0), lambda x: -(x**2), sk.half_bayesian(sk.svgd()), jnp.ones(3), num_steps=1),
        "needs a target with shared parameters",
    ),
    "a half-Bayesian sampler": (lambda: sk.half_bayesian(sk.half_bayesian(sk.svgd())), "`sampler` must be a sampler"),
    "a step rule": (lambda: sk.half_bayesian(optax.adam(0.1)), "`sampler` must be a sampler"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_told_kept_or_trained_is_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()
