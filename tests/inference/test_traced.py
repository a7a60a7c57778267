"""The names of the parts of a fit, which profilers show, are in what XLA compiled."""

import re

import jax
import jax.numpy as jnp
import pytest

import steinkern as sk
from steinkern.inference import loop
from steinkern.inference.loop import advance

PARTS = ("batch", "score", "curvature", "factorization", "bandwidth", "velocity")


@pytest.mark.thorough
def test_every_part_of_a_fit_is_found_in_the_compiled_loop(monkeypatch):
    calls = []

    monkeypatch.setattr(loop, "advance", lambda *arguments: calls.append(arguments) or advance(*arguments))
    data = jnp.ones((8, 2))
    target = sk.Posterior(lambda w: -0.5 * jnp.sum(w**2), lambda w, row: -0.5 * (row @ w) ** 2, 8)
    sampler = sk.matrix_svgd("mixture", sk.Hessian(), optimizer=0.1)
    sk.fit(jax.random.key(0), target, sampler, jnp.eye(2), data, num_steps=2, batch_size=4, progress=False, throw=False)
    program = advance.lower(*calls[0]).compile().as_text()
    names = set(re.findall(r"[\w ]+", " ".join(re.findall(r'op_name="([^"]*)"', program))))
    assert set(PARTS) <= names
