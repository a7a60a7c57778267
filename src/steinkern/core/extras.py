"""The command that installs what an optional part of the library needs."""

import re
from importlib.metadata import requires

_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")


def install_command(extra: str) -> str:
    """The command for an extra of the package, such as "pip install 'matplotlib>=3.9'".

    It names the packages of the extra, which works for a clone as well: pip would look for a release of
    `steinkern[plot]`.
    """
    requirements = requires("steinkern") or []
    packages = [line.partition(";")[0].strip() for line in requirements if extra in _EXTRA.findall(line)]
    return f"pip install {' '.join(map(repr, packages))}"
