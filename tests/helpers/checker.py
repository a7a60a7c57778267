"""The checker of types at run time, for `--jaxtyping-packages`: an `int` is a `float`, as for mypy (PEP 484)."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
