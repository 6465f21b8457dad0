"""Other values for constants of the sections, so that runs of tests are short.

It is a plugin of pytest too, for runs in another process: GPUCLUSTER_TEST_CONSTANTS is JSON, {section: {name: value}}.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLE = "GPUCLUSTER_TEST_CONSTANTS"
_HERE = Path(__file__).parent
Section = TypeVar("Section")


def with_constants(model: type[Section], constants: Mapping[str, Any], **keys: Any) -> Section:
    """Return a section with these keys and constants; KeyError for a name that is no constant of it."""
    unknown = [name for name in constants if name not in model.__class_vars__]  # type: ignore[attr-defined] # pydantic's
    if unknown:
        raise KeyError(*unknown)
    changed: type[Section] = type(model.__name__, (model,), {"__module__": model.__module__, **constants})
    return changed(**keys)


def in_environment(env: Mapping[str, str], **sections: Mapping[str, Any]) -> dict[str, str]:
    """Return an environment in which a run of pytest has these constants: SECTION={name: value}."""
    if not any(sections.values()):
        return dict(env)
    path = os.pathsep.join(filter(None, [env.get("PYTHONPATH", ""), str(_HERE)]))
    return {**env, _VARIABLE: json.dumps(sections), "PYTEST_PLUGINS": "constants", "PYTHONPATH": path}


def _apply(given: Mapping[str, Mapping[str, Any]]) -> None:
    from pytest_gpucluster.config.models import SECTIONS, CampaignConfig  # only in such a run

    _set(CampaignConfig, "campaign", given.get("campaign", {}))
    for model, section in SECTIONS.items():
        _set(model, section, given.get(section, {}))


def _set(model: Any, where: str, constants: Mapping[str, Any]) -> None:
    for name, value in constants.items():
        assert name in model.__class_vars__, f"{where}.{name} is no constant"
        setattr(model, name, value)


if text := os.environ.get(_VARIABLE):
    _apply(json.loads(text))
