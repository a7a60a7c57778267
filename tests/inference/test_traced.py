"""The benchmarks' reading of a profile: the library's names of its parts, found again in what XLA compiled."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from benchmarks import traced

import steinkern as sk
from steinkern.inference.loop import advance
from steinkern.inference.run import Run

ROOT = Path(__file__).parents[2]
PARTS = ("batch", "score", "curvature", "factorisation", "bandwidth", "velocity")


@pytest.mark.thorough
def test_every_part_of_a_fit_is_found_in_the_compiled_loop(monkeypatch):
    calls = []
    arguments = Run._arguments

    def listening(self, *options):
        calls.append(arguments(self, *options))
        return calls[-1]

    monkeypatch.setattr(Run, "_arguments", listening)
    data = jnp.ones((8, 2))
    target = sk.Posterior(lambda w: -0.5 * jnp.sum(w**2), lambda w, row: -0.5 * (row @ w) ** 2, 8)
    sampler = sk.matrix_svgd("mixture", sk.Hessian(), optimiser=0.1)
    sk.fit(jax.random.key(0), target, sampler, jnp.eye(2), data, num_steps=2, batch_size=4, progress=False, throw=False)
    program = advance.lower(*calls[0]).compile().as_text()
    found = set(traced.owners(program, PARTS).values())
    assert found == {*PARTS, "other", None}


def test_the_outermost_name_counts_and_a_fusion_takes_that_of_what_it_fuses():
    text = """HloModule jit_run

%fused (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  %a = f32[2]{0} multiply(%p, %p), metadata={op_name="jit(run)/score/mul"}
  ROOT %b = f32[2]{0} negate(%a)
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %x = f32[2]{0} parameter(0), metadata={op_name="scores"}
  %lost = f32[2]{0} fusion(%x), kind=kLoop, calls=%fused
  %inner = f32[2]{0} sine(%lost), metadata={op_name="jit(run)/transpose(jvp(curvature))/vmap(score)/sin"}
  ROOT %loop = f32[2]{0} while(%inner), condition=%c, body=%d, metadata={op_name="jit(run)/score/while"}
}
"""
    found = traced.owners(text, ("score", "curvature"))
    assert {name: found[name] for name in ("x", "lost", "inner", "loop")} == {
        "x": "other",
        "lost": "score",
        "inner": "curvature",
        "loop": None,
    }


@pytest.mark.thorough
def test_a_profile_of_a_small_fit_has_its_parts(tmp_path):
    call = [sys.executable, str(ROOT / "benchmarks" / "fits.py"), "--profiled", "toy", "10", str(tmp_path)]
    run = subprocess.run(
        call, env=traced.dumping(str(tmp_path), "advance"), capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    seconds = json.loads(run.stdout.splitlines()[-1])
    assert set(seconds) == {*PARTS, "other"}
    assert all(seconds[part] > 0 for part in PARTS if part != "batch")  # a log density without data has none
