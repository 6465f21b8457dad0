"""The reason of a drained node: `gpucluster:CHECK measured<expected unit [also=CHECK,...] repair=ACTION run=ID sum=CRC`. Pure.

The check comes first, since `sinfo -R` shows about 20 characters. Each part may come from a broken node and is reduced to
harmless characters, the whole to one line. `sum` is the CRC-32 of the node's name and the text before it: an edited
reason, or one copied to another node, is no longer recognised. Reasons of earlier versions have no `repair`.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pytest_gpucluster.core.finding import Quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpucluster.core.finding import Finding

PREFIX = "gpucluster:"
SILENT = "Not responding"  # slurmctld's reason for a node whose slurmd does not respond
LIMIT = 255  # slurmdbd stores a node's reason as TINYTEXT (as_mysql_cluster.c); slurmctld itself sets no limit
PART = 40  # of the part, of what was measured, and of what was expected
DETAIL = 2 * PART + 4  # of all three

_NAME = "[A-Za-z0-9_.-]+"
_REASON = re.compile(
    # no '=' in the measured value, except in '!=': deviation()
    rf"(?P<text>gpucluster:(?P<check>{_NAME}) (?P<detail>(?:[ -<>-~]|!=)+?)"
    rf"(?: also=(?P<also>\*|{_NAME}(?:\.\*)?(?:,{_NAME}(?:\.\*)?)*))?(?: repair=(?P<repair>[a-z-]+))? run=(?P<run>{_NAME})) sum=(?P<sum>[0-9a-f]{{8}})"
)
# slurmctld appends these since 23.02 to the reason of a node that does not respond or reboots, as during a repair
# (node_mgr.c, set_node_reason). Its text about hardware below the configuration is not accepted here.
_AWAY = re.compile(r"(?: : (?:Not responding|reboot issued|reboot complete|reboot timed out|ResumeTimeout reached))+\Z")
FEW = 4  # digits of a fraction: 17.45<49 TFLOP/s
DIGITS = 13  # of a number, like the bytes of a node's memory; they hold the whole below LIMIT, whatever a node reports


@dataclass(frozen=True)
class DrainReason:
    """A parsed reason. `checks`: all checks that drained the node, with patterns like 'gpu.*'. `repair`: like reset-gpu."""

    checks: tuple[str, ...]
    detail: str
    run: str
    repair: str = ""

    def concerns(self, check: str) -> bool:
        """Return whether a check drained the node."""
        return any(fnmatchcase(check, pattern) for pattern in self.checks)


def write_reason(node: str, checks: Sequence[str], finding: Finding, run: str, *, repair: str = "") -> str:
    """Return the reason for a node that failed these checks; `finding` and `repair` are of the first."""
    first, *others = dict.fromkeys(_name(check) for check in checks)
    tail = f" repair={repair.replace(' ', '-')}" if repair else ""
    tail += f" run={_name(run)[:48]}"
    start = f"{PREFIX}{first[: 56 if repair else 80]} {deviation(finding)}"
    room = LIMIT - len(start + tail + _sum(node, ""))
    also = next(text for text in _also(others) if len(text) <= room)
    text = start + also + tail
    return text + _sum(node, text)


def read_reason(node: str, text: str) -> DrainReason | None:
    """Parse a reason that write_reason() made for this node; None for any other text, also for an edited reason.

    Slurm's own text about a node that did not respond or rebooted may follow it.
    """
    match = _REASON.fullmatch(bare(text))
    if match is None or _sum(node, match["text"]) != f" sum={match['sum']}":
        return None
    also = match["also"].split(",") if match["also"] else ()
    return DrainReason((match["check"], *also), match["detail"], match["run"], match["repair"] or "")


def bare(text: str) -> str:
    """Return a reason without Slurm's additions for a node that did not respond or rebooted."""
    return _AWAY.sub("", text)


def deviation(finding: Finding) -> str:
    """Return 'part: measured<expected unit'; 'part: measured!=expected' unless both are numbers.

    The part (GPUs, mount, ...) replaces a missing unit.

    >>> from pytest_gpucluster.core.finding import Finding
    >>> deviation(Finding("GPUs", Quantity(7), Quantity(8)))
    '7<8 GPUs'
    >>> deviation(Finding("GPU 3", "535.1.2", "550.90"))
    'GPU 3: 535.1.2!=550.90'
    """
    part = _plain(finding.part.short)
    text = _compared(finding, part)
    named = f"{part}: {text}" if part and not text.endswith(f" {part}") else text
    return named if len(named) <= DETAIL else f"{named[: DETAIL - 3]}..."


def _compared(finding: Finding, part: str) -> str:
    first, second = finding.measured, finding.expected
    if not isinstance(first, Quantity) or not isinstance(second, Quantity):
        return f"{_plain(str(first))}!={_plain(str(second))}"
    unit = _plain(second.unit or first.unit) or part
    if first.number == second.number:
        return f"{_number(first.number)} {unit}".rstrip() + ", at the bound"
    found, bound = _number(first.number, FEW), _number(second.number, FEW)
    if found == bound:
        found, bound = _number(first.number), _number(second.number)
    sign = {"=": "!="}.get(finding.relation, finding.relation)  # NaN is neither below nor above
    return f"{found}{sign}{bound} {unit}".rstrip()


def _number(number: float, digits: int = DIGITS) -> str:
    return f"{number:.{DIGITS if float(number).is_integer() else digits}g}"


def _also(others: Sequence[str]) -> Iterable[str]:
    """Yield texts that name the further checks, from exact to short: a shorter one names more, never fewer."""
    if not others:
        yield ""
    yield " also=" + ",".join(others)
    yield " also=" + ",".join(dict.fromkeys(f"{check.partition('.')[0]}.*" for check in others))
    yield " also=*"


def _sum(node: str, text: str) -> str:
    return f" sum={zlib.crc32(f'{node} {text}'.encode()):08x}"


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text) or "_"


def _plain(text: str) -> str:
    """Return printable ASCII without characters that are special to Slurm, a shell or read_reason()."""
    plain = re.sub(r"[^ -~]", "?", " ".join(text.split()))
    plain = plain.translate(str.maketrans("=[]", ":()", "\"'`\\|$"))
    return plain if len(plain) <= PART else plain[: PART - 3] + "..."
