"""Slurm's bracket lists, like gpu[01-16,20], by ClusterShell.

`expand` sorts and drops duplicates. The rank order of an allocation comes from `scontrol show hostnames`, never from
this module.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
from ClusterShell.RangeSet import RangeSetException

if TYPE_CHECKING:
    from collections.abc import Iterable

# far above any cluster, far below what would exhaust memory
MAX_NODES = 65_536
MAX_NAME = 253  # a host name in DNS

# no name begins with - (an option) or . (a path)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})")
_LONG_NUMBER = re.compile(r"\d{19}")
_BRACKET = re.compile(r"\[([^\]]*)")
_PART = re.compile(r"(?:[^,\[]|\[[^\]]*)+")  # up to a comma outside of brackets

# ClusterShell takes digits beside a bracket as part of its range, and asserts that no range is too large
_REFUSALS = (NodeSetException, RangeSetException, AssertionError, ArithmeticError, LookupError)


def expand(hostlist: str) -> tuple[str, ...]:
    """Return the sorted node names of a bracket list; '' gives ().

    Raise ValueError if the text is no hostlist, or names more than 65,536 nodes.

    >>> expand("gpu[09-10],login")
    ('gpu09', 'gpu10', 'login')
    """
    if not hostlist.strip():
        return ()
    if not hostlist.isascii():  # ClusterShell reads the digits of every script as numbers
        raise ValueError(f"not a hostlist: {hostlist[:60]!r}: node names are ASCII")
    span = _span(hostlist)
    if span > MAX_NODES:
        raise ValueError(f"hostlist {hostlist[:60]!r} names {span} nodes, more than {MAX_NODES}")
    if _LONG_NUMBER.search(hostlist):
        raise ValueError(f"not a hostlist: {hostlist[:60]!r}: a number of more than 18 digits")
    try:
        # RESOLVER_NOGROUP: '@all' would be read from ClusterShell's own sample configuration
        nodes = tuple(str(node) for node in NodeSet(hostlist, resolver=RESOLVER_NOGROUP))
    except _REFUSALS as error:
        raise ValueError(f"not a hostlist: {hostlist[:80]!r} ({error})") from error
    for node in nodes:
        if not is_name(node):
            raise ValueError(f"not a hostlist: {hostlist[:80]!r} ({node[:40]!r} is no node name)")
    return nodes


def fold(nodes: Iterable[str]) -> str:
    """Write node names as one bracket list; ValueError where a text is no name, as 'gpu[01'.

    >>> fold(["gpu02", "gpu01"])
    'gpu[01-02]'
    """
    names = list(nodes)
    try:
        return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
    except _REFUSALS as error:
        raise ValueError(f"no names of nodes: {','.join(names)[:80]!r} ({error})") from error


def shown(nodes: Iterable[str], *, none: str = "none") -> str:
    """Fold names for a message; texts that are not node names are listed.

    >>> shown(["gpu02", "gpu01"]), shown(["gpu[01", "a"]), shown([])
    ('gpu[01-02]', 'a, gpu[01', 'none')
    """
    names = list(nodes)
    try:
        return fold(names) or none
    except ValueError:
        return ", ".join(sorted(names))


def is_name(text: str) -> bool:
    """Return whether a text may be a node name: it becomes part of commands, file names and reports."""
    return len(text) <= MAX_NAME and _NAME.fullmatch(text) is not None


def _span(hostlist: str) -> int:
    """Return an upper bound of the named nodes. ClusterShell would build all ranges before it counts."""
    total = 0
    for part in _PART.findall(hostlist):  # gpu[1-8],cpu[1-8] adds up; rack[1-8]gpu[1-8] multiplies
        product = 1
        for bracket in _BRACKET.findall(part):
            ranges = _RANGE.findall(bracket)
            wide = sum(max(0, int(last) - int(first)) for first, last in ranges)
            product *= wide + bracket.count(",") + 1
        total += product
    return total
