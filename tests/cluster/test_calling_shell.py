"""Variables of the shell that runs pytest: which are named, where, and beside which findings."""

from __future__ import annotations

import pytest
from plugin_helpers import a_cluster

from pytest_gpucluster.cluster.calling_shell import folded, sentence, unpassed, with_shell
from pytest_gpucluster.config.models import EnvironmentConfig, TransportConfig
from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict
from pytest_gpucluster.kit.mpi.mpi_config import MpiConfig
from pytest_gpucluster.suites.ddp.config import DdpConfig

PLAIN = {"HOME": "/root", "PATH": "/bin", "LANG": "C", "VIRTUAL_ENV": "/v", "SLURM_CONF": "/x", "TERM": "xterm"}
MINE = {
    "RANK": "0",
    "http_proxy": "http://me:secret@proxy",
    "NCCL_DEBUG": "INFO",
    "PYTHONPATH": "/x",
    "ROCR_VISIBLE_DEVICES": "0",
    **{f"SLURM_{name}": "1" for name in ("JOB_ID", "NTASKS", "NNODES", "PROCID")},
}


def test_variables_that_matter_are_named_without_their_values() -> None:
    names = unpassed(a_cluster(), {**PLAIN, **MINE})
    assert names == sorted(MINE)
    assert "sets NCCL_DEBUG, PYTHONPATH, RANK, ROCR_VISIBLE_DEVICES, SLURM_* (4), http_proxy, which" in sentence(names)
    assert "secret" not in sentence(names)
    assert folded(["NCCL_A", "NCCL_B", "NCCL_C"]) == ["NCCL_A", "NCCL_B", "NCCL_C"]
    assert sentence([]) == ""


def test_variables_that_do_not_reach_jobs_or_that_the_cluster_file_passes_are_not_named() -> None:
    assert unpassed(a_cluster(), PLAIN) == []
    named = a_cluster(environments={"x": EnvironmentConfig(pass_env=("RANK", "http_*"))})
    assert unpassed(named, {"RANK": "1", "http_proxy": "x", "NCCL_A": "1"}) == ["NCCL_A"]
    far = a_cluster(transport=TransportConfig(host="login"))
    assert unpassed(far, MINE) == [] == unpassed(a_cluster(access="ssh"), MINE)


@pytest.mark.parametrize(
    ("setting", "own", "explained"),
    [
        ("ddp.environment", "", True),
        ("", "mpi.environment", True),
        ("container.image", "", False),  # not the environment of a step
        ("os.limits", "", False),
        ("", "", False),
        ("nowhere.environment", "", False),
    ],
)
def test_a_finding_about_an_environment_names_its_variables(setting: str, own: str, explained: bool) -> None:
    finding = Finding("package torch", "not installed", "installed", setting=own)
    failed = Verdict("x.y", Outcome.FAILED, (finding,), hint="do", action=Action.CONFIGURE, setting=setting)
    cluster = a_cluster().model_copy(update={"ddp": DdpConfig(), "mpi": MpiConfig()})
    hint = with_shell(failed, cluster, {"PYTHONPATH": "/x", "SLURM_NTASKS": "1"}).hint
    assert ("do. The shell that runs pytest sets PYTHONPATH, which no step gets" in hint) is explained
    assert "SLURM" not in hint
    assert (hint != "do") is explained
    assert with_shell(failed, cluster, PLAIN) == failed
    passed = Verdict("x.y", Outcome.PASSED, setting=setting)
    assert with_shell(passed, cluster, MINE) == passed
