"""`import steinkern` needs none of the extras, and computes nothing.

`benchmarks/wheel.py` (`make wheel`) does the same with the wheel itself, in a clean environment.
"""

import importlib
import inspect
import subprocess
import sys
import warnings

import pytest

import steinkern
from steinkern._moved import MOVED, PUBLIC, RENAMED

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
    assert modules == {"distributed", "initial", "interop", "models", "plot"}
    assert not [name for name in names if name.startswith("_") and name != "__version__"]


def test_the_import_needs_no_extra_and_compiles_nothing():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("old", MOVED)
def test_old_module_paths_import_with_a_warning_and_hold_the_same(old):
    new = importlib.import_module(f"steinkern.{MOVED[old]}")
    names = [name for name, value in vars(new).items() if getattr(value, "__module__", None) == new.__name__]
    name = names[0] if names else next(name for name in vars(new) if not name.startswith("_"))
    module = importlib.import_module(f"steinkern.{old}")
    with pytest.warns(DeprecationWarning, match=rf"steinkern\.{old} is now steinkern\.{MOVED[old]}"):
        assert getattr(module, name) is getattr(new, name)


@pytest.mark.parametrize("path", PUBLIC)
def test_public_modules_are_used_by_their_names(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert importlib.import_module(f"steinkern.{path}") is getattr(steinkern, path)


def test_importing_an_old_path_leaves_the_functions_of_that_name():
    importlib.import_module("steinkern.fit")
    assert callable(steinkern.fit)
    assert callable(steinkern.combine)


@pytest.mark.parametrize("old", RENAMED)
def test_old_names_are_the_new_classes_with_a_warning(old):
    with pytest.warns(DeprecationWarning, match=f"`steinkern.{old}` is now `steinkern.{RENAMED[old]}`"):
        assert getattr(steinkern, old) is getattr(steinkern, RENAMED[old])
    with pytest.warns(DeprecationWarning, match="is now"):
        assert steinkern.Faults(3).frozen == 3
