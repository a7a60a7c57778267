"""`steinkern sample` and `steinkern report`: from a file to particles and a page, or one clear line of why not."""

import dataclasses
import importlib.util
import re
import signal
import sys
import textwrap

import jax
import jax.random as jr
import numpy as np
import pytest

import steinkern as sk
from steinkern import cli
from steinkern.cli import methods as cli_methods
from steinkern.cli import target as cli_target
from steinkern.core.extras import install_command
from steinkern.core.messages import Notice
from steinkern.results.result import Status
from tests.helpers.commands import invoke
from tests.helpers.processes import output_of

pytestmark = pytest.mark.usefixtures("relaxed")


FILE = """
import functools
import jax.numpy as jnp
import numpy as np
import steinkern as sk

START = {"mean": [0, 1.0], "scale": 1.0}
SUPPORT = {"scale": sk.positive}
NUMBER = 3

def log_density(p):
    return -0.5 * jnp.sum(p["mean"] ** 2) / 0.25 - p["scale"]

def model():
    import numpyro, numpyro.distributions as dist
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.deterministic("twice", 2 * mean)
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=np.array([1.0, 2.0]))

def discrete():
    import numpyro, numpyro.distributions as dist
    numpyro.sample("k", dist.Poisson(2.0))

def raising(p):
    return p["nosuch"]

def two(x, y):
    return x + y

bad = sk.LogDensity(lambda p: -0.5 * jnp.sum(p["mean"] ** 2) + jnp.log(p["scale"] - 1.0), support=SUPPORT)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "größe.py"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def vector(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "vector.py"
    path.write_text(
        "def f(x):\n    return -0.5 * (x**2).sum()\n\n"
        "def g(x):\n    return -0.5 * (x**2).sum()\n\n"
        "def indexed(x):\n    return -0.5 * (x[0] ** 2 + x[2] ** 2)\n"
    )
    return path


FEW = ("--particles", "6", "--steps", "4", "--method", "average")


@pytest.fixture(scope="module")
def finished(file, tmp_path_factory):
    """The directory of a run, and what was printed."""
    directory = tmp_path_factory.mktemp("finished")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        done = invoke("sample", f"{file}:log_density", *FEW, "--out", str(directory / "p.npz"))
    assert done.exit_code == 0, done.output
    return directory, done.output


def test_a_log_density_becomes_particles_and_a_page(finished):
    directory, printed = finished
    with np.load(directory / "p.npz") as particles:
        assert {name: values.shape for name, values in particles.items()} == {"mean": (6, 2), "scale": (6,)}
        assert (particles["scale"] > 0).all()
        assert particles["mean"].dtype == np.float64
    assert f"Page: {directory / 'index.html'}" in printed
    assert "log_density" in (directory / "index.html").read_text(encoding="utf-8")
    assert "mean[1]" in printed


@pytest.mark.thorough
def test_stein_tunes_nothing_is_compared_with_chains_and_goes_on(file, tmp_path):
    line = ("sample", f"{file}:log_density", "--method", "stein", "--particles", "20", "--out", str(tmp_path / "p.npz"))
    done = invoke(*line)
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "p.npz") as particles:
        first = dict(particles)
    again = invoke(*line, "--resume")
    assert first["mean"].shape == (20, 2)
    assert "reference chains: unconstrained means differ" in done.output
    assert again.exit_code == 0, again.output
    with np.load(tmp_path / "p.npz") as particles:
        np.testing.assert_array_equal(particles["mean"], first["mean"])


SCHOOLS = """
import jax.numpy as jnp

EFFECTS = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

def log_density(x):
    mean, log_spread, own = x[0], x[1], x[2:]
    spread = jnp.exp(log_spread)
    prior = -0.5 * (mean / 5) ** 2 - jnp.log1p((spread / 5) ** 2) + log_spread - 0.5 * jnp.sum(own**2)
    return prior - 0.5 * jnp.sum(((EFFECTS - mean - spread * own) / ERRORS) ** 2)
"""


@pytest.mark.thorough
def test_a_mixture_that_is_beside_the_target_says_so(tmp_path):
    path = tmp_path / "schools.py"
    path.write_text(SCHOOLS)
    done = invoke(
        "sample", f"{path}:log_density", "--dim", "10", "--method", "mixture", "--steps", "100", "--particles",
        "40", "--out", str(tmp_path / "out" / "p.npz"),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "out" / "p.npz") as particles:
        spread = float(np.exp(particles["x"][:, 1]).mean())
    assert "Warning:" in done.output or 2.5 < spread < 5, done.output


@pytest.mark.thorough
def test_the_default_tunes_nothing_and_says_how_good_it_is(file, tmp_path):
    done = invoke("sample", f"{file}:log_density", "--out", str(tmp_path / "p.npz"))
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "p.npz") as particles:
        assert particles["mean"].shape == (100, 2)
    assert "means and spreads have settled" in done.output
    assert "R-hat 1.0" in done.output
    assert not list((tmp_path / "checkpoint").glob("*"))
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Standard errors of unconstrained means up to" in page
    assert "record_particles" not in page
    assert "steinkern sample " in page
    assert "--particles 100 --method auto --seed 0" in page
    with pytest.raises(ValueError, match=r"`--out` would replace .*p\.npz: give --restart"):
        invoke("sample", f"{file}:log_density", "--out", str(tmp_path / "p.npz"))
    with pytest.raises(ValueError, match=r"`--out` would replace .*index\.html: .* another directory"):
        invoke("sample", f"{file}:log_density", "--out", str(tmp_path / "q.npz"))
    with pytest.raises(ValueError, match="holds no checkpoint"):
        invoke("report", str(tmp_path))


def test_a_directory_gets_the_particles_the_result_and_the_page(vector, tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "arviz" else real(name))
    command = ["sample", f"{vector}:f", "--dim", "1", *FEW, "--method", "vanilla", "--out", str(tmp_path / "run")]
    done = invoke(*command)
    assert done.exit_code == 0, done.output
    written = {"particles.npz", "sample.result", "index.html", "checkpoint"}
    assert {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")} == written
    result = sk.load(tmp_path / "run" / "sample.result")
    with np.load(tmp_path / "run" / "particles.npz") as particles:
        np.testing.assert_array_equal(next(iter(particles.values())), result.particles)
    assert "--out" in result.settings["command"]
    for name in written - {"checkpoint"}:
        assert f": {tmp_path / 'run' / name}\n" in done.output, name
    for path in (tmp_path / "run").glob("*.*"):
        path.unlink()
    with pytest.raises(ValueError, match=r"give --resume to continue it, --restart to start again"):
        invoke(*command)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # ArviZ announces its successor, NumPyro its own future
@pytest.mark.parametrize(("out", "written"), [("run", "run/posterior.nc"), ("p.nc", "p.nc")])
def test_a_numpyro_model_becomes_arviz_data_with_its_predictive_draws(out, written, file, tmp_path):
    pytest.importorskip("numpyro")
    pytest.importorskip("h5py")
    xarray = pytest.importorskip("xarray")
    command = ["sample", f"{file}:model", *FEW, "--out", str(tmp_path / out), "--method", "vanilla"]
    assert invoke(*command).exit_code == 0
    done = invoke(*command, "--restart")
    assert done.exit_code == 0, done.output
    assert f": {tmp_path / written}\n" in done.output
    posterior, predictive, likelihood = (
        xarray.load_dataset(tmp_path / written, group=group, engine="h5netcdf")
        for group in ("posterior", "posterior_predictive", "log_likelihood")
    )
    assert posterior["mean"].shape == (1, 6)
    np.testing.assert_allclose(posterior["twice"], 2 * posterior["mean"])
    assert predictive["y"].shape == likelihood["y"].shape == (1, 6, 2)


@pytest.mark.thorough
@pytest.mark.usefixtures("heard")
def test_an_interrupted_run_keeps_what_it_has_and_goes_on_as_if_never_stopped(vector, tmp_path, monkeypatch):
    command = ["sample", f"{vector}:f", "--dim", "2", "--particles", "5", "--steps", "40", "--method", "vanilla"]
    whole = invoke(*command, "--out", str(tmp_path / "whole" / "p.npz"))
    assert whole.exit_code == 0
    fit = cli_methods.fit

    def interrupted(*args, **options):
        def press(step, state, info):
            if step >= 8:
                signal.raise_signal(signal.SIGINT)

        return fit(*args, **options, callback=press)

    broken = tmp_path / "broken"
    with monkeypatch.context() as patch:
        patch.setattr(cli_methods, "fit", interrupted)
        first = invoke(*command, "--out", str(broken / "p.npz"))
    assert first.exit_code == 130, first.output
    assert "with --resume continues" in first.output
    assert np.load(broken / "p.npz")["x"].shape == (5, 2)
    assert "stopped" in (broken / "index.html").read_text()
    with pytest.raises(ValueError, match=r"`--out` would replace .*p.npz"):
        invoke(*command, "--out", str(broken / "p.npz"))
    assert invoke(*command, "--out", str(broken / "p.npz"), "--resume").exit_code == 0
    np.testing.assert_array_equal(np.load(broken / "p.npz")["x"], np.load(tmp_path / "whole" / "p.npz")["x"])
    with pytest.raises(ValueError, match=r"`--resume` .* has changed .*key"):
        invoke(*command, "--out", str(broken / "p.npz"), "--resume", "--seed", "1")


@pytest.mark.parametrize("method", ["auto", "vanilla"])
def test_ctrl_c_before_there_is_anything_ends_with_130(vector, tmp_path, monkeypatch, method):
    def pressed(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_methods, "fit", pressed)
    monkeypatch.setattr(cli_methods, "sample", pressed)
    done = invoke("sample", f"{vector}:f", "--dim", "2", "--method", method, "--out", str(tmp_path / "p.npz"))
    assert done.exit_code == 130
    assert not (tmp_path / "p.npz").exists()


def test_the_command_is_a_module_too():
    assert output_of("-m", "steinkern", "--version").startswith("steinkern ")


def test_a_run_that_diverges_writes_what_it_had_and_exits_with_1(vector, tmp_path, monkeypatch):
    fit = cli_methods.fit

    def diverged(*args, **options):
        result = fit(*args, **options)
        return dataclasses.replace(result, status=Status.DIVERGED, message=Notice("not-finite", "too far."))

    monkeypatch.setattr(cli_methods, "fit", diverged)
    done = invoke("sample", f"{vector}:f", "--dim", "1", *FEW, "--method", "vanilla", "--out", str(tmp_path / "p.npz"))
    assert done.exit_code == 1
    assert "diverged: too far." in done.output
    assert (tmp_path / "p.npz").exists()
    assert "diverged" in (tmp_path / "index.html").read_text()


def test_a_page_is_made_of_a_directory_with_and_without_the_target(finished, file, tmp_path):
    finished, _ = finished
    before = (finished / "index.html").read_bytes()
    done = invoke("report", str(finished), "--coordinates", "scale,mean[1]")
    page = finished / "checkpoint" / "index.html"
    assert done.output == f"Page: {page}\n"
    assert '"names":["scale","mean[1]"]' in page.read_text()
    assert "It needs the target" in page.read_text()
    assert (finished / "index.html").read_bytes() == before
    done = invoke("report", str(finished), "--out", str(tmp_path / "b"), "--target", f"{file}:log_density")
    assert done.exit_code == 0
    assert "IMQ kernel" in (tmp_path / "b" / "index.html").read_text()
    with np.load(finished / "p.npz") as particles:
        assert f"<td>{particles['scale'].mean():.4g}</td>" in (tmp_path / "b" / "index.html").read_text()


def test_a_file_that_was_edited_is_not_gone_on_with(tmp_path):
    path, out = tmp_path / "edited.py", str(tmp_path / "p.npz")
    path.write_text("def f(x):\n    return -0.5 * (x**2).sum()\n")
    command = ["sample", f"{path}:f", "--dim", "1", *FEW, "--method", "vanilla", "--out", out]
    assert invoke(*command).exit_code == 0
    path.write_text("def f(x):\n    return -0.7 * (x**2).sum()\n")
    with pytest.raises(ValueError, match=r"`--resume` .* has changed in its code.* --restart") as refused:
        invoke(*command, "--resume")
    assert "fingerprint" not in str(refused.value)


def test_a_page_with_another_target_or_of_no_directory_is_refused(finished, vector, tmp_path):
    with pytest.raises(ValueError, match="`target`"):
        invoke("report", str(finished[0]), "--target", f"{vector}:f", "--dim", "7", "--out", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: .*nowhere"):
        invoke("report", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="holds no checkpoint"):
        invoke("report", str(tmp_path))


BAD = {
    "no name": (["{file}"], "must be a file and a name in it"),
    "no file": (["nowhere.py:f"], "nowhere.py, which does not exist"),
    "absent": (
        ["{file}:nothing"],
        "does not have. It has START, SUPPORT, NUMBER, log_density, model, discrete, raising, two, bad",
    ),
    "not callable": (["{file}:NUMBER"], "which is a int; it must be a log density"),
    "raises": (["{tmp}/raises.py:f"], "raises ZeroDivisionError in line 2: division by zero"),
    "syntax": (["{tmp}/syntax.py:f"], "raises SyntaxError in line 1"),
    "exits": (["{tmp}/exits.py:f"], "raises SystemExit"),
    "missing extra in the file": (["{tmp}/extra.py:f"], "pip install numpyro"),
    "missing package in the file": (["{tmp}/package.py:f"], "pip install nosuchpackage"),
    "discrete": (["{file}:discrete"], "'k' is discrete: particles follow gradients"),
    "raises at parameters": (
        ["{file}:raising"],
        "größe.py raises KeyError in line 25 at parameters of shape mean: (2,), scale: (): 'nosuch'",
    ),
    "two arguments": (["{file}:two"], "functools.partial(two, y=...)"),
    "no start": (["{vector}:f"], "Put `START = ...`"),
    "start and dim": (["{file}:log_density", "--dim", "2"], "`--dim` and the file's `START` exclude each other"),
    "method": (["{vector}:f", "--method", "magic"], "`--method` must be one of 'auto', 'stein', 'average'"),
    "dim of a model": (["{file}:model", "--dim", "3"], "`--dim` is for log densities; model is a model"),
    "dim too small": (
        ["{vector}:indexed", "--dim", "2"],
        "indexed asks for more parameters than it is given: index 2 is out of bounds for axis 0 with size 2. Give a",
    ),
    "start too short": (["{tmp}/short.py:f"], "index 1 is out of bounds for axis 0 with size 1"),
    "out": (
        ["{vector}:f", "--dim", "1", "--out", "{tmp}/p.csv"],
        "`--out` must be a directory, or a file ending in .npz or .nc",
    ),
    "out too long": (["{vector}:f", "--dim", "1", "--out", "x" * 5000], "File name too long"),
    "unwritable": (["{vector}:f", "--dim", "1", "--out", "{vector}/nowhere/p.npz"], "cannot be written to"),
    "nothing to resume": (["{vector}:f", "--dim", "1", "--resume", "--method", "svn"], "`--resume` finds no run"),
    "resume with auto": (["{vector}:f", "--dim", "1", "--resume"], "`--resume` does not go with --method auto"),
    "steps with auto": (["{vector}:f", "--dim", "1", "--steps", "9"], "`--steps` does not go with --method auto"),
    "not finite": (["{file}:bad", "--seed", "3"], "there. Start inside the support, or declare it with `support=`."),
    "not finite, mixture": (["{file}:bad", "--seed", "3", "--method", "mixture"], "or declare it with `support=`."),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_input_is_one_clear_line_and_exit_2(case, file, vector, tmp_path, monkeypatch, capsys):
    contents = {
        "raises.py": "x = 1\ny = x / 0\n", "syntax.py": "def (\n", "exits.py": "raise SystemExit(3)\n",
        "short.py": "START = {'a': [0.0], 'b': 0.0}\ndef f(p):\n    return -(p['a'][0] + p['a'][1]) ** 2\n",
        "extra.py": "import numpyro\n", "package.py": "import nosuchpackage.part\n",
    }  # fmt: skip
    for name, text in contents.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    if case == "missing extra in the file":
        monkeypatch.setitem(sys.modules, "numpyro", None)
    arguments, message = BAD[case]
    arguments = [part.format(file=file, vector=vector, tmp=tmp_path) for part in arguments]
    out = [] if "--out" in arguments else ["--out", str(tmp_path / "out" / "p.npz")]
    monkeypatch.setattr("sys.argv", ["steinkern", "sample", *arguments, *out])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("steinkern: ")
    assert message in error
    assert "\n" not in error


@pytest.mark.parametrize("option", ["--particles=1", "--steps=-3", "--seed=-1", f"--seed={2**63}", "--dim=0"])
def test_numbers_out_of_range_are_refused_by_their_option(option, vector):
    refused = invoke("sample", f"{vector}:f", option)
    assert refused.exit_code == 2
    assert f"Invalid value for '{option.partition('=')[0]}'" in refused.output


@pytest.mark.thorough
def test_parameters_that_the_density_does_not_use_are_named(vector, tmp_path):
    command = ["sample", f"{vector}:indexed", "--dim", "3", "--particles", "5", "--steps", "100", "--method", "vanilla"]
    done = invoke(*command, "--out", str(tmp_path / "p.npz"))
    assert done.exit_code == 0
    assert "Warning: the log density does not depend on x[1]: " in done.output
    assert "does not depend on x[1]" in (tmp_path / "index.html").read_text()


def test_netcdf_without_its_extra_is_refused_before_the_run(vector, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=f"needs arviz and h5netcdf and h5py: {re.escape(install_command('arviz'))}"):
        invoke("sample", f"{vector}:f", "--dim", "1", "--out", "x.nc")


def test_a_start_may_be_a_function_of_a_key_and_a_target_may_have_data(tmp_path):
    (tmp_path / "posterior.py").write_text(
        "import jax, jax.numpy as jnp, steinkern as sk\n"
        "DATA = jnp.arange(4.0)\n"
        "START = lambda key: 100.0 + jax.random.normal(key)\n"
        "posterior = sk.Posterior(lambda x: -0.5 * x**2, lambda x, row: -0.5 * (x - row) ** 2, 4)\n"
        "def with_data(x, rows):\n    return -0.5 * jnp.sum((x - rows) ** 2)\n"
    )
    for name in ("posterior", "with_data"):
        loaded = cli_target.load(f"{tmp_path / 'posterior.py'}:{name}")
        np.testing.assert_array_equal(loaded.data, np.arange(4.0))
        assert loaded.particles(jr.key(0), 3).shape == (3,)
        assert (loaded.particles(jr.key(0), 3) > 90).all()
