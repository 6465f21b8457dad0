"""What a run of chaos.py tests; the kinds `training` and `jobs` end suites of the product while they hold something.

`training` writes a checkpoint into a shared folder, `jobs` submits jobs before its allocation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pytest_gpucluster.sandbox import Sandbox

PYTHON = Path(__file__).parent.parent / ".cache" / "frameworks" / "bin" / "python"  # has torch
# kind: its suite, and the tests of it that run; all of them are about all nodes
SUITES = {
    "training": ("training", ("test_together", "test_checkpoint")),
    "jobs": ("slurm", ("test_array", "test_dependency", "test_begin")),
}


CONSTANTS = """
import pkgutil
for section, values in {constants!r}.items():
    for name, value in values.items():
        setattr(pkgutil.resolve_name("pytest_gpucluster.suites." + section), name, value)
"""


@dataclass(frozen=True)
class Plan:
    """The paths or ids, cluster file and options of a run.

    `constants`: smaller figures than those of the suites, so that it is short: {class: {name: value}}. `faulty`: one of its nodes must fail. `shared`: its checkpoints.
    """

    ids: tuple[str, ...]
    cluster_file: Path
    items: int
    options: tuple[str, ...] = ()
    constants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    faulty: bool = False
    shared: Path | None = None
    patience: float = 240.0  # seconds that an undisturbed run takes at most

    def plugin(self) -> str:
        """Return code that sets the constants."""
        return CONSTANTS.format(constants=self.constants)

    def left(self) -> list[str]:
        """Return the checkpoints that are left."""
        return [f"checkpoint {path}" for path in self.shared.iterdir()] if self.shared else []


def plan(kind: str, folder: Path, sandbox: Sandbox) -> Plan:
    """Write the cluster file of a run of this kind."""
    suite, tests = SUITES[kind]
    keys: dict[str, Any] = yaml.safe_load(sandbox.cluster_file.read_text())
    shared, constants = None, dict[str, Mapping[str, Any]]()
    if kind == "training":
        if not PYTHON.exists():
            raise SystemExit(f"{PYTHON} is missing: make .cache/frameworks/.ready")
        shared = folder / "shared"
        shared.mkdir()
        constants |= {"training.config.TrainingConfig": {"steps": 4, "warmup": 1, "checkpoint_size": 64 << 20}}
        exports = {"OMP_NUM_THREADS": "1"}
        keys["environments"] = {"frameworks": {"python": str(PYTHON), "exports": exports}}
        keys |= {"nodes": "gpu[01-02]", "training": {"environment": "frameworks", "checkpoint": str(shared)}}
    path = folder / "cluster.yaml"
    path.write_text(json.dumps(keys))  # JSON is YAML
    ids = tuple(f"suites/{suite}/test_{suite}.py::{name}" for name in tests)
    return Plan(ids, path, len(tests), constants=constants, shared=shared)
