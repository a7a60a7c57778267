"""`import steinkern` needs none of the extras, and computes nothing.

`benchmarks/wheel.py` (`make wheel`) does the same with the wheel itself, in a clean environment.
"""

import inspect
import subprocess
import sys

import steinkern

EXTRAS = ("arviz", "blackjax", "matplotlib", "numpyro", "openpyxl", "pooch", "pymc", "pytensor", "sklearn", "typer")
CODE = f"""
import sys
for name in {EXTRAS}:
    sys.modules[name] = None  # importing it fails
import jax
programs = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: programs.append(name))
import steinkern
assert not [name for name in programs if "compile" in name], programs
"""


def test_what_an_interactive_session_lists_is_public():
    names = set(dir(steinkern))
    assert {"fit", "svgd", "initial", "interop", "models", "plot", "__version__"} <= names
    modules = {name for name in names if inspect.ismodule(getattr(steinkern, name))}
    assert modules == {"initial", "interop", "models", "plot"}
    assert not [name for name in names if name.startswith("_") and name != "__version__"]


def test_the_import_needs_no_extra_and_compiles_nothing():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
