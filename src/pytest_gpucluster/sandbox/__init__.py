"""The cluster `sandbox`: slurm-sandbox, the extra `sandbox`, with a cluster file of its own and the simulated burn-in."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import SandboxError
from pytest_gpucluster.core.registry import suites

try:
    from slurm_sandbox import api
except ModuleNotFoundError:
    raise SandboxError(
        "the sandbox is not installed: in a checkout pip install ./slurm-sandbox, else pip install 'pytest-gpucluster[sandbox]'"
    ) from None

from pytest_gpucluster.sandbox import cluster_file
from pytest_gpucluster.sandbox.found_by import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE = Path(__file__).parent


class Sandbox(api.Sandbox):
    """A sandbox that `pytest --cluster=sandbox` tests."""

    command = "gpucluster sandbox"
    variable, folder = "GPUCLUSTER_SANDBOX", "pytest-gpucluster/sandbox"

    def __init__(self, state_dir: Path | None = None) -> None:
        with refused():
            super().__init__(state_dir)

    @property
    def next_step(self) -> str:
        """What a user types when the sandbox is up."""
        # the name stands for the sandbox in the default folder
        cluster = "sandbox" if self.layout.root == Sandbox().layout.root else shlex.quote(str(self.cluster_file))
        conf = shlex.quote(str(self.layout.conf))
        return f"pytest --cluster={cluster}; for Slurm's own commands and init: export SLURM_CONF={conf}"

    @property
    def cluster_file(self) -> Path:
        """The cluster file of the running sandbox."""
        return self.layout.root / "cluster.yaml"

    def status(self) -> dict[str, Any]:
        """Return the state of the sandbox, with its cluster file, as plain data."""
        status = super().status()
        return status | ({"cluster_file": str(self.cluster_file)} if status["running"] else {})

    def fault(self, kind: str, nodes: str, **options: Any) -> tuple[str, ...]:
        """Inject a fault into each node of a hostlist, with the options by which the plugin's checks find it."""
        return super().fault(kind, nodes, **{**OPTIONS.get(kind, {}), **options})

    def equip(self, description: api.Description) -> None:
        """Write the cluster file, and the programs that replace payloads on simulated GPUs."""
        plan = self.cluster_file.with_name(cluster_file.CABLES)
        plan.write_text(cluster_file.cables(description))
        self.cluster_file.write_text(cluster_file.text(self.layout.conf, description, plan))
        if description.healthy is None:
            return
        payloads = {path.name: path.read_text() for path in (_HERE / "payloads").glob("*.py")}
        for suite in suites():
            if program := suite.simulated_payload:
                payloads[f"{suite.name}_payload.py"] = program()
        self.add_tools({path.name: path.read_text() for path in (_HERE / "simbin").iterdir()}, payloads)


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Raise what the sandbox refuses as an error of the plugin, which a run and a command print in one line."""
    try:
        yield
    except api.SandboxError as error:
        raise SandboxError(str(error)) from error
