"""Texts about a run's settings, from the JSON that describes a sampler, a target and the options of `fit`.

The JSON may come from an altered file: every function accepts any JSON, takes time linear in its size, and leaves out
unknown content.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ...core.checkpoint_file import MOST_AXES
from ...core.notices import quantity
from .record import Record

_RULES = {
    "AverageMetric": "Matrix-SVGD (average)",
    "AnchorMixture": "Matrix-SVGD (mixture)",
    "Averaged": "Matrix-SVGD (average)",  # the names in checkpoints of earlier versions
    "MixtureAt": "Matrix-SVGD (mixture)",
}
_STEP_RULES = {"rss": "Adagrad", "rms": "RMSProp", "adam": "Adam", "amsgrad": "AMSGrad", "adan": "Adan"}
_LONGEST = 12  # the most names in a list
_OPTIONS = {
    "batch_size": "batch size",
    "record_every": "history every",
    "tolerance": "tolerance",
    "longest_move": "longest move",
    "tempering": "tempering",
    "steps before": "steps before",
}


def facts(record: Record) -> list[tuple[str, str]]:
    """The labels and texts of the page's list of settings."""
    settings = record.settings
    target, sampler = _mapping(settings.get("target")), _mapping(settings.get("sampler"))
    inner = _mapping(sampler.get("sampler")) or sampler  # the sampler inside a half-Bayesian one
    rule = _mapping(inner.get("rule"))
    given = [
        ("Command", str(settings.get("command") or "")),
        ("Target", target_name(target, with_kind=True)),
        ("Parameters", _parameters(target)),
        ("Constraints", _constraints(target)),
        ("Shared", record.shared),
        ("Data", ", ".join(map(str, _entries(settings.get("data shapes"))))),
        ("Method", str(settings.get("method") or _method(sampler, inner, rule))),
        ("Kernel", in_words(rule.get("kernel") or inner.get("kernel"))),
        ("Curvature", in_words(rule.get("curvature") or inner.get("curvature"))),
        ("Metric", in_words(rule.get("settings"))),
        ("Leapfrog step" if record.chains else "Step rule", _step_rule(inner)),
        ("Particles and steps", f"{quantity(record.num_particles, 'particle')}, {quantity(record.num_steps, 'step')}"),
        ("Check", record.check),
        ("Quality", str(settings.get("quality") or "")),
        ("Cost", _cost(settings.get("cost"))),
        ("Key", "" if settings.get("command") else _key(settings.get("key"))),
        ("Options", _options(settings)),
        ("Versions", ", ".join(f"{name} {number}" for name, number in record.versions.items())),
    ]
    return [(label, words) for label, words in given if words]


def _cost(cost: Any) -> str:
    """The cost in words: those of `sample`, or the numbers of a `fit` without a sampler by their names."""
    if not isinstance(cost, Mapping):
        return str(cost or "")
    names = {"sequential": "evaluations one after the other", "hessians": "Hessians"}
    return ", ".join(f"{_number(value)} {names.get(name, name)}" for name, value in cost.items() if value)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def target_name(target: Any, *, with_kind: bool = False) -> str:
    """The name of the user's function or model, optionally with the kind of target; only the kind where it has none."""
    target = _mapping(target)
    call = _mapping(_mapping(target.get("space")).get("call"))
    function = target.get("function") or target.get("log_likelihood") or call.get("model")
    kind = _last(target.get("class", "a target"))
    kind = {"NumPyroTarget": "NumPyro model", "PyMCTarget": "PyMC model", "LogDensity": "log density"}.get(kind, kind)
    name = _function(function)
    if not name:
        return kind
    return f"{name} ({kind})" if with_kind else name


def in_words(value: Any) -> str:
    """A described value as the call that constructs it, without arguments that are `None`."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        if "function" in value:
            return _function(value)
        name = _last(value.get("class", ""))
        inside = {key: in_words(entry) for key, entry in value.items() if key != "class"}
        if name == "Isotropic":  # a scalar kernel times the identity
            return inside.get("scalar", "")
        return f"{name}({', '.join(f'{key}={words}' for key, words in inside.items() if words)})"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_words, value[:_LONGEST])) + (", …]" if len(value) > _LONGEST else "]")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parameters(target: Mapping[str, Any]) -> str:
    space = _mapping(target.get("space"))
    layout = _mapping(space.get("layout"))
    free = _entries(layout.get("shapes"))
    shapes = _entries(space.get("shapes")) or free
    names = [
        f"{name or 'x'} ({' × '.join(map(str, _entries(shape)))})" if shape else f"{name or 'x'}"
        for name, shape in zip(_entries(layout.get("names")), shapes, strict=False)
    ]
    size = sum(_product(_entries(shape)) for shape in free)
    more = f" and {len(names) - _LONGEST} more" if len(names) > _LONGEST else ""
    plural = "" if size == 1 else "s"
    return f"{', '.join(names[:_LONGEST])}{more}: {size:,} unconstrained coordinate{plural}" if names else ""


def _constraints(target: Mapping[str, Any]) -> str:
    space = _mapping(target.get("space"))
    names = _entries(_mapping(space.get("layout")).get("names"))
    supports = space.get("supports")
    if not isinstance(supports, list):
        return "those of the model" if space else ""
    own = [(name, support) for name, support in zip(names, supports, strict=False) if not is_real(support)]
    return ", ".join(f"{name or 'x'}: {in_words(support)}" for name, support in own[:_LONGEST])


def is_real(support: Any) -> bool:
    """Whether a described support is the real line, on which constrained and unconstrained coordinates agree."""
    return _last(_mapping(support).get("class", "")) == "Real"


def _method(sampler: Mapping[str, Any], inner: Mapping[str, Any], rule: Mapping[str, Any]) -> str:
    name = _last(inner.get("class", ""))
    if name == "SVGD":
        name = _RULES.get(_last(rule.get("class", "")), name)
    return name if inner is sampler else f"{_last(sampler.get('class', ''))} around {name}"


def _step_rule(sampler: Mapping[str, Any]) -> str:
    """The transformations and step sizes of an optax optimiser, read from its nested closures."""
    optimiser = sampler.get("optimiser")
    if optimiser is None:
        size = sampler.get("step_size")
        return in_words(size)
    parts = list(dict.fromkeys(_optax_parts(_mapping(optimiser).get("update"))))
    return ", ".join(parts) or in_words(optimiser)


def _optax_parts(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for entry in value:
            yield from _optax_parts(entry)
    if not isinstance(value, Mapping):
        return
    name = value.get("function")
    maker, _, inner = name.rpartition(".<locals>.") if isinstance(name, str) else ("", "", "")
    maker = _last(maker)
    rule = maker.removeprefix("scale_by_")
    if inner == "update_fn" and rule != maker and rule not in ("schedule", "learning_rate"):
        yield _STEP_RULES.get(rule, rule)
    if maker and inner.startswith("schedule"):
        numbers = {key: entry for key, entry in value.items() if isinstance(entry, int | float)}
        yield f"{maker}({', '.join(f'{key}={entry:g}' for key, entry in numbers.items())})"
    if isinstance(value.get("step_size"), int | float):
        yield f"step size {abs(value['step_size']):g}"
    for entry in value.values():
        yield from _optax_parts(entry)


def _key(key: Any) -> str:
    if not (isinstance(key, list) and len(key) == 2 and isinstance(key[0], str)):
        return ""
    numbers = [number for number in _entries(key[1]) if isinstance(number, int)]
    if len(numbers) == 2 and (key[0] == "fry" or "threefry" in key[0]):
        seed = numbers[0] * 2**32 + numbers[1]
        return f"jax.random.key({seed})"
    return f"{key[0]} {numbers}"


def _options(settings: Mapping[str, Any]) -> str:
    given = [f"{label} {in_words(settings[name])}" for name, label in _OPTIONS.items() if settings.get(name)]
    return ", ".join([*given, *(["particles recorded"] if settings.get("record_particles") else [])])


def _function(value: Any) -> str:
    while isinstance(value, Mapping) and "function" in value:  # a closure, a partial, a method
        value = value["function"]
    if isinstance(value, Mapping):
        return in_words(value)
    name = str(value or "").split("<locals>.")[-1]
    return "a lambda" if name.endswith("<lambda>") else _last(name)


def _last(name: Any) -> str:
    return str(name).rsplit(".", 1)[-1]


def _product(shape: list[Any]) -> int:
    return math.prod(length for length in shape[:MOST_AXES] if isinstance(length, int))


def _entries(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
