"""Comparison of the partition keys (P_Keys) of InfiniBand ports. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FULL_MEMBER = 0x8000


def lacks(mine: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    """Return whether a port lacks a key, or is a limited member where the others are full ones.

    >>> lacks((0xFFFF,), (0x7FFF,)), lacks((0x7FFF,), (0xFFFF,))
    (False, True)
    """
    return any(key not in mine and key | FULL_MEMBER not in mine for key in theirs)


def shown_keys(keys: Iterable[int]) -> str:
    """Return the keys for people.

    >>> shown_keys((0x1, 0xFFFF))
    '0x0001 0xffff'
    """
    return " ".join(f"0x{key:04x}" for key in keys)
