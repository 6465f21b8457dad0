"""What a cluster file and a hardware profile may say: frozen models, Slurm's own names.

`pytest_gpucluster.config.load_cluster` reads a cluster file and puts the profiles into the groups. Sizes are
given like 81559MiB and held in bytes, durations like 10m and held in seconds,
bandwidths like 365 GB/s and held
in GB/s. A key that a model does not know is an error.
"""

from __future__ import annotations

import hashlib
import json
from datetime import date
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, overload

from pydantic import BeforeValidator, Field, WithJsonSchema, create_model, field_validator, model_validator

from pytest_gpucluster.core import hostlist, units
from pytest_gpucluster.core.budget import Budget
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.known_lines import KnownLine  # noqa: TC001 - pydantic reads the annotation
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.values import (
    AnyDuration,
    Bandwidth,
    CheckPattern,
    Collective,
    ContainerMount,
    Count,
    Duration,
    FolderPath,
    Image,
    LocalPath,
    Location,
    Model,
    NamedNodes,
    Nodes,
    OptionalSection,
    PartPattern,
    PassedVariable,
    PciAddress,
    Port,
    ProfileRow,
    Program,
    SallocOption,
    Section,
    Size,
    SshAddress,
    SuiteSection,
    Text,
    Variable,
    Version,
)
from pytest_gpucluster.core.waivers import Waiver, WaiverFile, covering, covering_parts

DEFAULT_ENVIRONMENT, NO_ENVIRONMENT = "default", "none"
AnySection = TypeVar("AnySection", bound=Section)
AnyOptional = TypeVar("AnyOptional", bound=OptionalSection)
Row = TypeVar("Row", bound=ProfileRow)
# the models that the suites register, and the keys of the cluster file, or of a profile, that hold them
SECTIONS: dict[type[SuiteSection], str] = dict(
    sorted(((suite.section, suite.name) for suite in suites() if suite.section), key=lambda one: (one[0].order, one[1]))
)
PROFILE_ROWS: dict[type[ProfileRow], str] = {suite.profile_rows: suite.name for suite in suites() if suite.profile_rows}


# The name of a profile, or keys that go before those of the profile which `extends` names.
ProfilePart = Annotated[
    dict[str, Any], BeforeValidator(lambda value: {"extends": value} if isinstance(value, str) else value)
]

FACTOR_FILE = "file:"  # no hostlist: the key of a path in place of hostlists
_STATED = {"type": "object", "additionalProperties": {"type": "string"}}
# {hostlist: value}, or {FACTOR_FILE: path} for a path of a CSV file
FactorValues = Annotated[
    dict[Text, Text],
    BeforeValidator(lambda value: {FACTOR_FILE: value} if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [_STATED, {"type": "string"}]}),
]


class SshConfig(Model):
    """How to reach an SSH server. Defaults come from OpenSSH: its configuration, known_hosts, agent and keys."""

    user: Text | None = Field(None, description="default: that of the SSH configuration")
    port: Port | None = Field(None, description="default: that of the SSH configuration, or 22")
    key_file: LocalPath | None = Field(None, description="private key; a key with a passphrase must be in the agent")
    jump: SshAddress | None = Field(None, description="[USER@]HOST[:PORT] of a jump host, as ProxyJump")
    config_file: LocalPath | None = Field(
        None, description="SSH configuration, instead of ~/.ssh/config and /etc/ssh/ssh_config"
    )
    known_hosts: LocalPath | None = Field(None, description="file of host keys, instead of ~/.ssh/known_hosts")
    # seconds for the SSH server to answer
    connect_timeout: ClassVar[float] = 10
    # both ends close a connection that received nothing for this time
    alive: ClassVar[float] = 60


class TransportConfig(SshConfig):
    """Where Slurm's commands run: this machine, or a login node over SSH."""

    host: SshAddress | None = Field(None, description="the login node; default: commands run on this machine")

    @property
    def kind(self) -> Literal["local", "ssh"]:
        """Whether Slurm's commands run here or over SSH."""
        return "ssh" if self.host else "local"


class HostAddress(Model):
    """The SSH address of a node, as the inventory states it."""

    host: str
    port: Port | None = None
    user: str | None = None
    key_file: str | None = None


class SlurmConfig(Model):
    """How nodes are allocated. The keys are options of salloc; `queue_wait` limits the wait in the queue."""

    scheduler: Literal["slurm", "none"] = Field("slurm", description="none: test this machine only")
    partition: Text | None = Field(None, description="--partition")
    account: Text | None = Field(None, description="--account")
    qos: Text | None = Field(None, description="--qos")
    reservation: Text | None = Field(None, description="--reservation")
    comment: str | None = Field(None, description="--comment")
    constraint: Text | None = Field(None, description="--constraint: features of the nodes")
    time: Duration = Field(3600, description="time limit of the allocation")
    queue_wait: Duration = Field(600, description="how long to wait for the nodes")
    exclusive: bool = Field(default=True, description="allocate whole nodes (--exclusive) with all memory (--mem=0)")
    extra_args: tuple[SallocOption, ...] = Field((), description="further salloc options, passed unchanged")
    # seconds within which a job of one second must start
    job_start: ClassVar[float] = 60
    completing: AnyDuration | None = Field(
        None,
        description="how long a node may be COMPLETING; default: the longest of 5 min and slurm.conf's "
        "UnkillableStepTimeout and PrologEpilogTimeout",
    )
    conf: Text | None = Field(None, description="path of slurm.conf (SLURM_CONF); default: Slurm's own")
    bin: FolderPath | None = Field(None, description="folder of Slurm's commands; default: PATH")


class EnvironmentConfig(Model):
    """The environment of a step: container, modules, conda, exported variables."""

    container_image: Image | None = Field(None, description="--container-image: REGISTRY#IMAGE:TAG or a .sqsh file")
    container_mounts: tuple[ContainerMount, ...] = Field((), description="--container-mounts: SOURCE:TARGET[:FLAGS]")
    container_name: Text | None = Field(None, description="--container-name")
    container_mount_home: bool | None = Field(None, description="--[no-]container-mount-home")
    modules: tuple[Program, ...] = Field((), description="names for `module load`, in this order")
    conda: Program | None = Field(None, description="name or prefix of a conda environment")
    exports: dict[Variable, str] = Field({}, description="environment variables of every task")
    pass_env: tuple[PassedVariable, ...] = Field(
        (), description="variables of the shell that runs pytest for every task: NAME or PREFIX_*"
    )
    python: Program = Field("python3", description="the interpreter for payloads")
    mpi: Text | None = Field(None, description="srun --mpi=TYPE")
    srun_args: tuple[str, ...] = Field((), description="further srun options, passed unchanged")

    @property
    def in_container(self) -> bool:
        """Whether steps of this environment run in a container."""
        return bool(self.container_image or self.container_name)

    @property
    def outside(self) -> EnvironmentConfig:
        """The environment without its container, for programs that run on the node itself."""
        if not self.in_container:
            return self
        inside = {key for key in type(self).model_fields if key.startswith("container_")} | {"python"}
        return EnvironmentConfig.model_validate({key: getattr(self, key) for key in self.model_fields_set - inside})


class JobLimits(Model):
    """Limits of the partition, which must be UP, as the site has set them; keys left out are not checked."""

    max_time: AnyDuration | None = Field(None, description="MaxTime")
    max_nodes: Count | None = Field(None, description="MaxNodes")


class NodeProfile(Model):
    """The host of the GPUs. Keys left out are compared between the nodes."""

    cpus: Count | None = Field(None, description="logical CPUs")
    memory: Size | None = Field(None, description="installed memory; MemTotal may be 5% lower")
    numa_nodes: Count | None = Field(None, description="NUMA nodes")


class GpuProfile(Model):
    """The GPUs of one node, as nvidia-smi shows them. Keys left out are not checked, or compared between nodes."""

    count: Count = Field(description="GPUs per node")
    counts: tuple[Count, ...] = Field((), description="other GPU counts of such nodes; NAME:COUNT selects one")
    name: Text = Field(description="exact GPU name of nvidia-smi")
    memory: Size | None = Field(None, description="memory.total of nvidia-smi")
    gres_type: Text | None = Field(None, description="TYPE of Gres=gpu:TYPE:N")
    driver: Text | None = Field(None, description="driver version, or a prefix that ends in *")
    cuda: Version | None = Field(None, description="lowest accepted CUDA version of the driver, like 12.2")
    vbios: Text | None = Field(None, description="VBIOS version")
    persistence: bool | None = Field(default=True, description="persistence mode")
    compute_mode: Text | None = Field("Default", description="compute mode")
    mig: bool | None = Field(default=False, description="MIG mode")
    ecc: bool | None = Field(default=True, description="ECC mode")
    nvlinks: Count | None = Field(None, description="active NVLinks per GPU")
    nvlink_speed: Bandwidth | None = Field(
        None, gt=0, description="GB/s per link and direction, as nvidia-smi nvlink -s shows it"
    )
    pcie_gen: Count | None = Field(None, description="PCIe generation of the link")
    pcie_width: Count | None = Field(None, description="PCIe lanes of the link")
    power_limit: float | None = Field(None, gt=0, description="power limit in watts")
    topology: Text | None = Field(None, description="connection of any two GPUs in nvidia-smi topo -m, like NV18")
    nvswitch: bool = Field(default=False, description="the node has NVSwitch, so fabric manager must run")
    fabric_state: bool = Field(default=False, description="fabric.state must be Completed (Hopper and later)")


class Rail(Model):
    """One GPU and the adapter for its traffic."""

    gpu: PciAddress = Field(description="PCI address of the GPU, like '0000:1b:00.0'")
    adapter: Text = Field(description="PCI address or name of the adapter, like '0000:18:00.0' or mlx5_0")


class FabricProfile(Model):
    """The network for GPUs. `link_layer` none: no InfiniBand or RoCE; `absent` of the profile states the reason."""

    hcas: Count = Field(0, description="number of ports for GPU traffic")
    link_layer: Literal["InfiniBand", "Ethernet", "none"] = Field(
        "none", description="Ethernet: RoCE; none: neither; if left out, `hcas` counts EFA devices"
    )
    rate: Bandwidth | None = Field(None, gt=0, description="rate of one port; 400 Gb/s is stored as 50.0")
    peer_memory: bool | Literal["any", "dma_buf"] = Field(
        default=False,
        description="adapters can register GPU memory: true warns of nvidia_peermem without DMA-BUF, any accepts it, dma_buf refuses it",
    )
    transport: Text | None = Field(
        None, description="transport between nodes, as NCCL logs it: NET/IB/GDRDMA, NET/IB, NET/Socket"
    )
    mtu: Count | None = Field(None, description="active MTU of a port")
    rails: tuple[Rail, ...] = Field(
        (), description="GPUs with their adapters; default: the adapters behind the PCIe switch of a GPU"
    )
    systems: tuple[Text, ...] = Field(
        (), description="names of machines (product_name of DMI, like DGXH100*) that have these `rails`; default: any"
    )

    @property
    def has_adapters(self) -> bool:
        """Whether the node has ports of InfiniBand, RoCE or EFA; an explicit `link_layer: none` means that none is judged."""
        return self.link_layer != "none" or (self.hcas > 0 and "link_layer" not in self.model_fields_set)

    @model_validator(mode="after")
    def _ports_have_a_link_layer(self) -> FabricProfile:
        if "link_layer" not in self.model_fields_set and (self.rate or self.mtu):
            raise ValueError("rate and mtu have no effect without link_layer: InfiniBand or Ethernet")
        if self.systems and not self.rails:
            raise ValueError("systems has no effect without rails")
        return self


class BandwidthThreshold(Model):
    """Bus bandwidth (GB/s, out-of-place) of one collective at one message size on one number of nodes."""

    collective: Collective = "all_reduce"
    nodes: Nodes = Field(1, description="number of nodes in the collective")
    gpus_per_node: int | None = Field(None, ge=1, description="GPUs per node; default: any number")
    size: Size = Field(gt=0, description="message size")
    busbw: Bandwidth = Field(gt=0, description="bus bandwidth, out-of-place")
    tolerance: float = Field(0.05, ge=0, lt=1, description="accepted share below busbw; 0 if busbw is a minimum")
    drain_below: Bandwidth | None = Field(
        None, gt=0, description="hard limit: a node alone below it may be drained; without it the action is monitor"
    )
    conditions: dict[Variable, str] = Field(
        {}, description="NCCL variables that must be set for this row, like NCCL_NVLS_ENABLE: '0'"
    )
    source: str = Field(description="origin of the figure")

    @model_validator(mode="after")
    def _hard_is_not_above(self) -> BandwidthThreshold:
        if self.drain_below is not None and self.drain_below > self.bound:
            raise ValueError(f"drain_below {self.drain_below:g} GB/s is above what is accepted: {self.bound:g} GB/s")
        return self

    @property
    def bound(self) -> float:
        """The lowest bus bandwidth (GB/s) that is accepted."""
        return self.busbw * (1 - self.tolerance)


class _Hardware(Model, defer_build=True):
    name: str
    description: str = Field(description="one line about the hardware")
    source: str = Field(description="origin of the figures")
    simulated: bool = Field(default=False, description="hardware model of the sandbox, no real hardware")
    node: NodeProfile = Field(NodeProfile(), description="the host of the GPUs")
    gpu: GpuProfile | None = Field(None, description="the GPUs; left out: the node has none")
    fabric: FabricProfile = Field(FabricProfile(), description="the network for GPUs")
    nccl: tuple[BandwidthThreshold, ...] = Field((), description="required bandwidths")


if TYPE_CHECKING:
    from collections.abc import Collection

    class _HardwareAndRows(_Hardware): ...
else:
    _HardwareAndRows = create_model(
        "_HardwareAndRows",
        __base__=_Hardware,
        **{name: (tuple[model, ...], Field((), description=model.about)) for model, name in PROFILE_ROWS.items()},
    )


class Profile(_HardwareAndRows, defer_build=False):
    """One kind of node: its normal values and their origin."""

    absent: dict[PartPattern, Text] = Field(
        {}, description="check pattern, like 'gpu.fabric_manager': why the check does not apply"
    )
    required: tuple[CheckPattern, ...] = Field(
        (), description="check patterns added to the proofs of their suites: without a result a node is not proved"
    )

    @cached_property
    def sha256(self) -> str:
        """The hash of what it expects: of JSON without defaults, with sorted keys and without spaces."""
        stated = self.model_dump(mode="json", exclude_defaults=True)
        plain = json.dumps(stated, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(plain.encode()).hexdigest()

    def rows(self, model: type[Row]) -> tuple[Row, ...]:
        """Return the rows of a suite, which registers their model as `profile_rows`."""
        found: tuple[Row, ...] = getattr(self, PROFILE_ROWS[model])
        return found


class Group(Model):
    """Nodes of one kind of hardware. Where `partition` differs, the group gets its own allocation."""

    nodes: NamedNodes = Field(description="Slurm hostlist, like gpu[01-16]")
    profile: Profile
    partition: str | None = None
    section: str = Field("", description="the only section that names these nodes, which Slurm does not have")
    thresholds: tuple[BandwidthThreshold, ...] = Field((), description="rows used before those of the profile")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The node names, sorted."""
        return hostlist.expand(self.nodes)


class ReportsConfig(Model):
    """The reports of runs, beside pytest's --report-dir."""

    keep: int = Field(
        30,
        ge=1,
        description="number of runs in --report-dir beside full runs, runs that drained, and runs that a reason of a node "
        "or the history names; the oldest beyond it are deleted",
    )
    group: Text | None = Field(None, description="let this group read the reports: mode 0640 instead of 0600")
    metrics: LocalPath | None = Field(
        None, description="also write the metrics to this file FILE.prom, for the textfile collector of node_exporter"
    )


class NotifyConfig(Model):
    """Who gets a message about a run that changed something: new failures, healed ones, drained or resumed nodes."""

    command: tuple[Text, ...] = Field(
        (), description="command that gets the message as JSON on stdin, like [/opt/ops/to-slack]"
    )


class GateConfig(Model):
    """What `gpucluster gate` judges on a node, and what it shares with the gates of other nodes."""

    checks: tuple[CheckPattern, ...] = Field(
        ("gpu.*", "os.*", "fabric.*", "storage.*"),
        description="check patterns; without Slurm and other nodes the rest cannot be judged",
    )
    # seconds for all commands; what does not fit is not checked
    budget: ClassVar[float] = 8
    baseline: Text | None = Field(
        None, description="file that runs write and gates read: what accepted nodes have, for checks that compare nodes"
    )
    state: Text | None = Field(
        None,
        description="folder that all nodes share, for the circuit breaker; without it a gate takes no node out of service",
    )
    max_failing: int = Field(
        2, ge=1, description="nodes that gates may take out of service for the same check within an hour"
    )


class EvidenceConfig(Model):
    """What a run reads of a node with a failed part, before anything is done to the node."""

    when: Literal["repairs", "all", "off"] = Field(
        "repairs",
        description="read evidence after failures with a repair as their action, after all failures, or never",
    )
    field_diagnostic: Text | None = Field(
        None,
        description="log of a vendor's field diagnostic on the nodes, like /var/log/fieldiag.log: it becomes a part of the evidence",
    )


class CampaignConfig(Model):
    """How campaigns behave towards the jobs of users."""

    # --nice of the campaign's jobs: they wait behind those of users
    nice: ClassVar[int] = 1000
    # seconds between two readings of the nodes' states from Slurm
    poll: ClassVar[float] = 30
    group: int | None = Field(
        None,
        ge=3,
        description="number of nodes of larger groups, tested after the pairs, to find the node by which a group fails",
    )


class DrainConfig(Model):
    """What must hold before pytest's --drain drains a node; it has no effect without that option."""

    # repetitions of a failed check; a node is drained only if all of them fail
    retries: ClassVar[int] = 1
    min_action: Literal["reset-gpu", "reboot", "drain", "return-to-vendor"] = Field(
        "reset-gpu", description="the mildest repair for which a node is drained"
    )
    max: int | str = Field(
        "10%", description="maximum number or percentage of a partition's nodes that gpucluster may drain at a time"
    )

    @field_validator("max")
    @classmethod
    def _is_budget(cls, value: int | str) -> int | str:
        Budget.parse(str(value))
        return value


class PunchlistConfig(Model):
    """Who does the work of the punch list, where the kind of part and the action do not show it."""

    trades: dict[CheckPattern, Text] = Field(
        {}, description="check pattern: the trade that repairs what these checks find; the first that matches counts"
    )


class _Access(Model, defer_build=True):
    description: str = Field("", description="one line about the cluster")
    transport: TransportConfig = Field(TransportConfig(), description="where to run Slurm's commands")
    access: Literal["slurm", "ssh"] = Field(
        "slurm",
        description="how to reach the nodes: in a Slurm allocation, or each node over SSH, without an allocation",
    )
    ssh: SshConfig = Field(SshConfig(), description="how to reach nodes over SSH")
    slurm: SlurmConfig = Field(SlurmConfig(), description="how nodes are allocated")
    environments: dict[str, EnvironmentConfig] = Field(
        {},
        description="environments of steps, by name; `default` is used by every suite and step that names none, "
        "and the name `none` means no environment",
    )


if TYPE_CHECKING:

    class _AccessAndSections(_Access): ...
else:
    _AccessAndSections = create_model(
        "_AccessAndSections",
        __base__=_Access,
        **{
            name: (model | None, Field(None, description=model.about))
            if issubclass(model, OptionalSection)
            else (model, Field(model(), description=model.about))
            for model, name in SECTIONS.items()
        },
    )


class ClusterSettings(_AccessAndSections):
    """Settings of a cluster other than its nodes, with the sections of all suites that are installed."""

    limits: dict[str, JobLimits] = Field({}, description="limits of partitions, by partition name")
    sudo: bool = Field(default=False, description="probes that need root may use `sudo -n`")
    min_nodes: int | str | None = Field(
        None, description="fail a run unless this number or percentage of the selected nodes was tested, like 90%"
    )
    required: tuple[CheckPattern, ...] = Field(
        (), description="check patterns added to the proofs of their suites: without a result a node is not proved"
    )
    not_applicable: dict[PartPattern, Text] = Field(
        {}, description="check pattern: why the site does not need the check"
    )
    known: tuple[KnownLine, ...] = Field(
        (),
        description="lines of kernel logs and of Slurm's logs whose meaning the site knows; the first entry that matches "
        "decides, before all rules of the checks",
    )
    sandbox: bool = Field(
        default=False,
        description="the nodes belong to a sandbox: it is started when needed, and reports are marked SIMULATED",
    )
    history: LocalPath | None = Field(None, description="SQLite file that stores the runs, as pytest's --history")
    reports: ReportsConfig = Field(ReportsConfig(), description="what becomes of the reports of runs")
    notify: NotifyConfig = Field(NotifyConfig(), description="who gets a message about a run that changed something")
    campaign: CampaignConfig = Field(CampaignConfig(), description="how campaigns behave")
    gate: GateConfig = Field(GateConfig(), description="what `gpucluster gate` judges on a node")
    drain: DrainConfig = Field(DrainConfig(), description="what pytest's --drain requires of a failure")
    evidence: EvidenceConfig = Field(EvidenceConfig(), description="what is read of a node with a failed part")
    location: dict[NamedNodes, Location] = Field(
        {},
        description="hostlist: where these nodes are, like 'rack A07 unit {n}'; {n} is the place of a node in its hostlist, from 1",
    )
    factors: dict[Text, FactorValues] = Field(
        {},
        description="what nodes may have in common, like `rack`, `power feed` or `cooling loop`: mapping of hostlists to its values, "
        "or a CSV file with the columns `node` and one for each factor; relative to this file",
    )
    units: dict[Text, NamedNodes] = Field(
        {}, description="scalable unit: hostlist of its nodes, which are handed over together"
    )
    punchlist: PunchlistConfig = Field(PunchlistConfig(), description="what `gpucluster punchlist` shows")
    settings: dict[str, Any] = Field({}, description="keys for a site's own suites")
    suites: tuple[LocalPath, ...] = Field(
        (), description="folders of the site's own suites, which run beside the shipped ones; relative to this file"
    )

    @overload
    def section(self, model: type[AnySection]) -> AnySection: ...

    @overload
    def section(self, model: type[AnyOptional]) -> AnyOptional | None: ...

    def section(self, model: type[SuiteSection]) -> SuiteSection | None:
        """Return a suite's section by its model: `cluster.section(OsConfig).mounts`; None where an optional one is left out."""
        found: SuiteSection | None = getattr(self, SECTIONS[model])
        return found

    def sections(self) -> dict[str, SuiteSection]:
        """Return {key: section of a suite}, without the optional ones that are left out."""
        return {name: one for name in SECTIONS.values() if (one := getattr(self, name)) is not None}

    def stated(self, check: str) -> bool | None:
        """Return whether the file requires a check (`required`) or excludes it (`not_applicable`: False); None: neither."""
        for answer, patterns in ((False, self.not_applicable), (True, self.required)):
            if any(fnmatchcase(check, pattern) for pattern in patterns):
                return answer
        return None

    def environment(self, name: str | None, key: str = "environment") -> EnvironmentConfig | None:
        """Return the environment of a name; without one `default`, where the file has it.

        The name `none` means no environment. ConfigError for an unknown name; `key` is where it was written.
        """
        if name is None or name == NO_ENVIRONMENT:
            return self.environments.get(DEFAULT_ENVIRONMENT) if name is None else None
        if name not in self.environments:
            raise ConfigError(
                f"{key} {name!r} is not among the environments: {', '.join(sorted(self.environments)) or 'none'}"
            )
        return self.environments[name]

    @field_validator("environments")
    @classmethod
    def _none_is_reserved(cls, value: dict[str, EnvironmentConfig]) -> dict[str, EnvironmentConfig]:
        if NO_ENVIRONMENT in value:
            raise ValueError("the name 'none' means no environment: use another name")
        return value

    @field_validator("min_nodes")
    @classmethod
    def _is_share(cls, value: int | str | None) -> int | str | None:
        if value is not None:
            units.share_of(value, 1)
        return value


class Cluster(ClusterSettings, defer_build=False):
    """A whole cluster file, profiles put in place."""

    name: str
    groups: tuple[Group, ...] = Field(min_length=1)
    hosts: dict[str, HostAddress] = Field({})
    warnings: tuple[str, ...] = Field((), description="one line per value of the file that nothing uses")
    waivers: tuple[Waiver, ...] = Field((), description="deviations that the site accepts")
    file: str = Field("", description="path of the cluster file")
    file_sha256: str = Field("", description="hash of its bytes")

    def waiver(self, check: str, node: str) -> Waiver | None:
        """Return the waiver that holds today for this check of a node ('': of the cluster as a whole); None without one."""
        return covering(self.waivers, check, node, date.today()) if self.waivers else None  # noqa: DTZ011 - the site's day

    def waivers_of(self, check: str, node: str, parts: Collection[str]) -> tuple[Waiver, ...]:
        """Return the waivers that hold today for a failure of these parts of a node; () where one is not waived."""
        return covering_parts(self.waivers, check, node, parts, date.today()) if self.waivers else ()  # noqa: DTZ011

    @property
    def why_no_slurm(self) -> str:
        """Why there are no allocations, steps and jobs; '' where there are."""
        if self.access == "ssh":
            return "the nodes are reached over SSH, without Slurm (access: ssh)"
        if self.slurm.scheduler == "none":
            return f"cluster {self.name} has no scheduler"
        return "" if any(map(self.reaches, self.groups)) else self.unreachable(self.groups[0].names[0])

    def reaches(self, group: Group) -> bool:
        """Return whether commands can be run on the nodes of a group."""
        return not group.section or self.access == "ssh"

    def unreachable(self, node: str) -> str:
        """Return why no command can be run on a node; '' where one can."""
        group = self.group_of(node)
        if self.reaches(group):
            return ""
        return f"only the section `{group.section}` of the cluster file names {group.nodes}, and neither Slurm nor SSH reaches them"

    @property
    def starts_containers(self) -> bool:
        """Whether steps may leave containers on the nodes."""
        images = any(environment.container_image for environment in self.environments.values())
        return images or any(section.starts_containers for section in self.sections().values())

    @property
    def simulated(self) -> bool:
        """Whether any node shows simulated hardware; reports say so."""
        return any(group.profile.simulated for group in self.groups)

    def place_of(self, node: str) -> str:
        """Return where a node is, by `location`; '' if the file does not say it."""
        return self._places.get(node, "")

    def stated_factors(self, nodes: Collection[str]) -> dict[str, dict[str, str]]:
        """Return {factor: {value: hostlist}} of some nodes: `factors`, `location` and `units`, of which the first counts."""
        location = {node: place for names, place in self.location.items() for node in hostlist.expand(names)}
        units = {node: unit for unit, names in self.units.items() for node in hostlist.expand(names)}
        found: dict[str, dict[str, str]] = {}
        for factor, by_node in ({"location": location, "unit": units} | self.factors).items():
            values = grouped((by_node[node], node) for node in nodes if node in by_node)
            found |= {factor: {value: hostlist.fold(names) for value, names in values.items()}} if values else {}
        return found

    @cached_property
    def _places(self) -> dict[str, str]:
        return {
            node: words.replace("{n}", str(number))
            for nodes, words in self.location.items()
            for number, node in enumerate(hostlist.expand(nodes), 1)
        }

    def group_of(self, node: str) -> Group:
        """Return the group of a node; KeyError where no group names it."""
        return self._owners[node]

    @cached_property
    def _owners(self) -> dict[str, Group]:
        return {node: group for group in self.groups for node in group.names}


class GroupFile(Model):
    """One entry of `groups`."""

    nodes: NamedNodes = Field(description="Slurm hostlist, like gpu[01-16]")
    profile: ProfilePart | None = Field(None, description="a shipped profile, a path, or a mapping")
    partition: Text | None = Field(None, description="default: slurm.partition")
    thresholds: tuple[BandwidthThreshold, ...] = Field((), description="rows used before those of the profile")


class ClusterFile(ClusterSettings, defer_build=False):
    """The contents of a cluster file: `nodes` and `profile` for one kind of node, `groups` for several."""

    name: str | None = Field(None, description="name of the cluster; default: the name of the file")
    nodes: NamedNodes | None = Field(None, description="Slurm hostlist, for nodes of one kind")
    inventory: LocalPath | None = Field(
        None,
        description="Ansible inventory: addresses of the nodes; if `nodes` is left out, their names too, those of its group "
        "slurm-node or of all groups",
    )
    profile: ProfilePart | None = Field(
        None, description="a shipped profile, a path, or a mapping; for groups without a profile"
    )
    thresholds: tuple[BandwidthThreshold, ...] = Field(
        (), description="rows used before those of the profile, in every group"
    )
    groups: tuple[GroupFile, ...] = Field((), description="several kinds of nodes, instead of `nodes`")
    waivers: tuple[WaiverFile, ...] = Field(
        (), description="deviations that the site accepts until a date; reports list them"
    )
