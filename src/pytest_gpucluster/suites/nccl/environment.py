"""The NCCL variables that tasks see, before they slow a run or make it fail. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.environment import variables
from pytest_gpucluster.core.check import Action, Advisory, Finding, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.majority import Norm, differs, norm
from pytest_gpucluster.core.part import named
from pytest_gpucluster.kit.framework.payload_step import environment_named
from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig
from pytest_gpucluster.suites.nccl.environment_rules import GUIDE, UNSET, NodeContext, effects

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.config.models import Cluster, Group, Profile
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.common_cause import PeerGroup
    from pytest_gpucluster.suites.nccl.environment_facts import NcclEnvironment, Setting

# Variables that name parts of one node, so that nodes differ without a fault
OF_A_NODE = {
    "NCCL_HOSTID",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_SOCKET_IFNAME",
    "NCCL_OOB_NET_IFNAME",
    "NCCL_DEBUG_FILE",
    "NCCL_TOPO_DUMP_FILE",
    "NCCL_GRAPH_DUMP_FILE",
}


@dataclass(frozen=True)
class EnvironmentsOfAll:
    """The facts of all nodes, and the usual value of each variable in a group, computed once."""

    facts: Mapping[str, NcclEnvironment]
    _usual: dict[str, dict[str, Norm[str]]] = field(default_factory=dict, compare=False)

    def usual(self, group: PeerGroup | Group) -> dict[str, Norm[str]]:
        """Return {variable that a node of the group has: what most nodes have}."""
        if group.nodes not in self._usual:
            known = {node: self.facts[node].effective for node in group.names if node in self.facts}
            names = sorted({name for settings in known.values() for name in settings} - OF_A_NODE)
            for name in names:
                votes = ((node, it[name].value if name in it else UNSET) for node, it in known.items())
                self._usual.setdefault(group.nodes, {})[name] = norm(votes, "nodes of its group")
        return self._usual.setdefault(group.nodes, {})


def intended(cluster: Cluster) -> dict[str, str]:
    """Return the variables that the cluster file itself sets for NCCL's steps."""
    config = cluster.section(NcclConfig)
    return variables(environment_named(cluster, config.environment, "nccl"))


@check(
    "nccl.environment",
    cause="a variable was set for one job or for debugging, and stayed in a file of the node or in a prolog",
    hint="remove it where it is set, or state it under exports of the environment of nccl in the cluster file if it is intended",
    action=Action.CONFIGURE,  # the configuration of the cluster, not the hardware of the node
)
def environment(
    nccl_environment: NcclEnvironment,
    usual_variables: Mapping[str, Norm[str]],
    profile: Profile,
    intended_variables: Mapping[str, str],
    nccl_image: str,
) -> Judgement:
    """NCCL's variables, files and plugins leave it its speed, and are those of the other nodes."""
    if profile.gpu is None:
        raise NotApplicable(f"profile {profile.name} has no GPUs")
    context = NodeContext(profile, nccl_environment, elsewhere=bool(nccl_image))
    judged: set[str] = set()
    for name, setting in sorted(nccl_environment.effective.items()):
        if intended_variables.get(name) == setting.value:
            continue
        where = nccl_environment.where(setting)
        for found in judge_setting(setting, context, where):
            judged.update({name} if isinstance(found, Finding) else ())
            yield found
    yield from ignored_lines(nccl_environment)
    for name, usual in usual_variables.items():
        mine = nccl_environment.effective.get(name)
        value = mine.value if mine else UNSET
        if name in judged or intended_variables.get(name) == value:
            continue
        where = f"{value} ({nccl_environment.where(mine)})" if mine else UNSET
        yield from usual.judge(named("setting", name), value, worse=differs, measured=where)


def judge_setting(setting: Setting, context: NodeContext, where: str) -> Iterator[Finding | Advisory | NotAvailable]:
    """Judge one variable by its rule. `where`: where it was set."""
    anchor = setting.name.lower().replace("_", "-")
    for effect in effects(setting.name, setting.value, context):
        finding_class = Finding if effect.deviation else Advisory
        measured, expected = f"{effect.text} ({where})", f"{effect.expected}; {GUIDE}#{anchor}"
        yield finding_class(named("setting", str(setting)), measured, expected, code=effect.code)
    unread = {
        "NCCL_SOCKET_IFNAME": not context.found.interfaces,
        "NCCL_IB_HCA": context.profile.fabric.link_layer != "none"
        and not any(port.usable for port in context.found.ports),
    }
    if unread.get(setting.name):
        yield NotAvailable(f"{setting}: no name to compare with was found on the node")


def ignored_lines(found: NcclEnvironment) -> Iterator[Advisory]:
    """Warn of the lines of NCCL's files that have no effect."""
    for location, text in found.ignored:
        why = f"{text!r} sets no variable: NCCL reads lines NAME=VALUE only"
        usual = "NAME=VALUE, without export or blanks"
        yield Advisory(named("file", location), why, usual, code="no_variable")
