"""State and version of nvidia-fabricmanager, the service that configures NVSwitches."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.probe import Answer, Probe, last_line

_STATES = ("active", "inactive", "failed", "activating", "deactivating", "reloading", "maintenance", "unknown")


@dataclass(frozen=True)
class FabricManager:
    """`state` as `systemctl is-active` prints it; `version` None if unknown."""

    state: str
    version: str | None

    @property
    def versions(self) -> dict[str, str]:
        """{"fabric manager": its version}."""
        return {"fabric manager": self.version} if self.version else {}


def parse(answer: Answer) -> FabricManager:
    """Return state and version; NotAvailable if systemd does not answer, as in a container."""
    lines = dict(line.split(" ", 1) for line in answer.out.splitlines() if " " in line)
    state = lines.get("state", "").strip()
    if state not in _STATES:
        raise NotAvailable(f"systemctl is-active nvidia-fabricmanager: {state or last_line(answer.err) or 'no answer'}")
    match = re.search(r"version is\s*:\s*(\d[\d.]*)", lines.get("version", ""))
    return FabricManager(state, match[1] if match else None)


FABRIC_MANAGER = Probe(
    "fabric manager",
    "state=$(systemctl is-active nvidia-fabricmanager 2>&1); version=$(nv-fabricmanager --version 2>&1); "
    'last() { echo "$1 ${2##*\'\n\'}"; }; last state "$state"; last version "$version"',
    parse,
    by_hand="systemctl status nvidia-fabricmanager",
)
