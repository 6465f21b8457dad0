"""The quick set of evidence, taken by a gate before it takes its node out of service.

A folder that outlives a reboot has it: one for each check that failed, read again once a day at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.core.probe import Answer, with_root
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.core.text import count
from pytest_gpucluster.evidence.capture import Capture, read_capture, stored
from pytest_gpucluster.evidence.tools import QUICK, command_for, file_name
from pytest_gpucluster.report.machine.atomic_write import write_whole
from pytest_gpucluster.report.run_model import EVIDENCE

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.transport.base import Transport
    from pytest_gpucluster.gate.gate import GateResult

LASTING = Path("/var/log/gpucluster")  # of root
AGAIN = 86_400.0  # seconds


def keep(found: GateResult, transport: Transport, folder: Path | None, *, sudo: bool) -> str:
    """Read and store the evidence of the repairs; return what happened, for people. It never fails a gate.

    `folder`: that of the gate, if one was named.
    """
    root = folder or (LASTING if os.geteuid() == 0 and not found.simulated else None)
    if root is None or not found.repairs:
        return ""
    name = file_name(f"{found.node}-{found.repairs[0][0].check}")
    place = root / EVIDENCE / name
    with contextlib.suppress(OSError):
        if time.time() - place.stat().st_mtime < AGAIN:
            return f"evidence: {place}, of an earlier gate"
    try:
        capture = _capture(found, transport, sudo=sudo)
        fields = stored(capture._replace(node=name), root)
        about = {**fields, "node": found.node, "findings": [it.as_dict() for _, it in found.repairs]}
        write_whole(place / "capture.json", json.dumps(about, indent=1).encode())
    except Exception as error:  # noqa: BLE001 - a gate judges its node, whatever becomes of the evidence
        return f"evidence: not stored: {one_line(error)}"
    return f"evidence: {place}: {count(len(fields['files']), 'file')}"


def _capture(found: GateResult, transport: Transport, *, sudo: bool) -> Capture:
    mark = secrets.token_hex(12)
    command = command_for([finding.part.exchanged for _, finding in found.repairs], mark, full=False)
    done = transport.run(["sh", "-c", with_root(command) if sudo else command], timeout=QUICK + 3.0)
    return read_capture(Answer(found.node, done.rc, done.stdout.encode(), done.stderr.encode()), mark)
