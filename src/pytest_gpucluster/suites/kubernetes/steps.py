"""Query the API server through kubectl: three commands for all nodes and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.transport.local import LocalTransport
from pytest_gpucluster.core.errors import ProbeError, TransportError
from pytest_gpucluster.suites.kubernetes import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.suites.kubernetes.config import KubernetesConfig
    from pytest_gpucluster.suites.kubernetes.facts import KubeFacts

VERSION = ("version", "-o", "json")
NODES = ("get", "nodes,daemonsets.apps", "--all-namespaces", "-o", "json")
# ended pods hold nothing, and a cluster may have thousands of them
PODS = ("get", "pods", "--all-namespaces", "--field-selector=status.phase!=Succeeded", "-o", "json")


class Kubectl:
    """kubectl with the context of the cluster file, on the machine that runs pytest."""

    def __init__(self, config: KubernetesConfig) -> None:
        self.config, self.transport = config, LocalTransport(inherit=True)

    def argv(self, *words: str) -> tuple[str, ...]:
        """Return the whole command."""
        config = self.config
        return (
            "kubectl",
            *((f"--context={config.context}",) if config.context else ()),
            f"--request-timeout={config.timeout:g}s",
            *words,
        )

    def ask(self, *words: str, stdin: str = "") -> tuple[str, str]:
        """Run a command; return its output and why it failed, '' if it did not."""
        try:
            done = self.transport.run(self.argv(*words), timeout=self.config.timeout + 5, input=stdin)
        except TransportError as error:
            return "", str(error)
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        last = next((line for line in reversed(lines) if not line.startswith("Warning:")), "")
        return done.stdout, "" if done.rc == 0 else f"kubectl {words[0]}: {last or f'exit status {done.rc}'}"


def query(ask: Callable[..., tuple[str, str]], known: Mapping[str, str], gpu: str) -> KubeFacts:
    """Return the facts of the nodes in `known`. What does not answer is a problem in the facts, no error."""
    text, problem = ask(*VERSION)
    client = server = None
    if text:
        try:
            client, server = facts.read_version(text)
        except ProbeError as error:
            problem = problem or str(error)
    if server is None:
        problem = problem or "kubectl version: the answer has no serverVersion"
        return facts.KubeFacts(client, None, problem, nodes_problem=problem, pods_problem=problem)
    nodes, _, sets, nodes_problem = _objects(ask, NODES)
    _, pods, _, pods_problem = _objects(ask, PODS)
    names = facts.matched(nodes, known)
    return facts.KubeFacts(
        client,
        server,
        problem,
        nodes={names[node.name]: node for node in nodes if node.name in names},
        pods=facts.by_node(pods, names),
        daemonsets=tuple(sets),
        nodes_problem=nodes_problem,
        pods_problem=pods_problem,
        unknown=tuple(it.name for it in nodes if it.name not in names and it.capacity.get(gpu, "0") != "0"),
        now=max((node.heartbeat for node in nodes), default=0.0),
    )


def _objects(
    ask: Callable[..., tuple[str, str]], words: tuple[str, ...]
) -> tuple[list[facts.KubeNode], list[facts.Pod], list[facts.DaemonSet], str]:
    text, problem = ask(*words)
    try:
        # kubectl prints what it got where one of several kinds is refused
        return (*facts.read_objects(text), problem) if text else ([], [], [], problem or "kubectl: no answer")
    except ProbeError as error:
        return [], [], [], problem or str(error)
