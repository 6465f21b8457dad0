"""Kubernetes: API server, nodes, GPU operator, GPU labels; on request short Jobs on the GPUs."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=16,
    markers=("kubernetes: nodes, GPU operator and GPU labels of a Kubernetes cluster",),
    section="config:KubernetesConfig",
    proof=("kubernetes.api", "kubernetes.ready", "kubernetes.gpus"),
    stated="kubectl and a context of a kubeconfig (context: NAME)",
    leftovers="leftovers:jobs",
)
