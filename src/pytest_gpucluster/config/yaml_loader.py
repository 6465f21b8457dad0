"""YAML text into plain data that remembers its lines; nothing of YAML that could surprise or harm.

Plain scalars stay the text that stands in the file, and the models turn it into numbers and switches. So
`time: 01:30:00`, `cuda: 12.10` and `answer: no` keep their text (YAML 1.1 would make them 5400, 12.1 and False).
Only null (empty, ~, null) is distinguished. Below the keys named as `typed` scalars are read as YAML 1.2 does. No tags, one document, bounded size, nesting and aliases.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

MAX_BYTES = 2**19
MAX_VALUES = 50_000
MAX_TEXT = 2**15  # characters; one word of a command may have 128 KiB: execve(2), MAX_ARG_STRLEN

Loc = tuple["str | int", ...]

_KEYS = re.compile(r"[^\s.=\[\]]+(\[[0-9]{1,6}\]|\.[^\s.=\[\]]+)*")
_PART = re.compile(r"([^.\[\]]+)(?=[.\[]|$)|\[([0-9]+)\]")
_BARE = re.compile(r"[A-Za-z0-9/][A-Za-z0-9_./,\[\]-]*")
_NULLS = ("", "~", "null", "Null", "NULL")
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# line ends and tabs excepted
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}


@dataclass
class Source:
    """The data of one file, and the line (from 1) of each key and list item."""

    label: str
    data: Any = None
    lines: dict[Loc, int] = field(default_factory=dict)
    given: dict[Loc, str] = field(default_factory=dict)  # places that options replace -> the option
    is_file: bool = True
    sha256: str = ""  # of the bytes of the file

    def error(self, loc: Loc, problem: str) -> ConfigError:
        """Make the one-line error for a place in the file; the nearest known place gives the line."""
        return ConfigError(f"{self.where(loc)}: {dotted(loc)}{problem}")

    def where(self, loc: Loc) -> str:
        """Return file and line of a place, or the option that gives it."""
        known = self._known(loc)
        return self.given.get(known) or self.label + (f":{self.line(loc)}" if self.lines and self.is_file else "")

    def line(self, loc: Loc) -> int:
        """Return the line of a place, or of the nearest place around it; 0 for one that an option gives."""
        known = self._known(loc)
        return 0 if known in self.given else self.lines.get(known, 1)

    def is_given(self, loc: Loc) -> bool:
        """Return whether an option gives the value of a place, or of one inside it."""
        return self._known(loc) in self.given or any(place[: len(loc)] == loc for place in self.given)

    def put(self, text: str, *, typed: Collection[str] = ()) -> None:
        """Replace the value at a place by `KEY=VALUE`, like `groups[0].partition=debug`; VALUE is YAML.

        ConfigError names the option --set.
        """
        option = f"--set {clip(text, 200)}"
        key, _, value = text.partition("=")
        if not _KEYS.fullmatch(key) or not value.strip():
            raise ConfigError(f"{option}: must be KEY=VALUE, like slurm.reservation=maint (null removes a value)")
        loc: Loc = tuple(int(index) if index else name for name, index in _PART.findall(key))
        new = Source(option, is_file=False)
        node = _compose(new, value)
        if node is None:
            raise ConfigError(f"{option}: has no value: write one, or null")
        built = _Builder(new, frozenset(typed)).build(node, loc)
        holder = self.data
        for at, part in enumerate(loc[:-1]):
            holder = _inside(holder, part)
            if holder is None:
                raise ConfigError(f"{option}: {self.label} has no {dotted(loc[: at + 1])[:-2]} with keys")
        if isinstance(holder, list) and (not isinstance(loc[-1], int) or loc[-1] >= len(holder)):
            raise ConfigError(f"{option}: {self.label} has no {dotted(loc)[:-2]}")
        holder[loc[-1]] = built
        for places in (self.lines, self.given):
            for place in [it for it in places if it[: len(loc)] == loc]:
                del places[place]
        self.given[loc] = option

    def _known(self, loc: Loc) -> Loc:
        while loc and loc not in self.lines and loc not in self.given:
            loc = loc[:-1]
        return loc


def _inside(holder: Any, part: int | str) -> Any:
    """Return the mapping or list at a key or index, None without one; a mapping gets a key that it does not have."""
    found = None
    if isinstance(holder, dict) and isinstance(part, str):
        found = holder[part] = {} if holder.get(part) is None else holder[part]
    elif isinstance(holder, list) and isinstance(part, int) and part < len(holder):
        found = holder[part]
    return found if isinstance(found, (dict, list)) else None


def dotted(loc: Loc) -> str:
    """Write a place as 'groups[0].gpu.count: '; '' for the file as a whole."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{clip(part)}" if text else clip(part)
    return f"{text}: " if text else ""


def clip(value: object, width: int = 60) -> str:
    """Write a value on one line, and not too long."""
    text = str(value).encode("unicode_escape").decode() if not str(value).isprintable() else str(value)
    return text if len(text) <= width else f"{text[: width - 3]}..."


def quoted(text: str, *, in_flow: bool = False) -> str:
    """Write a text for YAML, in quotes where it could be read as something else; `in_flow`: between braces."""
    split = in_flow and set(text) & set(",[]")
    typed = re.fullmatch(r"[0-9.]+|true|false|null|yes|no|on|off", text.lower())
    if _BARE.fullmatch(text) and not split and not typed:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def read_source(path: Path, *, typed: Collection[str] = ()) -> Source:
    """Read one YAML file that holds a mapping. ConfigError names file and line."""
    source = Source(str(path))
    raw = _read_bytes(path)
    text, source.sha256 = _decode(source, raw), hashlib.sha256(raw).hexdigest()
    node = _compose(source, text)
    if node is None:
        raise source.error((), "is empty; at least 'nodes' is required")
    try:
        source.data = _Builder(source, frozenset(typed)).build(node, ())
    except RecursionError:
        raise source.error((), "is nested too deeply") from None
    if not isinstance(source.data, dict):
        raise source.error((), "must be a mapping of keys to values")
    return source


def read_text(path: Path) -> str:
    """Return the text of a file of bounded size; ConfigError where it is no UTF-8 text file."""
    return _decode(Source(str(path)), _read_bytes(path))


def _read_bytes(path: Path) -> bytes:
    if path.is_dir():
        raise ConfigError(f"{path}: is a directory, not a YAML file")
    if path.exists() and not path.is_file():  # a pipe or a device might never end
        raise ConfigError(f"{path}: is not a regular file")
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: is larger than {MAX_BYTES // 1024} KiB, so hardly a cluster file")
    return raw


def _decode(source: Source, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        source.lines[()] = raw.count(b"\n", 0, error.start) + 1
        raise source.error((), f"is not UTF-8 text (byte 0x{raw[error.start]:02x})") from None


def _compose(source: Source, text: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.reader.ReaderError as error:
        source.lines[()] = text.count("\n", 0, error.position) + 1
        raise source.error((), f"holds the character {error.character!r}; it is not text") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        source.lines[()] = mark.line + 1 if mark else 1
        raise source.error((), _syntax(error)) from None
    except RecursionError:
        raise source.error((), "is nested too deeply") from None
    return node


def _syntax(error: yaml.MarkedYAMLError) -> str:
    if "'\\t'" in (error.problem or ""):
        return "a tab stands where YAML wants spaces"
    if "single document" in (error.context or ""):
        return "a second document starts here ('---'); one file is one cluster"
    return f"not YAML: {clip(', '.join(filter(None, (error.context, error.problem))), 120)}"


class _Builder:
    """Turns composed nodes into plain data, and notes the lines."""

    def __init__(self, source: Source, typed: frozenset[str]) -> None:
        self.source, self.typed = source, typed
        self.values = 0
        self.open: set[int] = set()

    def build(self, node: yaml.Node, loc: Loc) -> Any:
        self.source.lines.setdefault(loc, node.start_mark.line + 1)
        self._bound(node, loc)
        if isinstance(node, yaml.ScalarNode):
            self._refuse_text(node, loc)
            return self._scalar(node, typed=bool(loc) and loc[0] in self.typed)
        self.open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            built: Any = self._mapping(node, loc)
        else:
            built = [self.build(item, (*loc, index)) for index, item in enumerate(node.value)]
        self.open.discard(id(node))
        return built

    def _bound(self, node: yaml.Node, loc: Loc) -> None:
        self.values += 1
        if self.values > MAX_VALUES:
            raise self.source.error(loc[:1], f"its aliases unfold to more than {MAX_VALUES} values")
        if id(node) in self.open:
            raise self.source.error(loc, "an alias points to what it stands in")
        if node.tag not in _PLAIN_TAGS and node.tag != "!":
            raise self.source.error(loc, f"the tag {clip(node.tag)} is not supported; write the plain value")

    def _refuse_text(self, node: yaml.ScalarNode, loc: Loc) -> None:
        r"""YAML's "\e" and "\uD800" would reach terminals, commands and reports."""
        if len(node.value) > MAX_TEXT:
            raise self.source.error(loc, f"has {len(node.value)} characters, more than {MAX_TEXT}")
        found = _CONTROL.search(node.value)
        if found:
            raise self.source.error(loc, f"holds the character {found[0]!a}; it is not text")

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
        built: dict[str, Any] = {}
        own: set[str] = set()
        for key, value in self._pairs(node, loc):
            location = (*loc, key.value)
            if key.value in own:
                first = self.source.lines[location]
                self.source.lines[location] = key.start_mark.line + 1
                raise self.source.error(location, f"this key is given twice, first on line {first}")
            own.add(key.value)
            self.source.lines[location] = key.start_mark.line + 1
            built[key.value] = self.build(value, location)
        return self._merged(node, loc, built)

    def _pairs(self, node: yaml.MappingNode, loc: Loc) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.source.lines[loc] = key.start_mark.line + 1
                raise self.source.error(loc, "a key must be plain text, not a list or mapping")
            if not _is_merge(key):
                yield key, value

    def _merged(self, node: yaml.MappingNode, loc: Loc, own: dict[str, Any]) -> dict[str, Any]:
        """Put what `<<: *alias` brings under the mapping's own keys."""
        merged: dict[str, Any] = {}
        for key, value in node.value:
            if _is_merge(key):
                own_lines, self.source.lines = self.source.lines, {}
                brought = self.build(value, loc)
                for there, line in self.source.lines.items():  # no copy: many merges would take the square
                    own_lines.setdefault(there, line)
                self.source.lines = own_lines
                location: Loc = (*loc, "<<")
                self.source.lines[location] = key.start_mark.line + 1
                for part in brought if isinstance(brought, list) else [brought]:
                    if not isinstance(part, dict):
                        raise self.source.error(location, "must be an alias of a mapping")
                    merged = {**part, **merged}
        return {**merged, **own}

    def _scalar(self, node: yaml.ScalarNode, *, typed: bool) -> Any:
        text: str = node.value
        if node.style is not None:
            return text
        if text in _NULLS:
            return None
        return _typed(text) if typed else text


def _is_merge(key: yaml.Node) -> bool:
    return isinstance(key, yaml.ScalarNode) and key.value == "<<" and key.style is None


def _typed(text: str) -> Any:
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        return int(text) if len(text) < 4000 else text  # Python's own bound on digits
    return float(text) if _FLOAT.fullmatch(text) else text
