"""Failures that nccl-tests and the payload of torch.distributed print. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucluster.kit.mpi import mpi_errors
from pytest_gpucluster.kit.mpi.mpi_errors import DUPLICATE, LaunchFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

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


# The payload's line about a failed rank. The other ranks then fail to connect, which is no cause of its own.
_RANK_FAILED = re.compile(
    r"collective: (?P<rank>rank \d+) on (?P<host>\S+)(?P<gpu> \(GPU \S+\))?: (?P<what>.*)"
)
_SILENT = "no sign of life"
_CONSEQUENCE = re.compile(
    r"never came to the rendezvous|rendezvous unreachable|[Cc]onnection (?:closed|reset|refused)"
)


def _rank_failure(match: re.Match[str]) -> LaunchFailure:
    text = f"{match['rank']}{match['gpu'] or ''}: {match['what']}"
    kind, hint = "a rank failed", "check dmesg and nvidia-smi of the node"
    if _CONSEQUENCE.search(match["what"]):
        kind, hint = "relayed", "another rank failed first"
    elif known := mpi_errors.explain(match["what"]):
        kind, hint = known[0].kind, known[0].hint
    return LaunchFailure(kind, match["host"], text, hint, match["what"])


def merge_ranks(failures: Sequence[LaunchFailure]) -> list[LaunchFailure]:
    """Return one failure per kind and text; shared GPUs are left out, since mpi_errors reports them for all ranks."""
    # the deadlines of the other ranks follow from it
    if any(_SILENT in failure.text for failure in failures):
        failures = [failure for failure in failures if failure.kind != "timeout"]
    found: dict[tuple[str, str], LaunchFailure] = {}
    for failure in failures:
        found.setdefault((failure.kind, failure.what or failure.text), failure)
    return [failure for failure in found.values() if not (failure.what and failure.kind == DUPLICATE)]


def read_failure(line: str) -> LaunchFailure | None:
    """Return the failure that a line reports, None if it reports none."""
    if ranks := _RANK_FAILED.search(line[:_MAX_LINE]):
        return _rank_failure(ranks)
    for kind, pattern, hint in _FAILURES:
        match = pattern.search(line[:_MAX_LINE])
        if match:
            return LaunchFailure(kind, match["host"], line[match.start() :].strip(), hint)
    return None
