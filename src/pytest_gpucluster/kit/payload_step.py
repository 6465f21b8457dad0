"""The source of a payload as it is sent, and the environment that it runs in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Cluster, EnvironmentConfig


PRELUDE = Path(__file__).parent / "payloads" / "prelude.py"
COLLECTIVE = PRELUDE.with_name("collective.py")
_PACKAGE = Path(__file__).parents[1]
_IMPORT = re.compile(r"^from pytest_gpucluster\.([\w.]+) import (?:\([^)]*\)|.*)$", re.MULTILINE)


def sent(payload: Path) -> str:
    """Return a payload with each shared part inlined instead of its import, on one line, so that line numbers stay."""
    inlined: set[str] = set()

    def inline(found: re.Match[str]) -> str:
        part, newlines = (
            _PACKAGE.joinpath(*found[1].split(".")).with_suffix(".py"),
            "\n" * found[0].count("\n"),
        )
        if part.name in inlined:
            return newlines
        inlined.add(part.name)
        text = _IMPORT.sub(inline, part.read_text())
        return f'exec(compile({text!r}, "{part.name}", "exec"))' + newlines

    return _IMPORT.sub(inline, payload.read_text())


def source_of(module: str, name: str = "payload.py") -> str:
    """Return the source of a payload in the folder of the module with this `__file__`, for python -c."""
    return sent(Path(module).with_name(name))


def environment_named(cluster: Cluster, name: str | None, section: str) -> EnvironmentConfig | None:
    """Return the environment of a section's steps, by default `environments.default`; ConfigError for an unknown name."""
    return cluster.environment(name, f"{section}.environment")
