"""The switch for JAX's persistent compilation cache. Its settings are the process's, so every test has its own."""

import json
import os
import stat
import subprocess
import sys

import pytest

from steinkern.core import compilation_cache as cache

posix = pytest.mark.skipif(os.name != "posix", reason="modes and owners of POSIX")
PROGRAM = """
import json, sys, warnings
warnings.simplefilter("error")
import jax, jax.numpy as jnp
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
import steinkern as sk
place = sk.compilation_cache() if len(sys.argv) < 2 else sk.compilation_cache(sys.argv[1])
value = float(jax.jit(lambda x: jnp.sum(jnp.sin(x) ** 2))(jnp.arange(7.0)))
hits = sum(name == "/jax/compilation_cache/cache_hits" for name in events)
misses = sum(name == "/jax/compilation_cache/cache_misses" for name in events)
print(json.dumps({"place": place and str(place), "value": value, "hits": hits, "misses": misses}))
"""


def run(*arguments, program=PROGRAM, **environment):
    settings = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    for name in ("JAX_COMPILATION_CACHE_DIR", "STEINKERN_CACHE"):
        settings.pop(name, None) if name not in environment else None
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def entries(directory):
    return [path for path in directory.rglob("*-cache") if path.is_file()]


@pytest.mark.thorough
def test_a_second_process_compiles_nothing_and_garbage_harms_nothing(tmp_path):
    first = run(XDG_CACHE_HOME=str(tmp_path))
    assert first["place"].startswith(str(tmp_path / "steinkern" / "jax-"))
    assert first["misses"] > 0
    assert first["hits"] == 0
    second = run(XDG_CACHE_HOME=str(tmp_path))
    assert second["misses"] == 0
    assert second["hits"] == first["misses"]
    for path in entries(tmp_path):  # as a process leaves them that is killed over them, or a disk that fails
        path.write_bytes(path.read_bytes()[:100] if path.stat().st_size % 2 else b"no program")
    third = run(XDG_CACHE_HOME=str(tmp_path))
    assert third["value"] == pytest.approx(first["value"], rel=1e-5)  # another compilation may round differently
    assert third["hits"] == 0
    assert run(XDG_CACHE_HOME=str(tmp_path))["hits"] == first["misses"]  # broken entries were replaced


@pytest.mark.thorough
@posix
def test_the_directory_is_the_users_alone(tmp_path):
    place = run(tmp_path / "own")["place"]
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(tmp_path / "own").st_mode) == 0o700


@posix
def test_a_directory_that_others_can_write_to_is_not_used(tmp_path):
    tmp_path.chmod(0o777)
    assert "can be written to by other users" in cache._prepare(tmp_path)
    tmp_path.chmod(0o755)
    assert cache._prepare(tmp_path) == ""
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_a_place_that_is_no_directory_is_not_used(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be used" in cache._prepare(tmp_path / "file")


@pytest.mark.thorough
@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="root writes anywhere")
def test_a_read_only_directory_costs_a_warning_and_no_run(tmp_path):
    place = tmp_path / "cache"
    place.mkdir(mode=0o500)
    program = PROGRAM.replace('warnings.simplefilter("error")', 'warnings.simplefilter("ignore")')
    assert run(place, program=program)["place"] is None


@pytest.mark.thorough
def test_a_directory_that_is_moved_away_harms_no_run(tmp_path):
    program = PROGRAM.replace("value = ", "import os; os.rename(sys.argv[1], sys.argv[1] + '-moved')\nvalue = ")
    assert run(tmp_path / "cache", program=program)["value"] > 0


@pytest.mark.thorough
def test_the_environment_switches_it_on_and_a_directory_set_before_stays(tmp_path):
    program = PROGRAM.replace("place = ", "place = jax.config.jax_compilation_cache_dir\n_ = lambda: ")
    assert run(program=program)["place"] is None
    on = run(program=program, STEINKERN_CACHE="1", XDG_CACHE_HOME=str(tmp_path))
    assert on["place"].startswith(str(tmp_path))
    there = run(program=program, STEINKERN_CACHE=str(tmp_path / "there"))
    assert there["place"].startswith(str(tmp_path / "there"))
    assert run(program=program, STEINKERN_CACHE="0")["place"] is None
    assert run(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine"))["place"] == str(tmp_path / "mine")


def test_the_oldest_entries_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_MOST_BYTES", 25)
    for age in range(4):
        path = tmp_path / f"{age}-cache"
        path.write_bytes(b"x" * 10)
        os.utime(path, (10**9 - age, 10**9 - age))
    cache._remove_oldest(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-cache", "1-cache"]
