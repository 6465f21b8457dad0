"""The data files of patterns and their meaning, which are part of the package."""

from __future__ import annotations

from datetime import date
from functools import cache
from importlib.resources import files
from typing import TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.values import Model, Text

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # eight times as fast, where libyaml is there
Entry = TypeVar("Entry", bound=Model)


class _Head(Model):
    about: Text
    date: date  # when its sources were read


@cache
def data_file(name: str, entry: type[Entry], package: str) -> tuple[Entry, ...]:
    """Return `entries` of the file data/NAME of a package; ConfigError names the file and the place of a wrong value.

    A file has the keys `about`, `date` (when its sources were read) and `entries`.
    """
    path = files(package) / "data" / name
    try:
        data = yaml.load(path.read_text(), _LOADER)  # noqa: S506 - both are safe
        head = _Head.model_validate({key: value for key, value in data.items() if key != "entries"})
        found = TypeAdapter(tuple[entry, ...]).validate_python(data["entries"])  # type: ignore[valid-type]
    except (ValidationError, yaml.YAMLError, AttributeError, KeyError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not found:
        raise ConfigError(f"{path}: no entries of {head.date}")
    return tuple(found)
