"""What a run of chaos.py tests; the kinds `training` and `intrusive` end suites of the product while they hold something.

`training` writes a checkpoint into a shared folder, `intrusive` submits jobs of its own beside its allocation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pytest_gpucluster.sandbox import Sandbox

PYTHON = Path(__file__).parent.parent / ".cache" / "frameworks" / "bin" / "python"  # has torch
# kind: its suite, and the tests of it that run; all of them are about all nodes
SUITES = {
    "training": ("training.test_training", ("test_together", "test_checkpoint")),
    "intrusive": ("controller.test_controller", ("test_hold", "test_singleton", "test_burst")),
}
FILE = """
from pytest_gpucluster.suites.{suite} import *
for name in [name for name in globals() if name.startswith("test_") and name not in {tests}]:
    del globals()[name]
"""


@dataclass(frozen=True)
class Plan:
    """The files, cluster file and options of a run. `faulty`: one of its nodes must fail. `shared`: its checkpoints."""

    files: Path
    cluster_file: Path
    items: int
    options: tuple[str, ...] = ()
    faulty: bool = False
    shared: Path | None = None
    patience: float = 240.0  # seconds that an undisturbed run takes at most

    def left(self) -> list[str]:
        """Return the checkpoints that are left."""
        return [f"checkpoint {path}" for path in self.shared.iterdir()] if self.shared else []


# smaller figures than those of the suites, so that a run is short
CONSTANTS = """
import pkgutil
for section, values in {constants!r}.items():
    for name, value in values.items():
        setattr(pkgutil.resolve_name("pytest_gpucluster.suites." + section), name, value)
"""


def plan(kind: str, folder: Path, sandbox: Sandbox, witness: str) -> Plan:
    """Write the files of a run of this kind."""
    suite, tests = SUITES[kind]
    files = folder / "suite"
    files.mkdir()
    (files / f"test_{kind}_suite.py").write_text(FILE.format(suite=suite, tests=tests))
    keys: dict[str, Any] = yaml.safe_load(sandbox.cluster_file.read_text())
    shared = None
    if kind == "training":
        if not PYTHON.exists():
            raise SystemExit(f"{PYTHON} is missing: make .cache/frameworks/.ready")
        shared = folder / "shared"
        shared.mkdir()
        constants = {"training.config.TrainingConfig": {"steps": 4, "warmup": 1, "checkpoint_size": 64 << 20}}
        exports = {"OMP_NUM_THREADS": "1"}
        keys["environments"] = {"frameworks": {"python": str(PYTHON), "exports": exports}}
        keys |= {"nodes": "gpu[01-02]", "training": {"environment": "frameworks", "checkpoint": str(shared)}}
    else:
        constants = {"controller.config.ControllerConfig": {"submissions": 40, "burst_time": 60}}
    (files / "conftest.py").write_text(f"{witness}\n{CONSTANTS.format(constants=constants)}")
    path = folder / "cluster.yaml"
    path.write_text(json.dumps(keys))  # JSON is YAML
    return Plan(files, path, len(tests), ("--intrusive",) * (kind == "intrusive"), shared=shared)
