"""JSON Schema of the files that people write, and the reference in Markdown; both made from the models."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpucluster.config.models import SECTIONS, ClusterFile, Profile
from pytest_gpucluster.config.profile_files import profile_names
from pytest_gpucluster.core.values import SuiteSection

if TYPE_CHECKING:
    from collections.abc import Iterator

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# A YAML 1.2 editor reads these where the loader reads the text: driver: 535, NCCL_IB_DISABLE: 1, comment: true
_TEXT = ["string", "number", "boolean"]
MANY = 8  # a list of as many choices has places where a line may end
LINE = 140  # the longest line of prose in a page, in characters


def schema(kind: Literal["cluster", "profile"] = "cluster") -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of cluster files, or of profile files.

    >>> sorted(schema()["$defs"]["GroupFile"]["properties"])
    ['nodes', 'partition', 'profile', 'thresholds']
    """
    parts = _profile_schema()
    definitions = parts.pop("$defs")
    definitions["Profile"] = parts
    if kind == "profile":
        whole = {"$schema": DIALECT, "$defs": definitions, "$ref": "#/$defs/Profile"}
        return {**whole, "title": "hardware profile"}
    whole = ClusterFile.model_json_schema()
    definitions |= whole.pop("$defs")
    named = [{"required": ["nodes"]}, {"required": ["groups"]}]
    # without both: a section that may name nodes which no group has
    sections = [name for model, name in SECTIONS.items() if model.own_nodes is not SuiteSection.own_nodes]
    own = [{"required": [name], "properties": {name: {"required": ["nodes"]}}} for name in sections]
    whole["oneOf"] = [*named, {"not": {"anyOf": named}, "anyOf": own}]
    whole["$defs"] = definitions
    whole = _loosened(whole)
    for holder in (whole, whole["$defs"]["GroupFile"]):
        about = holder["properties"]["profile"]["description"]
        named_profile = {"type": "string", "examples": list(profile_names())}
        either = [named_profile, {"$ref": "#/$defs/Profile"}]
        holder["properties"]["profile"] = {"anyOf": either, "description": about}
    return {"$schema": DIALECT, **whole, "title": "cluster file of pytest-gpucluster"}


def _profile_schema() -> dict[str, Any]:
    """Return the schema of a profile that may extend another one: nothing is required in it."""
    parts = Profile.model_json_schema()
    extends = {"type": "string", "description": "the profile whose keys these go before"}
    parts["properties"]["extends"] = extends
    for model in (parts, *(parts["$defs"][f"{name}Profile"] for name in ("Node", "Gpu", "Fabric"))):
        model.pop("required", None)
        for key in model["properties"].values():
            key.pop("default", None)  # the profile below says what holds where a key is left out
    loosened: dict[str, Any] = _loosened(parts)
    return loosened


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
    """Return the keys of cluster and profile files as Markdown lists, each under its path in the file."""
    cluster, profile = schema(), schema("profile")
    pages = _Lists({**profile["$defs"], **cluster["$defs"]})
    pages.add("## Keys of a cluster file", "", {**cluster, "description": ""})
    pages.add("## Keys of a hardware profile", "profile", profile["$defs"]["Profile"])
    return "\n".join(pages.lines[1:]) + "\n"


def wrapped(text: str, width: int = LINE) -> list[str]:
    """Return the lines of a paragraph of Markdown; no word is broken."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def list_item(term: str, *texts: str) -> str:
    """Return an item of a Markdown list, in lines of at most LINE characters: a term, and texts about it.

    >>> list_item("`nodes`", "the nodes to test")
    '- `nodes`: the nodes to test'
    """
    text = ": ".join(filter(None, (term, " ".join(filter(None, texts)))))
    for width in range(LINE, LINE // 2, -1):
        lines = wrapped(text, width - 2)
        if not any(re.match(r"[-+*#] |[>|]|\d+[.)] ", line) for line in lines[1:]):  # Markdown would begin a new block
            break
    return "- " + "\n  ".join(lines)


class _Lists:
    """Lists of keys. A mapping that the file has at several places, and a key with one meaning in several, have one item."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self.lines: list[str] = []
        self._definitions = definitions
        self._places: dict[str, str] = {"Profile": "keys-of-a-hardware-profile"}  # definition -> its anchor
        self._written: dict[str, str] = {}  # item -> path of its list

    def add(self, heading: str, path: str, part: dict[str, Any]) -> None:
        """Write one list, and those of the mappings in it that have none yet."""
        below = dict(self._first_places(path, part))
        about = part.get("description", "").split("\n\n")[0].replace("\n", " ")
        own, also = self._rows(path, part)
        text = " ".join(filter(None, (about, also)))
        self.lines += ["", heading, *(["", *wrapped(text)] if text else [])]
        self.lines += ["", *own] if own else []
        for place, name in below.items():
            self.add(f"### `{place}`", place, self._definitions[name])

    def _first_places(self, path: str, part: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield {path: definition} of the mappings that no list before has."""
        for key, about in part["properties"].items():
            for suffix, name in _mappings(about):
                place = f"{path}.{key}{suffix}".lstrip(".")
                if self._places.setdefault(name, _anchor(place)) == _anchor(place):
                    yield place, name

    def _rows(self, path: str, part: dict[str, Any]) -> tuple[list[str], str]:
        """Return the items that no list before has, and where the others are."""
        own: list[str] = []
        elsewhere: dict[str, list[str]] = {}
        for key, about in part["properties"].items():
            row = self._row(key, about, required=key in part.get("required", ()))
            # two keys without a meaning need not mean the same; the top of the file has no path to refer to
            place = self._written.setdefault(row, path) if path and about.get("description") else path
            if place == path:
                own.append(row)
            else:
                elsewhere.setdefault(place, []).append(f"`{key}`")
        places = (f"{', '.join(keys)} as in [`{place}`](#{_anchor(place)})" for place, keys in elsewhere.items())
        return own, f"{'Also' if own else 'Its keys are'} {'; '.join(places)}." if elsewhere else ""

    def _row(self, key: str, about: dict[str, Any], *, required: bool) -> str:
        mapping = next(_mappings(about), None)
        shown = f"[`{key}`](#{self._places[mapping[1]]})" if mapping else f"`{key}`"
        default = "required" if required else _default(about.get("default"), about)
        kind = ", ".join(filter(None, ("" if mapping else _kind(about), default)))
        return list_item(f"{shown} ({kind})" if kind else shown, about.get("description", ""))


def _anchor(place: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", place.lower())


def _mappings(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the definitions of a value's mappings, and how the path of such a mapping continues after the key."""
    if "$ref" in about:
        yield "", about["$ref"].rsplit("/", 1)[1]
    for one in about.get("anyOf", ()):
        yield from _mappings(one)
    for suffix, inner in (("[]", about.get("items")), (".NAME", about.get("additionalProperties"))):
        if isinstance(inner, dict):
            yield from ((suffix + more, name) for more, name in _mappings(inner))


def _default(value: Any, about: dict[str, Any]) -> str:
    if value in (None, "", [], {}) or "$ref" in about:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _kind(about: dict[str, Any]) -> str:
    """Write the type of a value for people."""
    if "$ref" in about:
        return "mapping"
    if "enum" in about:
        return f"`{' | '.join(map(str, about['enum']))}`".replace(" | ", "|" if len(about["enum"]) < MANY else ", ")
    if "anyOf" in about:
        kinds = [_kind(one) for one in about["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if (kind := about.get("type")) in ("array", "object"):
        inner = about.get("items" if kind == "array" else "additionalProperties")
        of = f" of {_kind(inner)}".replace("of mapping", "of mappings") if isinstance(inner, dict) else ""
        return ("list" if kind == "array" else "mapping") + of
    if about.get("title") in ("size", "duration", "bandwidth"):
        return str(about["title"])
    names = {"integer": "integer", "number": "number", "boolean": "boolean"}
    return names.get(str(kind), "text")
