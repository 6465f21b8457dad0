"""Host keys as OpenSSH's known_hosts files have them (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT").

paramiko's own reader supports no patterns, no @revoked, and one key per type and name; an alias of several login nodes
needs more. Only plain keys count: host certificates (@cert-authority) are ignored.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import paramiko

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_FIELDS, _HASHED = 3, "|1|"
_SIGNED_AS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}  # RFC 8332; without SHA-1


@dataclass(frozen=True)
class Entry:
    """One line: name patterns or a hashed name, type of key, key in base64; `revoked`: the key is forbidden."""

    names: tuple[str, ...]
    kind: str
    key: str
    revoked: bool = False

    def is_for(self, name: str) -> bool:
        """Return whether the line applies to a host; `name` is HOST, or [HOST]:PORT."""
        if any(one.startswith("!") and fnmatch.fnmatchcase(name, _literal(one[1:])) for one in self.names):
            return False
        return any(_matches(name, one) for one in self.names)


def read(files: Iterable[Path]) -> tuple[Entry, ...]:
    """Return the entries of all files, without unreadable files and invalid lines."""
    found = []
    for path in files:
        try:
            lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        except OSError:
            continue
        found += [entry for line in lines if (entry := _entry(line)) is not None]
    return tuple(found)


def judge(entries: Iterable[Entry], name: str, kind: str, key: str) -> Literal["known", "unknown", "changed"]:
    """Return whether the entries contain the key of a host."""
    mine = [entry for entry in entries if entry.is_for(name)]
    if any(entry.revoked and entry.key == key for entry in mine):
        return "changed"
    plain = [entry for entry in mine if not entry.revoked]
    if any((entry.kind, entry.key) == (kind, key) for entry in plain):
        return "known"
    return "changed" if plain else "unknown"


def kinds(entries: Iterable[Entry], name: str) -> tuple[str, ...]:
    """Return the signature algorithms to prefer for a host: those of its known keys."""
    known = [entry.kind for entry in entries if entry.is_for(name) and not entry.revoked]
    return tuple(dict.fromkeys(how for kind in known for how in _SIGNED_AS.get(kind, (kind,))))


def _entry(line: str) -> Entry | None:
    words = line.split()
    marker = words.pop(0) if words and words[0].startswith("@") else ""
    if len(words) < _FIELDS or words[0].startswith("#") or marker not in {"", "@revoked"}:
        return None
    names = (words[0],) if words[0].startswith(_HASHED) else tuple(words[0].lower().split(","))
    return Entry(names, words[1], words[2], revoked=bool(marker))


def _matches(name: str, pattern: str) -> bool:
    if not pattern.startswith(_HASHED):
        return not pattern.startswith("!") and fnmatch.fnmatchcase(name.lower(), _literal(pattern))
    try:
        return bool(paramiko.HostKeys.hash_host(name.lower(), pattern) == pattern)
    except Exception:  # noqa: BLE001 - a damaged line matches no host
        return False


def _literal(pattern: str) -> str:
    """Escape the brackets of [HOST]:PORT for fnmatch; only * and ? are patterns here."""
    return pattern.replace("[", "[[]")
