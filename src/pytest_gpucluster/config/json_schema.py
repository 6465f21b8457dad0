"""JSON Schema of the files that people write, and the reference in Markdown; both made from the models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pytest_gpucluster.config.models import SECTIONS, ClusterFile, Profile
from pytest_gpucluster.config.profile_files import profile_names
from pytest_gpucluster.core.values import Model, SuiteSection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# A YAML 1.2 editor reads these where the loader reads the text: driver: 535, NCCL_IB_DISABLE: 1, comment: true
_TEXT = ["string", "number", "boolean"]


def schema(kind: Literal["cluster", "profile"] = "cluster") -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of cluster files, or of profile files.

    >>> sorted(schema()["$defs"]["GroupFile"]["properties"])
    ['nodes', 'partition', 'profile', 'thresholds']
    """
    parts = _profile_schema()
    definitions = parts.pop("$defs")
    definitions["Profile"] = parts
    if kind == "profile":
        return {
            "$schema": DIALECT,
            "$defs": definitions,
            "$ref": "#/$defs/Profile",
            "title": "hardware profile",
        }
    whole = ClusterFile.model_json_schema()
    definitions |= whole.pop("$defs")
    named = [{"required": ["nodes"]}, {"required": ["groups"]}]
    # without both: a section that names nodes of its own
    own = [{"required": [name], "properties": {name: {"required": ["nodes"]}}} for name in _naming_sections()]
    whole["oneOf"] = [*named, {"not": {"anyOf": named}, "anyOf": own}]
    whole["$defs"] = definitions
    whole = _loosened(whole)
    for holder in (whole, whole["$defs"]["GroupFile"]):
        holder["properties"]["profile"] = _profile_reference(holder["properties"]["profile"])
    return {"$schema": DIALECT, **whole, "title": "cluster file of pytest-gpucluster"}


def _naming_sections() -> list[str]:
    """Return the sections that may name nodes which no group has."""
    return [name for model, name in SECTIONS.items() if model.own_nodes is not SuiteSection.own_nodes]


def _profile_schema() -> dict[str, Any]:
    """Return the schema of a profile that may extend another one: nothing is required in it."""
    parts = Profile.model_json_schema()
    parts["properties"]["extends"] = {
        "type": "string",
        "description": "the profile whose keys these go before",
    }
    for model in (
        parts,
        parts["$defs"]["NodeProfile"],
        parts["$defs"]["GpuProfile"],
        parts["$defs"]["FabricProfile"],
    ):
        model.pop("required", None)
        for key in model["properties"].values():
            key.pop("default", None)  # the profile below says what holds where a key is left out
    loosened: dict[str, Any] = _loosened(parts)
    return loosened


def _profile_reference(described: dict[str, Any]) -> dict[str, Any]:
    named = {"type": "string", "examples": list(profile_names())}
    return {"anyOf": [named, {"$ref": "#/$defs/Profile"}], "description": described["description"]}


def _loosened(part: Any) -> Any:
    """Let plain text be written without quotes, as the loader does."""
    if isinstance(part, list):
        return [_loosened(item) for item in part]
    if not isinstance(part, dict):
        return part
    loose = {key: _loosened(value) for key, value in part.items()}
    if loose.get("type") == "string" and not {"enum", "const", "pattern"} & loose.keys():
        loose["type"] = _TEXT
    return loose


def reference() -> str:
    """Return the keys of cluster and profile files as Markdown tables."""
    cluster, profile = schema(), schema("profile")
    lines = ["## Keys of a cluster file", "", *_table(cluster, cluster["$defs"])]
    of_cluster = _reachable(cluster, cluster["$defs"], stop="Profile")
    shared = _shared(of_cluster)
    for name in [*shared, *of_cluster]:
        part = cluster["$defs"].get(name) or _loosened(shared[name].model_json_schema())
        lines += ["", f"### {name}", "", *_described(part, cluster["$defs"], name)]
    lines += [
        "",
        "## Keys of a hardware profile",
        "",
        *_described(profile["$defs"]["Profile"], profile["$defs"]),
    ]
    of_profile = _reachable(profile["$defs"]["Profile"], profile["$defs"], stop="Profile")
    for name in (name for name in of_profile if name not in of_cluster):
        lines += ["", f"### {name}", "", *_described(profile["$defs"][name], profile["$defs"], name)]
    return "\n".join(lines) + "\n"


def _models(model: type[Model] = Model) -> dict[str, type[Model]]:
    """Return every model below one, by its name."""
    found = {model.__name__: model}
    for one in model.__subclasses__():
        found |= _models(one)
    return found


def _parent(model: type[Model]) -> type[Model] | None:
    """Return the model with keys that this one extends, if people are to know of it."""
    above = (one for one in model.__mro__[1:] if issubclass(one, Model))
    found = next((one for one in above if one.model_fields and not one.__name__.startswith("_")), None)
    return _parent(found) if found and found.model_fields.keys() == _inherited(found) else found


def _inherited(model: type[Model]) -> set[str]:
    """Return the keys that a model has as its parent has them."""
    parent = _parent(model)
    return {key for key in parent.model_fields if key not in model.__annotations__} if parent else set()


def _shared(names: Iterable[str]) -> dict[str, type[Model]]:
    """Return the models that several sections extend and that are no section themselves."""
    models = _models()
    parents = (_parent(models[name]) for name in names)
    return {one.__name__: one for one in parents if one and one.__name__ not in names}


def _described(part: dict[str, Any], definitions: dict[str, Any], name: str = "") -> list[str]:
    """Return what a model means, and its keys; those that it shares are in the table of its parent."""
    about = part.get("description", "").split("\n\n")[0].replace("\n", " ")
    model = _models().get(name)
    if model is None or (parent := _parent(model)) is None:
        return [about, "", *_table(part, definitions)]
    also = f"It also has the keys of [{parent.__name__}](#{parent.__name__.lower()})."
    own = {key: value for key, value in part["properties"].items() if key not in _inherited(model)}
    return [about, also, *(["", *_table({**part, "properties": own}, definitions)] if own else [])]


def _table(part: dict[str, Any], definitions: dict[str, Any]) -> list[str]:
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, about in part["properties"].items():
        needed = key in part.get("required", ())
        default = "required" if needed else _default(about.get("default"), about)
        meaning = about.get("description", "").replace("|", "\\|")
        lines.append(f"| `{key}` | {_kind(about, definitions)} | {default} | {meaning} |")
    return lines


def _default(value: Any, about: dict[str, Any]) -> str:
    if value in (None, "", [], {}) or "$ref" in about:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _kind(about: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Write the type of a value for people."""
    if "$ref" in about:
        name = about["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})" if name != "Profile" else "[profile](#keys-of-a-hardware-profile)"
    if "enum" in about:
        return " or ".join(f"`{choice}`" for choice in about["enum"])
    if "anyOf" in about:
        kinds = [_kind(one, definitions) for one in about["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if about.get("type") == "array":
        return f"list of {_kind(about['items'], definitions)}"
    if about.get("type") == "object":
        inner = about.get("additionalProperties")
        return f"mapping of {_kind(inner, definitions)}" if isinstance(inner, dict) else "mapping"
    return _scalar(about)


def _scalar(about: dict[str, Any]) -> str:
    kind = about.get("type")
    if about.get("title") in ("size", "duration", "bandwidth"):
        return str(about["title"])
    names = {"integer": "whole number", "number": "number", "boolean": "true or false"}
    return names.get(kind, "text") if isinstance(kind, str) else "text"


def _reachable(part: Any, definitions: dict[str, Any], *, stop: str) -> list[str]:
    """Return the definitions that a schema refers to, in the order of reading."""
    found: list[str] = []
    for name in _references({key: value for key, value in part.items() if key != "$defs"}):
        if name != stop and name not in found:
            found += [name, *_reachable(definitions[name], definitions, stop=stop)]
    return list(dict.fromkeys(found))


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"].rsplit("/", 1)[1]
        part = list(part.values())
    if isinstance(part, list):
        for item in part:
            yield from _references(item)
