"""Restarts at the start of a node, soft taints, rejected pods, and conditions of the provider's agents."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.config.models import GpuProfile, Profile
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.suites.kubernetes import checks
from pytest_gpucluster.suites.kubernetes.config import KubernetesConfig
from pytest_gpucluster.suites.kubernetes.facts import Condition, Container, KubeFacts, KubeNode, Pod, Taint

NOW = 100_000.0
KIND = {"description": "a node", "source": "made up"}
WITHOUT = Profile.model_validate({"name": "plain", **KIND})
WITH_ADAPTERS = Profile.model_validate(
    {"name": "roce", **KIND, "fabric": {"hcas": 8, "link_layer": "Ethernet"}}
)
CONFIG = KubernetesConfig()
GPUS = GpuProfile(count=8, name="NVIDIA H100 80GB HBM3")
GPU = {"nvidia.com/gpu": "8"}


def node(*, since: float | None = None, **facts: Any) -> KubeNode:
    conditions = {"Ready": Condition("True", since=since)} | facts.pop("conditions", {})
    return KubeNode("gpu01", conditions=conditions, **{"capacity": GPU, "allocatable": GPU, **facts})


def lacking(name: str, offered: str, **facts: Any) -> KubeNode:
    return node(capacity={name: offered}, allocatable={name: offered}, **facts)


def operator_pod(*, ended: float, ready: bool = True, started: float = 0.0) -> Pod:
    container = Container("exporter", ready, restarts=3, ended=ended)
    return Pod("exporter-x", "gpu", "gpu01", "Running", "nvidia-dcgm-exporter", {}, (container,), "", started)


@pytest.mark.parametrize(
    ("since", "started", "ended", "ready", "outcome"),
    [
        (None, NOW - 2400, NOW - 2000, True, Outcome.PASSED),  # while the pod started
        (NOW - 900, NOW - 90_000, NOW - 800, True, Outcome.PASSED),  # after a restart of the node
        (NOW - 900, NOW - 90_000, NOW - 800, False, Outcome.FAILED),
        (NOW - 9000, NOW - 90_000, NOW - 800, True, Outcome.FAILED),  # long after both
        (None, 0.0, NOW - 800, True, Outcome.FAILED),  # no time is known
    ],
)
def test_restart_while_pod_or_node_starts_is_a_warning(
    since: float | None, started: float, ended: float, ready: bool, outcome: Outcome
) -> None:
    pod = operator_pod(ended=ended, ready=ready, started=started)
    found = checks.gpu_operator(node(since=since), (pod,), KubeFacts(now=NOW), CONFIG)
    assert found.outcome is outcome
    assert bool(found.advisories) is (outcome is Outcome.PASSED)


def test_what_must_be_equal_on_all_nodes() -> None:
    one = node(kernel="6.8", runtime="containerd", kubelet="v1.35.1", os="Ubuntu")
    assert list(checks.software_of(one).values()) == ["6.8", "containerd", "v1.35.1", "Ubuntu"]


@pytest.mark.parametrize(("effect", "outcome"), [("NoSchedule", "failed"), ("PreferNoSchedule", "passed")])
def test_soft_taint_is_a_warning(effect: str, outcome: str) -> None:
    taint = Taint("DeletionCandidateOfClusterAutoscaler", "1782838000", effect)
    found = checks.taints(node(taints=(taint,)), KubeFacts(), CONFIG)
    assert found.outcome.value == outcome
    assert len(found.findings) + len(found.advisories) == 1


EARLY = "UnexpectedAdmissionError: Allocate failed due to no healthy devices present"
LOST = "UnexpectedAdmissionError: nvml: GPU is lost, which is unexpected"


@pytest.mark.parametrize(
    ("reason", "age", "allocatable", "outcome"),
    [
        (EARLY, 60, "8", "passed"),
        (EARLY, 60, "7", "failed"),
        (LOST, 60, "8", "failed"),
        (LOST, 7200, "8", "passed"),
    ],
)
def test_rejected_pod_fails_while_it_shows_the_state_of_the_node(
    reason: str, age: float, allocatable: str, outcome: str
) -> None:
    pod = Pod("x", "default", "gpu01", "Failed", gpus={"nvidia.com/gpu": 1}, reason=reason, started=NOW - age)
    seen = KubeFacts(now=NOW)
    found = checks.allocated(node(allocatable={"nvidia.com/gpu": allocatable}), (pod,), seen, CONFIG)
    assert found.outcome.value == outcome
    assert len(found.findings) + len(found.advisories) + len(found.remarks) == 1


AGENTS = (
    "FrequentContainerdRestart FrequentKubeletRestart GPUClockThrottling IBLinkFlapping KernelDeadlock "
    "ReadonlyFilesystem VMEventScheduled XIDError"
)


@pytest.mark.parametrize(
    ("name", "status", "reason", "outcome", "shown"),
    [
        ("GPUMissing", "True", "GPUMissing", "failed", 1),
        ("GPUMissing", "Unknown", "", "passed", 0),
        ("AcceleratedHardwareReady", "False", "NvidiaDeviceCountMismatch", "failed", 1),
        ("AcceleratedHardwareReady", "False", "DCGMError", "passed", 1),
        ("KernelReady", "False", "SoftLockup", "passed", 1),
        ("XIDErrors", "True", "XIDErrors", "passed", 1),
        ("DeprecatedPullingSchemaV1Image", "True", "", "passed", 0),
        *(
            (f"{name}Ready", "False", "x", "passed", 1)
            for name in ("ContainerRuntime", "Networking", "Storage")
        ),
        *((name, "True", "x", "passed", 1) for name in AGENTS.split()),
    ],
)
def test_condition_of_an_agent(name: str, status: str, reason: str, outcome: str, shown: int) -> None:
    found = checks.ready(node(conditions={name: Condition(status, reason)}), KubeFacts())
    assert found.outcome.value == outcome
    assert len(found.findings) + len(found.advisories) == shown


@pytest.mark.parametrize(
    ("labels", "capacity", "count"),
    [
        ({}, {"nvidia.com/gpu": "8"}, 1),
        ({"nvidia.com/gpu.replicas": "0"}, {"nvidia.com/gpu": "8"}, 1),
        ({"nvidia.com/gpu.replicas": "4"}, {"nvidia.com/gpu": "32"}, 4),
        ({"nvidia.com/gpu.replicas": "4"}, {"nvidia.com/gpu.shared": "32"}, 4),
        ({"nvidia.com/gpu.replicas": "1"}, {"nvidia.com/gpu.shared": "32"}, None),
        ({checks.GKE_SHARES: "6"}, {"nvidia.com/gpu": "48"}, 6),
    ],
)
def test_replicas_of_a_gpu(labels: dict[str, str], capacity: dict[str, str], count: int | None) -> None:
    assert checks.replicas(node(labels=labels, capacity=capacity), "nvidia.com/gpu") == count


@pytest.mark.parametrize(
    ("mig", "outcome"), [(False, "failed"), (None, "not checked"), (True, "not checked")]
)
def test_mig_devices_fail_only_if_the_profile_excludes_them(mig: bool | None, outcome: str) -> None:
    both = {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "56", "nvidia.com/mig-3g.40gb": "0"}
    profile = GPUS.model_copy(update={"mig": mig})
    found = checks.gpus(node(capacity=both, allocatable=both), (), KubeFacts(), CONFIG, profile)
    assert found.outcome.value == outcome


def test_resources_of_an_earlier_partition_are_no_mig_devices() -> None:
    both = {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "0"}
    profile = GPUS.model_copy(update={"mig": False})
    found = checks.gpus(node(capacity=both, allocatable=both), (), KubeFacts(), CONFIG, profile)
    assert found.outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("created", "since", "outcome"),
    [
        (NOW - 60, None, "not checked"),  # it has just joined
        (NOW - 9000, NOW - 60, "not checked"),  # it was restarted
        (NOW - 9000, NOW - 900, "failed"),
        (0.0, None, "failed"),  # no time is known
    ],
)
def test_node_without_gpus_is_not_checked_soon_after_its_start(
    created: float, since: float | None, outcome: str
) -> None:
    for resources in ({}, {"nvidia.com/gpu": "0"}):
        young = node(created=created, since=since, capacity=resources, allocatable=resources)
        found = checks.gpus(young, (), KubeFacts(now=NOW), CONFIG, GPUS)
        assert found.outcome.value == outcome
    seven = lacking("nvidia.com/gpu", "7", created=created, since=since)
    assert checks.gpus(seven, (), KubeFacts(now=NOW), CONFIG, GPUS).outcome is Outcome.FAILED


RESOURCE = "rdma/hca_shared_devices_a"


@pytest.mark.parametrize(
    ("capacity", "allocatable", "created", "outcome"),
    [
        ("1k", "1k", 0.0, "passed"),
        ("1k", "999", 0.0, "failed"),
        ("0", "0", 0.0, "failed"),
        ("0", "0", NOW - 60, "not checked"),
        ("500", "500", NOW - 60, "failed"),
    ],
)
def test_devices_for_rdma_must_be_as_on_the_other_nodes(
    capacity: str, allocatable: str, created: float, outcome: str
) -> None:
    mine = node(capacity={RESOURCE: capacity}, allocatable={RESOURCE: allocatable}, created=created)
    usual = {RESOURCE: norm([("gpu01", capacity), ("gpu02", "1k"), ("gpu03", "1k")])}
    assert checks.rdma(mine, KubeFacts(now=NOW), usual, WITH_ADAPTERS).outcome.value == outcome


def test_node_without_the_resource_of_the_others_fails() -> None:
    usual = {"vpc.amazonaws.com/efa": norm([("gpu01", "0"), ("gpu02", "4"), ("gpu03", "4")])}
    assert checks.rdma(node(), KubeFacts(now=NOW), usual, WITH_ADAPTERS).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("profile", "outcome"), [(WITH_ADAPTERS, Outcome.NOT_CHECKED), (WITHOUT, Outcome.NOT_APPLICABLE)]
)
def test_what_is_not_installed_is_not_applicable_only_where_the_profile_has_no_adapters(
    profile: Profile, outcome: Outcome
) -> None:
    assert checks.rdma(node(), KubeFacts(now=NOW), {}, profile).outcome is outcome
    assert checks.network_operator(node(), (), KubeFacts(now=NOW), CONFIG, profile).outcome is outcome


@pytest.mark.parametrize(
    ("label", "value", "outcome"),
    [
        ("nvidia.com/mig.config.state", "failed", "failed"),
        ("nvidia.com/mig.config.state", "success", "passed"),
        ("nvidia.com/gpu-driver-upgrade-state", "upgrade-failed", "failed"),
        ("nvidia.com/gpu-driver-upgrade-state", "upgrade-done", "passed"),
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB-MIG-INVALID", "failed"),
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "passed"),
    ],
)
def test_label_of_an_operator_that_failed(label: str, value: str, outcome: str) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", label: value}
    profile = GPUS.model_copy(update={"name": "NVIDIA A100-SXM4-80GB"})
    assert checks.labels(node(labels=labels), KubeFacts(), CONFIG, profile, {}).outcome.value == outcome


def test_restart_after_the_newest_heartbeat_is_shown_as_of_now() -> None:
    found = checks.gpu_operator(node(), (operator_pod(ended=NOW + 90),), KubeFacts(now=NOW), CONFIG)
    assert "restarted 0 s ago" in found.findings[0].measured


@pytest.mark.parametrize("taint", ["sku=gpu:NoSchedule", "nvidia.com/gpu=present:NoSchedule"])
def test_taints_that_providers_set_on_gpu_nodes_are_expected(taint: str) -> None:
    key, _, rest = taint.partition("=")
    value, _, effect = rest.partition(":")
    found = checks.taints(node(taints=(Taint(key, value, effect),)), KubeFacts(), CONFIG)
    assert found.outcome is Outcome.PASSED


@pytest.mark.parametrize("problem", ["", "HTTP 403: nodes is forbidden"])
def test_a_node_that_was_not_read_proves_no_gpu(problem: str) -> None:
    seen = KubeFacts(now=NOW, nodes_problem=problem)
    found = checks.gpus(None, (), seen, CONFIG, GPUS)
    assert found.outcome is Outcome.NOT_CHECKED
    ready = checks.ready(None, seen)
    assert ready.outcome is (Outcome.NOT_CHECKED if problem else Outcome.FAILED)
