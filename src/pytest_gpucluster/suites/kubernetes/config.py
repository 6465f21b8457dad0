"""The section `kubernetes` of a cluster file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.values import Image, NamedNodes, OptionalSection, Text

if TYPE_CHECKING:
    from collections.abc import Iterator

JOBS_ONLY = ("image", "runtime_class")


def one_namespace(name: str) -> str:
    """Return the name of a namespace; ValueError for one that Kubernetes refuses (RFC 1123 label)."""
    if not (len(name) <= 63 and name.replace("-", "").isalnum() and name == name.lower().strip("-")):
        raise ValueError(f"must be the name of a namespace (a-z, 0-9 and -, at most 63 characters), not {name!r}")
    return name


class KubernetesConfig(OptionalSection):
    """Kubernetes, through kubectl on the machine that runs pytest. Nothing is changed unless `jobs: true`."""

    about = "requires kubectl and a Kubernetes cluster"
    order = 14

    context: Text | None = Field(None, description="context of the kubeconfig; default: the current one")
    namespace: Annotated[str, AfterValidator(one_namespace)] = Field("default", description="namespace of the Jobs")
    nodes: NamedNodes | None = Field(
        None,
        description="hostlist of the nodes in Kubernetes; those that neither `nodes` nor `groups` names belong to "
        "Kubernetes only; default: all nodes of the file",
    )
    profile: str | dict[str, Any] | None = Field(
        None, description="profile of the nodes that belong to Kubernetes only"
    )
    # name of the GPUs among the resources of a node
    gpu_resource: ClassVar[str] = "nvidia.com/gpu"
    taints: tuple[Text, ...] = Field(
        ("nvidia.com/gpu", "sku=gpu:NoSchedule", "kubernetes.io/arch=arm64:NoSchedule"),
        description="expected taints: KEY, KEY=VALUE, each with or without :EFFECT; default: those that keep other pods "
        "off GPU nodes, of AKS's guide too, and off the Arm nodes of GKE",
    )
    components: tuple[Text, ...] = Field(
        (),
        description="components of the operators that must be on every GPU node: driver, toolkit, device-plugin, "
        "feature-discovery, dcgm-exporter, validator, mig-manager, dra-driver; default: those that a DaemonSet puts there",
    )
    # a container of an operator that ended within this time is restarting
    restart_window: ClassVar[float] = 3600
    # time limit of one kubectl command
    timeout: ClassVar[float] = 60
    jobs: bool = Field(default=False, description="run a short Job on each GPU node, and one NCCL Job on all of them")
    image: Image | None = Field(
        None,
        description="image of the Jobs, with nvidia-smi from the runtime; the NCCL Job needs python and torch in it",
    )
    runtime_class: Text | None = Field(None, description="runtimeClassName of the Jobs, like nvidia")
    # smallest and largest message of the NCCL Job; the step is factor 4
    nccl_sizes: ClassVar[tuple[int, int]] = (2**28, 2**32)
    # how long pods may wait for GPUs and for the image
    job_pull: ClassVar[float] = 600
    # time limit of a Job from the start of its pods (added to job_pull)
    job_time: ClassVar[float] = 600
    # ttlSecondsAfterFinished: Kubernetes removes a Job whose run was killed after this time
    keep_finished: ClassVar[float] = 300

    def without_effect(self) -> Iterator[tuple[str, str]]:
        """Yield keys that have no effect without another one, and the reason."""
        for key in JOBS_ONLY if "jobs" not in self.model_fields_set else ():
            if key in self.model_fields_set:
                yield key, "has no effect without 'jobs: true'"
        if self.jobs and self.image is None:
            yield "jobs", "needs 'image', which the Jobs run"

    def own_nodes(self) -> tuple[tuple[str, ...], Any]:
        """Return the nodes that this section names, and the profile of those that no group has."""
        return hostlist.expand(self.nodes or ""), self.profile
