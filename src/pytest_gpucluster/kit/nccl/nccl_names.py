"""Lists of adapters and interfaces in NCCL's variables: NCCL_IB_HCA, NCCL_SOCKET_IFNAME. Pure.

Source: parseStringList and matchIfList in src/misc/utils.cc of github.com/NVIDIA/nccl (2.29): prefixes, exact names after
'=', all but these after '^'; an entry may have a port: mlx5_0:1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class NameFilter:
    """A parsed list. `entries`: (name or prefix, port); a port of None means all ports."""

    entries: tuple[tuple[str, int | None], ...]
    exact: bool = False
    exclude: bool = False

    @classmethod
    def parse(cls, value: str) -> NameFilter:
        """Return the parsed list; blanks around an entry are part of its name, as in NCCL."""
        exclude, value = value.startswith("^"), value.removeprefix("^")
        exact, value = value.startswith("="), value.removeprefix("=")
        pairs = (entry.split(":")[:2] for entry in value.split(",") if entry.partition(":")[0])
        entries = tuple((pair[0], _port(pair[1]) if pair[1:] else None) for pair in pairs)
        return cls(entries, exact, exclude)

    def selects(self, name: str, port: int | None = None) -> bool:
        """Return whether NCCL uses it; an empty list selects everything."""
        named = any(
            (name == entry if self.exact else name.startswith(entry)) and (None in {port, of} or port == of)
            for entry, of in self.entries
        )
        return not self.entries or named is not self.exclude


def _port(text: str) -> int | None:
    """Read a port like atoi(3); '' and -1 mean all ports."""
    match = re.match(r"\s*[+-]?[0-9]{1,9}", text)
    number = int(match[0]) if match else 0
    return None if not text or number == -1 else number
