"""What `scontrol show config` states of isolation, as Slurm 22.05.8 and 25.11.7 printed it with a cgroup.conf."""

from __future__ import annotations

import pytest

from pytest_gpucluster.cluster.slurm.inventory import parse_config
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.config.models import Cluster
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.suites.isolation.exemptions import Exemptions, read_exemptions

SHOWN = """\
Configuration data as of 2026-11-23T14:50:01
JobContainerType        = job_container/tmpfs
PrologFlags             = Alloc,Contain
SelectTypeParameters    = CR_CORE_MEMORY
TaskPlugin              = task/cgroup,task/affinity

Cgroup Support Configuration:
AllowedRAMSpace         = 100.0%
CgroupPlugin            = cgroup/v1
ConstrainCores          = yes
ConstrainDevices        = yes
ConstrainRAMSpace       = yes
ConstrainSwapSpace      = no

Slurmctld(primary) at vm is UP
"""


NEWER = """\
Configuration data as of 2026-11-23T19:25:43
NamespaceType           = namespace/tmpfs
PrologFlags             = Alloc,Contain
SelectTypeParameters    = CR_CORE_MEMORY
SLURM_VERSION           = 25.11.7
TaskPlugin              = task/cgroup,task/affinity

Cgroup Support Configuration:
AllowedRAMSpace         = 100.0%
AllowedSwapSpace        = 0.0%
CgroupPlugin            = cgroup/v1
CgroupSlice             = (null)
ConstrainCores          = yes
ConstrainDevices        = yes
ConstrainRAMSpace       = yes
ConstrainSwapSpace      = no
EnableExtraControllers  = (null)

MPI Plugins Configuration:
PMIxEnv                 = (null)

Slurmctld(primary) at vm is UP
"""


def stating(**kinds: bool) -> Cluster:
    """Return a cluster whose file requires these kinds of isolation, or excludes them."""
    required = tuple(f"isolation.{kind}" for kind, wanted in kinds.items() if wanted)
    excluded = {f"isolation.{kind}": "why" for kind, wanted in kinds.items() if not wanted}
    return load_cluster("local").model_copy(update={"required": required, "not_applicable": excluded})


def exempt(*changes: tuple[str, str], **section: bool) -> Exemptions:
    """Read the configuration with these texts replaced."""
    text = SHOWN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return read_exemptions(parse_config(text), stating(**section))


def test_all_is_required_where_slurm_isolates_all() -> None:
    assert exempt() == Exemptions()
    assert exempt().any_step


@pytest.mark.parametrize(
    ("change", "exempted"),
    [
        (("ConstrainCores          = yes", "ConstrainCores          = no"), {"cpus"}),
        (("ConstrainDevices        = yes", "ConstrainDevices        = no"), {"devices"}),
        (("ConstrainRAMSpace       = yes", "ConstrainRAMSpace       = no"), {"memory"}),
        (("CR_CORE_MEMORY", "CR_CORE"), {"memory"}),  # --mem is no limit then
        (("job_container/tmpfs", "(null)"), {"tmp"}),
        (("job_container/tmpfs", "job_container/none"), {"tmp"}),
        (("task/cgroup,task/affinity", "task/affinity"), {"cpus", "devices", "memory"}),
        (("task/cgroup,task/affinity", "(null)"), {"cpus", "devices", "memory"}),
    ],
)
def test_what_slurm_does_not_isolate_is_exempt_with_the_setting(
    change: tuple[str, str], exempted: set[str]
) -> None:
    found = exempt(change)
    assert {kind for kind in ("cpus", "devices", "memory", "tmp") if getattr(found, kind)} == exempted
    for kind in exempted:
        assert "=" in getattr(found, kind), "the reason names the setting"


# the last one: slurm.conf has JobContainerType=job_container/tmpfs, which 25.11.7 shows under the new name
@pytest.mark.parametrize("kind", ["namespace/tmpfs", "namespace/linux", "job_container/tmpfs"])
def test_all_is_required_where_25_11_isolates_all(kind: str) -> None:
    config = parse_config(NEWER.replace("namespace/tmpfs", kind))
    assert read_exemptions(config, stating()) == Exemptions()


def test_the_cluster_file_takes_precedence() -> None:
    found = exempt(("ConstrainCores          = yes", "ConstrainCores          = no"), cpus=True, tmp=False)
    assert (found.cpus, found.tmp) == ("", "the cluster file has it under not_applicable")
    nothing = exempt(cpus=False, devices=False, tmp=False)
    assert not nothing.any_step
    assert nothing.memory == ""


@pytest.mark.parametrize(
    ("shown", "share"), [("150.0%", 1.5), ("100.0%", 1.0), ("50.0%", 1.0), ("(null)", 1.0), ("x", 1.0)]
)
def test_more_memory_than_the_limit_may_be_allowed(shown: str, share: float) -> None:
    found = exempt(("AllowedRAMSpace         = 100.0%", f"AllowedRAMSpace         = {shown}"))
    assert found.allowed_memory == share


def test_nothing_is_proved_where_slurm_isolates_nothing_and_the_cluster_file_does_not_accept_it() -> None:
    bare = {"TaskPlugin": "task/affinity"}
    found = read_exemptions(bare, stating())
    assert found.nothing
    with pytest.raises(NotAvailable, match="REASON}` accepts that it does not"):
        found.require("cpus")
    for stated in ({"cpus": False}, {"devices": True}):
        assert not read_exemptions(bare, stating(**stated)).nothing
    partly = read_exemptions({**bare, "JobContainerType": "job_container/tmpfs"}, stating())
    assert not partly.nothing
    with pytest.raises(NotApplicable):
        partly.require("cpus")
