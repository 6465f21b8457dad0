"""Programs of sh and awk as they are sent to nodes. Each is a file of the package, beside the module that sends it.

A file has comments and indentation for its readers. What is sent has neither: lines that begin with `#` and leading blanks
are removed. Therefore a program has no here-document and no text in which leading blanks matter. `@NAME@` is replaced by the
value with that name, as it stands: a value that a user wrote must be quoted for the shell by the caller.
"""

from __future__ import annotations

import functools
import re
from importlib import resources

_PLACEHOLDER = re.compile(r"@([A-Z_]+)@")


def script(package: str, name: str, **values: object) -> str:
    """Return the program `name` of a package with these values; ValueError if a value is missing or has no placeholder."""
    text = _text(package, name)
    if differing := set(values).symmetric_difference(_PLACEHOLDER.findall(text)):
        raise ValueError(f"{package}: {name} and its values differ in {', '.join(sorted(differing))}")
    return _PLACEHOLDER.sub(lambda found: str(values[found[1]]), text)


@functools.cache
def _text(package: str, name: str) -> str:
    text = resources.files(package).joinpath(name).read_text(encoding="ascii")
    lines = (line.lstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and (not line.startswith("#") or line.startswith("#!")))


# defines `module` in a shell that has none, as a login shell would
FIND_MODULE = script(__package__, "find_module.sh")
