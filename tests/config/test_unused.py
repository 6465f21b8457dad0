"""Names that nothing uses, keys without effect and empty values of a cluster file: warnings with file and line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def warnings_of(folder: Path, text: str) -> list[str]:
    path = folder / "lab.yaml"
    path.write_text(text)
    return [line.removeprefix(f"{path}:") for line in load_cluster(path).warnings]


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("environments: {torch: {python: /p}}", "2: environments.torch", "no section uses this environment"),
        (
            "environments: {default: {container_mounts: [/a:/a]}}",
            "2: environments.default.container_mounts",
            "no effect",
        ),
        ("environments: {default: {exports: {A: ''}}}", "2: environments.default.exports.A", "is empty"),
        ("environments: {default: {}}", "2: environments.default", "is empty"),
        ("os: {packages: {}}", "2: os.packages", "is empty"),
        ("transport: {}", "2: transport", "is empty"),
        ("access: ssh\nslurm: {qos: high}", "3: slurm.qos", "no effect with 'access: ssh'"),
        ("ssh: {user: ada}", "2: ssh", "no effect without 'access: ssh'"),
        (
            "thresholds: [{nodes: 3, size: 1G, busbw: 1 GB/s, source: x}]",
            "2: thresholds[0].nodes",
            "the row is for 3 nodes, and the cluster has 2",
        ),
    ],
)
def test_value_without_effect_is_one_warning(tmp_path: Path, text: str, line: str, why: str) -> None:
    (found,) = warnings_of(tmp_path, f"nodes: 'n[1-2]'\n{text}\n")
    assert found.startswith(f"{line}: ")
    assert why in found


@pytest.mark.parametrize(
    "text",
    [
        "environments: {default: {python: /p}}",
        "environments: {torch: {python: /p}}\nmatrix: {framework: torch}",
        "environments: {torch: {python: /p}}\nsuites: [own]",
        "nccl: {}\nray: {}",  # a section without keys enables its suite
        "monitoring: {grafana: null, ignored_alerts: []}",  # replaces a default that is not empty
        "accounting: {qos: {normal: {preempt: []}}}",  # none, where no key states nothing
        "os: {packages: {munge: ''}}",  # any version
        "slurm: {partition: a}\nlimits: {b: {max_nodes: 2}}",  # slurm.limits judges every partition that is named
        "environments: {default: {python: /p}}\nnccl: {environment: none}",
    ],
)
def test_used_and_meant_values_are_no_warning(tmp_path: Path, text: str) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/test_own.py").write_text(
        "def test_it(gpucluster_srun): gpucluster_srun(['true'], environment='torch')\n"
    )
    assert warnings_of(tmp_path, f"nodes: 'n[1-2]'\n{text}\n") == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mpi:", "2: mpi: has no value, so the suite stays off: write `mpi: {}`, or remove the key"),
        ("environments: {none: {}}", "2: environments: the name 'none' means no environment: use another name"),
        ("ray: {environment: x}", "2: ray.environment: no environment is called 'x'; there are: none"),
    ],
)
def test_value_that_hides_its_meaning_is_an_error(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        warnings_of(tmp_path, f"nodes: n1\n{text}\n")
    assert str(caught.value).endswith(problem)
