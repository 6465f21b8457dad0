"""Failures that nccl-tests and the payload of torch.distributed print. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import safe_json
from pytest_gpucluster.kit.mpi import mpi_errors
from pytest_gpucluster.kit.mpi.mpi_errors import DUPLICATE, LaunchFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_LINE = 2048  # characters of a line that is not a row: the patterns take quadratic time
# After an unfinished row the host must start with a letter: '0node7:' is host node7.
_HOST = r"(?P<host>[A-Za-z][\w.-]*|(?<![\w.-])[\w.-]+)"
_FAILURES = (
    ("NCCL", re.compile(rf"{_HOST}: Test NCCL failure "),
     "see the log before it; set NCCL_DEBUG=INFO and repeat"),
    ("CUDA", re.compile(rf"{_HOST}: Test CUDA failure "),
     "search the kernel log of the host for Xids (dmesg | grep -i xid)"),
    ("NCCL", re.compile(r"^(?P<host>)NCCL failure "),  # 1.x
     "see the log before it; set NCCL_DEBUG=INFO and repeat"),
    ("CUDA", re.compile(r"^(?P<host>)Cuda failure "),  # 1.x
     "search the kernel log of the host for Xids (dmesg | grep -i xid)"),
    ("timeout", re.compile(rf"{_HOST}: Test timeout \(\d+s\)"),
     "a rank hangs: test the nodes alone, then in pairs"),
    ("relayed", re.compile(r" ?\.\. (?P<host>\S+) pid \d+: Test failure "),
     "the failure before it is the cause"),
    ("too few GPUs", re.compile(r"(?P<host>)Invalid number of GPUs: \d+ requested but only \d+ were found"),
     "request the GPUs for the step (--gpus-per-node), or start fewer processes or threads per node"),
    ("usage", re.compile(r"(?P<host>)(?:invalid (?:option|sizes?|type|op)\b|USAGE: )"),
     "this version does not support the option or value; it prints the usage and exits 0"),
    ("NCCL", re.compile(r"(?P<host>)(?:NCCL 2\.7 or later is needed for |Incompatible NCCL versions)"),
     "rebuild nccl-tests against the NCCL that is loaded"),
)  # fmt: skip


_ROW = '{"collective": "failed", '  # how the row of a failed rank begins, see kit/payloads/rendezvous.py
# what torch prints on a rank whose peer has failed
_CONSEQUENCE = re.compile(r"[Cc]onnection (?:closed|reset|refused)")


@dataclass(frozen=True)
class RankFailures:
    """The failed ranks of the payload. `rest`: the text without their rows; `shown`: with their text instead, for quotations."""

    failures: tuple[LaunchFailure, ...]
    low_limits: bool
    rest: str
    shown: str


def rank_failures(text: str) -> RankFailures:
    """Return the rows of failed ranks in a payload's output; a row that is cut stays in the rest."""
    failures, rest, shown, limited = [], [], [], False
    for line in text.split("\n"):
        before, row, after = line.partition(_ROW)
        try:
            failure = _rank_failure(safe_json.loads(row + after)) if row else None
        except (ValueError, KeyError, TypeError):
            failure = None
        rest.append(line if failure is None else before)
        shown.append(line if failure is None else f"{before}{failure.text}")
        if failure:
            failures.append(failure)
            limited = limited or safe_json.loads(row + after).get("low_limits") is True
    return RankFailures(tuple(failures), limited, "\n".join(rest), "\n".join(shown))


def _rank_failure(row: Mapping[str, Any]) -> LaunchFailure:
    code, what, rank = str(row["code"]), str(row["text"])[:_MAX_LINE], row["rank"]
    gpu = f" (GPU {row['gpu']})" if row["gpu"] else ""
    text = f"{'no rank' if rank is None else f'rank {rank}'}{gpu}: {what}"
    kind, hint = "a rank failed", "check dmesg and nvidia-smi of the node"
    if code == "rendezvous" or _CONSEQUENCE.search(what):
        kind, hint = "relayed", "another rank failed first"
    elif known := mpi_errors.explain(what, low_limits=row["low_limits"] is True):
        kind, hint = known[0].kind, known[0].hint
    else:
        own = {mpi_errors.code_of_kind(it[0]): it for it in mpi_errors.OF_PAYLOADS.items()}
        kind, hint = own.get(code, (kind, hint))
    return LaunchFailure(kind, str(row["node"]), text, hint, what, silent=code == "silent")


def merge_ranks(failures: Sequence[LaunchFailure]) -> list[LaunchFailure]:
    """Return one failure per kind and text; shared GPUs are left out, since mpi_errors reports them for all ranks."""
    # the deadlines of the other ranks follow from it
    if any(failure.silent for failure in failures):
        failures = [failure for failure in failures if failure.kind != "timeout"]
    found: dict[tuple[str, str], LaunchFailure] = {}
    for failure in failures:
        found.setdefault((failure.kind, failure.what or failure.text), failure)
    return [failure for failure in found.values() if not (failure.what and failure.kind == DUPLICATE)]


def read_failure(line: str) -> LaunchFailure | None:
    """Return the failure that a line reports, None if it reports none."""
    for kind, pattern, hint in _FAILURES:
        match = pattern.search(line[:_MAX_LINE])
        if match:
            return LaunchFailure(kind, match["host"], line[match.start() :].strip(), hint)
    return None
