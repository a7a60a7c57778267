"""A NumPyro model with one site of every kind of support, and its posterior by NumPyro's NUTS.

`python -m tests.helpers.numpyro_reference` runs NUTS again and prints the moments that `MOMENTS` holds.
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist

NUM_GROUPS = 5

# Mean, standard deviation and standard error of the mean: four chains of 10,000 draws after 1,000 of warm-up, in
# float64 by NumPyro 0.22.0 on JAX 0.12.0.1 (CPU), Python 3.12.
MOMENTS = {
    "scale": (0.9144, 0.3192, 0.0014),
    "slope": (0.4489, 0.1313, 0.0005),
    "correlation": (0.6122, 0.0731, 0.0003),
    "weights[0]": (0.1425, 0.0439, 0.0002),
    "weights[1]": (0.3016, 0.0578, 0.0002),
    "cuts[0]": (-0.5399, 0.2681, 0.0011),
    "cuts[1]": (0.9580, 0.2990, 0.0010),
    "effect[0]": (-0.9672, 0.2842, 0.0011),
    "effect[1]": (-0.6602, 0.2768, 0.0010),
}


def model(group, x, y, category, rating, pair):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))  # positive
    slope = numpyro.sample("slope", dist.Uniform(-1.0, 2.0))  # an interval
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))  # a simplex
    free = dist.Normal(0.0, 2.0).expand([2]).to_event(1)
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(free, dist.transforms.OrderedTransform()))  # ordered
    root = numpyro.sample("root", dist.LKJCholesky(2, 2.0))  # Cholesky factor of a correlation matrix
    with numpyro.plate("groups", NUM_GROUPS):
        effect = numpyro.sample("effect", dist.Normal(0.0, scale))
    numpyro.deterministic("correlation", root[1, 0])
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(effect[group] + slope * x, 1.0), obs=y)
        numpyro.sample("category", dist.Categorical(weights), obs=category)
        numpyro.sample("rating", dist.OrderedLogistic(slope * x, cuts), obs=rating)
        numpyro.sample("pair", dist.MultivariateNormal(jnp.zeros(2), scale_tril=root), obs=pair)


def data():
    """Sixty rows drawn with fixed parameters, by NumPy so that they never change."""
    rng = np.random.default_rng(7)
    size = 60
    group = np.arange(size) % NUM_GROUPS
    x = rng.normal(size=size)
    y = np.array([-1.0, -0.5, 0.0, 0.8, 1.2])[group] + 0.5 * x + rng.normal(size=size)
    category = rng.choice(3, size, p=[0.2, 0.3, 0.5])
    rating = np.digitize(0.5 * x + rng.logistic(size=size), [-0.5, 1.0])
    pair = rng.normal(size=(size, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
    return group, x, y, category, rating, pair


def coordinates(sites):
    """Two free numbers of every site, or its only one, each an array over the draws."""
    columns = {f"{name}[{i}]": sites[name][:, i] for name in ("weights", "cuts", "effect") for i in range(2)}
    return {"scale": sites["scale"], "slope": sites["slope"], "correlation": sites["correlation"], **columns}


def main():
    jax.config.update("jax_enable_x64", True)
    from numpyro.infer import MCMC, NUTS

    run = MCMC(NUTS(model), num_warmup=1000, num_samples=10_000, num_chains=4, chain_method="sequential")
    run.run(jr.key(0), *data())
    print(f"# NumPyro {numpyro.__version__}, JAX {jax.__version__}")
    columns = coordinates(run.get_samples())
    by_chain = coordinates({k: v.reshape(-1, *v.shape[2:]) for k, v in run.get_samples(group_by_chain=True).items()})
    for name, column in columns.items():
        size = numpyro.diagnostics.effective_sample_size(np.asarray(by_chain[name]).reshape(4, -1))
        sd = column.std()
        print(f'    "{name}": ({column.mean():.4f}, {sd:.4f}, {sd / size**0.5:.4f}),')


if __name__ == "__main__":
    main()
