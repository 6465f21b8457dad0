"""What pydantic found wrong, in one line for people: place, problem, nearest valid key."""

from __future__ import annotations

import difflib
import typing
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from pytest_gpucluster.config.models import Profile
from pytest_gpucluster.config.yaml_loader import clip
from pytest_gpucluster.core import former_names
from pytest_gpucluster.core.check import CHECKS
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.registry import import_checks
from pytest_gpucluster.core.values import SuiteSection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.config.yaml_loader import Loc

# pydantic's error types, in the words of a cluster file
_EXPECTED = {
    "int_": "a whole number",
    "float_": "a number",
    "finite_number": "a finite number",
    "bool_": "true or false",
    "string_": "text",
    "tuple_": "a list",
    "list_": "a list",
    "dict_": "a mapping",
    "model_": "a mapping",
    "mapping_": "a mapping",
}


def problems(error: ValidationError, model: type[BaseModel]) -> list[tuple[Loc, str]]:
    """Return each place and what is wrong there, in pydantic's order."""
    found = typing.cast("list[dict[str, Any]]", error.errors())
    # the place of a wrong key has `[key]` at its end, which no file holds
    places = [one["loc"][:-1] if one["loc"][-1:] == ("[key]",) else one["loc"] for one in found]
    both = zip(found, places, strict=True)
    return [(at, _sentence(one, model)) for one, at in both if not _is_of_entries(one)]


def _is_of_entries(error: Mapping[str, Any]) -> bool:
    """Return whether a list is too short only without its wrong entries, each of which has an error of its own."""
    return bool(error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"])


def strange_file(data: Mapping[str, Any], model: type[BaseModel], kind: str) -> str:
    """Say that a file is of another kind, since no key of it is a name; its lines are not shown, which may be secret."""
    if not data or any(str(key).isidentifier() for key in data):
        return ""
    return f"is no {kind}: it has none of its keys ({', '.join([*model.model_fields][:6])}, ...)"


def together(errors: Sequence[ConfigError]) -> ConfigError:
    """Return one error for all errors of a file."""
    lines = tuple(dict.fromkeys(line for error in errors for line in error.every or (str(error),)))
    whole = ConfigError(lines[0] + (f" (and {len(lines) - 1} more)" if lines[1:] else ""))
    whole.every = lines
    return whole


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the valid word that is most like this one, or ''."""
    words = [*valid]
    begun = [one for one in words if len(word) > 2 and one.startswith(word.lower())]  # 'gp' says little
    close = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.6) or begun
    return f"; did you mean '{close[0]}'?" if close else ""


def _sentence(error: Mapping[str, Any], model: type[BaseModel]) -> str:
    error_type, value = error["type"], error["input"]
    if error_type == "extra_forbidden":
        return _unknown_key(tuple(error["loc"]), model)
    if error_type == "missing":
        return "is missing"
    if error_type == "too_short":
        return "is empty; name at least one"
    if error_type == "value_error":
        return clip(str(error["ctx"]["error"]), 200)
    if value is None:
        return "has no value; write one, or remove the key"
    return f"{_expectation(error)}, not {_shown(value)}{_nearest_choice(error)}"


def _expectation(error: Mapping[str, Any]) -> str:
    error_type, text = error["type"], str(error["msg"])
    if error_type == "literal_error":
        return f"must be {error['ctx']['expected']}"
    known = (words for start, words in _EXPECTED.items() if error_type.startswith(start))
    return f"must be {next(known, '') or text.removeprefix('Input should be ')}"


def _nearest_choice(error: Mapping[str, Any]) -> str:
    if error["type"] != "literal_error":
        return ""
    words = error["ctx"]["expected"].replace(" or ", ",").split(",")
    return nearest(str(error["input"]), [word.strip("' ") for word in words])


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, (list, tuple)) else f"'{clip(value)}'"


def _unknown_key(loc: Loc, model: type[BaseModel]) -> str:
    key = str(loc[-1])
    holder = model_at(model, loc[:-1])
    valid = holder.model_fields
    former = former_names.of_key(loc, "profile" if model is Profile else "")
    told = f"; it {former.text}" if former else ""
    guess = (
        (told if former is not former_names.FIXED else "")
        or _constant(key, holder)
        or told
        or _check(".".join(map(str, loc)))
        or _elsewhere(key, model, top=len(loc) == 1)
        or nearest(key, valid)
    )
    return f"unknown key{guess or '; valid here: ' + ', '.join(valid)}"


def _check(name: str) -> str:
    """Say how the file requires or excludes a check of this name."""
    import_checks()
    return "; it is a check: name it under 'required' or 'not_applicable'" if name in CHECKS else ""


def _constant(key: str, holder: type[BaseModel]) -> str:
    """Say that a name is no key but a constant of the package, with its value."""
    if key not in vars(holder).get("__class_vars__", ()) or key in SuiteSection.__class_vars__:
        return ""
    return f"; it is always {getattr(holder, key)} and cannot be set; remove the key"


def _elsewhere(key: str, model: type[BaseModel], *, top: bool) -> str:
    """Say in which section a key would be right; a key of another section only if no third one has it too."""
    inner = {section: _inner(info.annotation) for section, info in model.model_fields.items()}
    homes = [section for section, one in inner.items() if one and key in one.model_fields]
    return f"; it belongs under '{homes[0]}'" if homes and (top or len(homes) == 1) else ""


def model_at(model: type[BaseModel], loc: Loc) -> type[BaseModel]:
    """Return the model that holds the keys at a place."""
    for part in loc:
        if part in model.model_fields:
            model = _inner(model.model_fields[str(part)].annotation) or model
    return model


def _inner(annotation: Any) -> type[BaseModel] | None:
    """Return the first model inside an annotation like tuple[Group, ...] or dict[str, Mount] | None."""
    if typing.get_origin(annotation) is None:  # of Python 3.10 tuple[Group, ...] is a type too
        return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    found = (_inner(argument) for argument in typing.get_args(annotation))
    return next((inner for inner in found if inner), None)
