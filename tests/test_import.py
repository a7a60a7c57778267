"""`import steinkern` needs none of the extras, imports no JAX, and its names are imported on first use.

`benchmarks/wheel.py` (`make wheel`) does the same with the wheel itself, in a clean environment.
"""

import ast
import importlib
import inspect
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import steinkern
from steinkern._exports import MODULE_OF, MODULES, PACKAGES
from steinkern._moved import MOVED, RENAMED

pytestmark = pytest.mark.thorough

EXTRAS = ("arviz", "blackjax", "matplotlib", "numpyro", "openpyxl", "pooch", "pymc", "pytensor", "sklearn", "typer")
CODE = f"""
import sys
for name in {EXTRAS}:
    sys.modules[name] = None  # importing it fails
import jax
programs = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: programs.append(name))
import steinkern
for name in dir(steinkern):
    getattr(steinkern, name)
assert not [name for name in programs if "compile" in name], programs
"""
LAZY = """
import sys
import steinkern
assert steinkern.__version__
assert dir(steinkern)
assert not {"jax", "numpy", "equinox", "steinkern.core"} & set(sys.modules), "imported too early"
steinkern.RBF
assert "jax" in sys.modules
assert not {"optax", "steinkern.inference.fit"} & set(sys.modules), "RBF needs no fit"
"""
VERSION = """
import sys
sys.argv = ["steinkern", "--version"]
import steinkern.cli
try:
    steinkern.cli.main()
except SystemExit as end:
    assert not end.code
heavy = {"jax", "numpy", "equinox", "optax", "tqdm", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""


def test_what_an_interactive_session_lists_is_public():
    names = set(dir(steinkern))
    assert {"fit", "svgd", "initial", "interop", "models", "plot", "__version__"} <= names
    modules = {name for name in names if inspect.ismodule(getattr(steinkern, name))}
    assert modules == {"distributed", "initial", "interop", "models", "plot"}
    assert not [name for name in names if name.startswith("_") and name != "__version__"]


def run(code, **environment):
    settings = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True, env=settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_names_need_no_extra_and_compile_nothing():
    run(CODE)


def test_the_import_is_light_and_a_name_imports_what_it_needs(tmp_path):
    run(LAZY, STEINKERN_CACHE=str(tmp_path))


def test_the_version_of_the_command_is_printed_without_jax(tmp_path):
    assert f"steinkern {steinkern.__version__}, jax " in run(VERSION, STEINKERN_CACHE=str(tmp_path))


def test_type_checkers_see_the_names_that_are_imported_on_first_use():
    """The block for type checkers in `__init__.py`, against the table of `_exports.py`."""
    tree = ast.parse(Path(steinkern.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {}
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            (name,) = node.names
            assert name.asname == name.name, "`as` marks a name as public"
            seen[name.name] = node.module or ""
    packages = {name: path.rpartition(".")[0] for name, path in MODULES.items()}
    assert seen == {**MODULE_OF, **packages}


def test_a_star_imports_the_public_names():
    names = {}
    exec("from steinkern import *", names)
    assert {name for name in names if name != "__builtins__"} == set(dir(steinkern)) - {"__version__"}
    assert names["fit"] is steinkern.fit


def test_a_name_that_is_not_there_is_an_attribute_error():
    assert not hasattr(steinkern, "nothing")
    assert not hasattr(steinkern.kernels, "nothing")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from steinkern import nothing")


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_are_attributes_of_their_packages(package):
    whole = getattr(steinkern, package)
    for path in Path(whole.__file__).parent.glob("*.py"):
        if path.stem != "__init__":
            assert getattr(whole, path.stem).__name__.startswith(f"steinkern.{package}.")


@pytest.mark.parametrize(
    "use",
    [
        "import jax, steinkern",
        "import steinkern; steinkern.RBF",
        "import steinkern.plot",
        "import steinkern.result; steinkern.result.Result",
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_cache_is_switched_on_by_the_first_use(use, tmp_path):
    said = run(f"{use}; import jax; print(jax.config.jax_compilation_cache_dir)", STEINKERN_CACHE=str(tmp_path))
    assert said.startswith(str(tmp_path))


def test_a_public_module_keeps_its_own_name_and_spec():
    module = importlib.import_module("steinkern.plot")
    assert module.__name__ == module.__spec__.name == "steinkern.results.plot"


@pytest.mark.parametrize(
    ("old", "name", "new"),
    [
        ("metric", "KroneckerMetric", "core.block_metric"),
        ("metric", "DenseMetric", "core.metric"),
        ("matrix_kernel", "Preconditioned", "kernels.preconditioned"),
    ],
)
def test_a_name_of_a_module_that_was_divided_is_found_at_the_old_path(old, name, new):
    with pytest.warns(DeprecationWarning, match=rf"steinkern\.{old} is now"):
        found = getattr(importlib.import_module(f"steinkern.{old}"), name)
    assert found is getattr(importlib.import_module(f"steinkern.{new}"), name)


@pytest.mark.parametrize("old", MOVED)
def test_old_module_paths_import_with_a_warning_and_hold_the_same(old):
    new = importlib.import_module(f"steinkern.{MOVED[old]}")
    names = [name for name, value in vars(new).items() if getattr(value, "__module__", None) == new.__name__]
    name = names[0] if names else next(name for name in vars(new) if not name.startswith("_"))
    module = importlib.import_module(f"steinkern.{old}")
    with pytest.warns(DeprecationWarning, match=rf"steinkern\.{old} is now steinkern\.{MOVED[old]}"):
        assert getattr(module, name) is getattr(new, name)


@pytest.mark.parametrize("path", MODULES)
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
