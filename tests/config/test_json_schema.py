"""The keys of cluster and profile files in Markdown: each under its path in the file."""

from __future__ import annotations

import re
from typing import Any

from pytest_gpucluster.config import json_schema

REFERENCE, SCHEMA = json_schema.reference(), json_schema.schema()
HEADING = re.compile(r"^### `(.*)`$", re.MULTILINE)


def keys(place: str) -> list[str]:
    """Return the keys of the table below a heading, with those that it has from elsewhere."""
    text = REFERENCE.partition(f"{place}\n\n")[2].partition("\n#")[0]
    also = re.findall(r"(?:Also|Its keys are|;) ((?:`\w+`(?:, )?)+) as in", text)
    return re.findall(r"^\| \[?`(\w+)`", text, re.MULTILINE) + re.findall(r"`(\w+)`", " ".join(also))


def mapping(path: str) -> dict[str, Any]:
    """Return the schema of the mapping at a path like groups[].thresholds[]."""
    part: Any = SCHEMA
    for word in path.replace("[]", ".[]").split("."):
        inner = {"[]": "items", "NAME": "additionalProperties"}.get(word)
        found = part[inner] if inner else part["properties"][word]
        part = resolved(found, SCHEMA["$defs"], inner_of=word)
    assert isinstance(part, dict)
    return part


def resolved(part: dict[str, Any], definitions: dict[str, Any], *, inner_of: str) -> dict[str, Any]:
    for one in (part, *part.get("anyOf", ())):
        if "$ref" in one:
            return resolved(definitions[one["$ref"].rsplit("/", 1)[1]], definitions, inner_of=inner_of)
    kinds = [one for one in (part, *part.get("anyOf", ())) if {"items", "additionalProperties"} & one.keys()]
    return kinds[-1] if kinds and "properties" not in part else part


def test_each_heading_is_a_path_in_the_file_and_has_the_keys_there() -> None:
    paths = HEADING.findall(REFERENCE)
    assert {"os", "os.mounts[]", "accounting.accounts.NAME", "waivers[]", "profile.gpu"} <= set(paths)
    for path in paths:
        assert sorted(keys(f"### `{path}`")) == sorted(mapping(path)["properties"]), path


def test_the_keys_of_the_file_itself_are_all_there() -> None:
    assert sorted(keys("## Keys of a cluster file")) == sorted(SCHEMA["properties"])
    profile = json_schema.schema("profile")["$defs"]["Profile"]["properties"]
    assert sorted(keys("## Keys of a hardware profile")) == sorted(profile)
