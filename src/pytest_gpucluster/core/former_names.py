"""Former names of checks, keys and options, since 0.2.0: what to write instead, or why one went. Pure.

One table for cluster files, profiles, waivers, the command line and the reasons of drained nodes; docs/coming-from.md is
made from it. A new row is enough: {former name: Former(new="present name")} or {former name: Former(why="reason")}.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@dataclass(frozen=True)
class Former:
    """What became of a name: its present one, or why it was removed and what to do."""

    new: str = ""
    why: str = ""

    @property
    def text(self) -> str:
        """What follows the former name in a sentence."""
        return f"is now {self.new}" if self.new else f"was removed: {self.why}"


FIXED = Former(why="it has a fixed value; remove it")


def _key(name: str) -> Former:
    return Former(f"the key {name} of the cluster file, or --set {name}=VALUE")


def _leave_out(check: str, why: str = "it is always tested") -> Former:
    return Former(why=f"{why}; `not_applicable: {{{check}: WHY}}` leaves it out")


def _keys(section: str, names: str) -> Iterator[str]:
    return (f"{section}.{name}" for name in names.split())


# SUITE.WHAT
CHECKS: dict[str, Former] = {
    **{
        f"accounting.{name}": Former(why="it tested Slurm, not the cluster; remove the name")
        for name in ["access_jobs", "backfill", "fairshare", "limits", "preemption"]
    },
    "container.sshd": Former(why="no sshd is started in containers; remove the name"),
    "horovod.interface": Former(why="jobs use the interface between the nodes; remove the name"),
    "submitit.checkpoint": Former(why="no job is requeued; remove the name"),
    "controller.burst": Former(why="controller.load finds a controller that is slow; remove the name"),
    "controller.hold": Former(why="it tested Slurm, not the cluster; remove the name"),
    "controller.reported": Former("controller.errors"),
    "controller.singleton": Former("slurm.dependency"),
    **{
        f"os.{name}": Former(f"os.drift/{name}")
        for name in [
            "architecture",
            "cmdline",
            "cpu_model",
            "governor",
            "hugepages",
            "kernel",
            "limits",
            "mtu",
            "numa",
            "packages",
            "release",
            "security_modules",
            "swap",
            "sysctls",
            "taint",
            "transparent_hugepages",
        ]
    },
    "os.kernel_settings": Former("os.drift/sysctls"),
    "os.uptime": Former(why="the time since boot is not judged; remove the name"),
    "ray.token": Former("ray.authentication"),
}
# dotted, without the numbers of lists, `*` for a name; `profile.` before those of profiles
KEYS: dict[str, Former] = {
    **dict.fromkeys(
        (
            *_keys(
                "burnin",
                "beat dcgm_timeout dtypes load max_corrected max_throttled min_relative min_relative_host nccl_size sample "
                "silence storage_size",
            ),
            *_keys("campaign", "nice poll"),
            *_keys("container", "deadline ntasks_per_node"),
            *_keys("controller", "max_cycle"),
            *_keys("ddp", "deadline lost_rank ntasks_per_node"),
            *_keys("drain", "retries"),
            *_keys("horovod", "deadline ntasks_per_node"),
            *_keys("isolation", "device_files python"),
            *_keys("matrix", "deadline ntasks_per_node"),
            *_keys("monitoring", "max_scrape_age timeout"),
            *_keys("mpi", "deadline"),
            *_keys("nccl", "deadline min_relative pair_size"),
            *_keys("os", "max_clock_skew max_load_per_cpu max_zombies"),
            *_keys(
                "profile.gpu",
                "max_aggregate_sram_uncorrectable max_idle_memory max_remapped_uncorrectable max_temperature",
            ),
            *_keys("ray", "deadline leave ntasks_per_node"),
            *_keys("rdma", "deadline"),
            *_keys("slurm", "job_start"),
            *_keys("ssh", "alive connect_timeout"),
            *_keys("storage", "deadline"),
            *_keys("submitit", "deadline nodes ntasks_per_node wait"),
            *_keys("tensorflow", "deadline ntasks_per_node"),
            *_keys("training", "deadline"),
            *_keys("transport", "alive connect_timeout"),
        ),
        FIXED,
    ),
    **dict.fromkeys(
        ("accounting.qos.*.preempt_mode", "accounting.qos.*.grace_time"),
        Former(why="it is not compared any more; `sacctmgr show qos` shows it"),
    ),
    "accounting.sudo": Former(why="`sudo: true` at the top of the file is for it too"),
    "accounting.trials": Former(
        why="it tested Slurm itself; state limits, preemption and weights under `qos`, `accounts` and `settings`"
    ),
    "burnin.cpus": Former(why="all CPUs but one per GPU are loaded"),
    "burnin.max_temperature": Former(why="the limit is the GPU's own slowdown temperature"),
    "burnin.memory": Former(why="a quarter of the available memory is loaded, at most 64 GiB"),
    "burnin.payload": Former(why="the burn-in always runs its own workers"),
    "container.entrypoint_sets": Former(why="a step must start with and without the image's entrypoint"),
    "container.images": Former(why="`image` is the one that every node must start"),
    "container.keep": Former(why="a container is removed with its run"),
    "container.memlock": Former(why="the limit must be that of the node, which `os.limits` states"),
    "container.mount_home": Former(
        why="without a flag the home folder must not be mounted; `not_applicable: {container.home: WHY}` otherwise"
    ),
    "container.rank_hook": Former(why="the variables of Enroot's hook are judged where the hook sets any"),
    "container.save": Former(why="a container is always saved"),
    "container.scratch": Former(why="files of the checks are in /tmp"),
    "container.shm": Former(why="/dev/shm must be as large as that of the node"),
    "container.sshd": Former(why="no sshd is started in containers"),
    "container.version": Former(why="`versions.pyxis` states the lowest accepted version"),
    "controller.max_answer": Former(why="MessageTimeout of slurm.conf is the limit"),
    "ddp.provided": Former(why="the suite sets the variables that the site does not set"),
    "environments.*.container_fingerprint": Former(why="images are named by what the registry answers"),
    "environments.*.container_remap_root": Former(why="write --container-remap-root in `srun_args`"),
    "environments.*.container_workdir": Former(why="write --container-workdir in `srun_args`"),
    "environments.*.container_writable": Former(why="write --container-writable in `srun_args`"),
    "fabric": Former(
        why="counters that rise fail, old ones are a warning; partition keys are compared with other nodes"
    ),
    "gate.budget": Former(why="the option --budget of `gpucluster gate` states it"),
    "gpu": Former("an entry of `known`: its pattern is a part of the line, as 'NVRM: Xid .*: 74,'"),
    "horovod.controllers": Former(why="jobs use gloo, with which Horovod must be built"),
    "horovod.interface": Former(
        why="jobs use the interface between the nodes; HOROVOD_GLOO_IFACE under `exports` names another"
    ),
    "horovod.mpi": Former(why="`mpi` of the environment is srun's --mpi; default: pmix"),
    "horovod.operations": Former(why="the build must have nccl if the profile has GPUs, else gloo"),
    "ibfabric.routing": Former(why="`routing_engine` of opensm.conf states it"),
    "inventory_group": Former(why="the group slurm-node is read, else all hosts; `nodes` names others"),
    "isolation.ssh_options": Former(why="write them in the SSH configuration of the user of the run"),
    "monitoring.required_alerts": Former(why="`gpu_rules` requires one alerting rule on a metric of GPUs"),
    "software.modules.conflicts": Former(why="`conflict` of a modulefile, or `family` of Lmod, is not tested any more"),
    "kubernetes.gpu_resource": Former(why="GPUs are nvidia.com/gpu"),
    "kubernetes.job_pull": Former(why="pods may wait 10 minutes for GPUs and for the image"),
    "kubernetes.kubeconfig": Former(why="kubectl reads the file that KUBECONFIG names"),
    "kubernetes.minimum_version": Former(why="a version that upstream ended is a warning"),
    "kubernetes.nccl": _leave_out("kubernetes.job_nccl", "with `jobs: true` it is always tested"),
    "kubernetes.nccl_sizes": Former(why="the NCCL Job measures 256 MiB to 4 GiB"),
    "kubernetes.python": Former(why="the NCCL Job runs python3 of the image"),
    "limits.*.default_time": Former(why="`max_time` is the limit that is judged"),
    "limits.*.state": Former(why="a partition of the file is up"),
    "monitoring.alerts": _leave_out("monitoring.alerts"),
    "monitoring.gpu_metrics": Former(
        why="the temperature of dcgm-exporter, nvidia_gpu_exporter or nvidia_exporter must be there"
    ),
    "monitoring.grafana_version": Former(why="versions of Grafana are not judged"),
    "monitoring.prometheus_version": Former(why="versions of Prometheus are not judged"),
    "mpi.compiler": Former(
        why="mpicc of the folder that `mpirun` names compiles, else mpicc on PATH, which an environment may set"
    ),
    "mpi.implementation": Former(why="nodes with another MPI than most nodes fail `mpi.alike`"),
    "mpi.mpirun_args": Former(why="Open MPI reads its parameters from OMPI_MCA_* under `exports` of the environment"),
    "mpi.ntasks_per_node": Former(why="there is one task per GPU, or two without GPUs"),
    "mpi.prefix": Former(why="write the path of mpirun under `mpirun`"),
    "mpi.threads": Former(why="MPI_THREAD_FUNNELED is required"),
    **dict.fromkeys(
        _keys("nccl", "base_container compile source cleanup"),
        Former(
            why="compile nccl-tests into an image of your own; the environment that `nccl.environment` names has it"
        ),
    ),
    "nccl.container": Former(why="write it as `container_image` of the environment that `nccl.environment` names"),
    "nccl.exports": Former(why="write it in `exports` of the environment that `nccl.environment` names"),
    "nccl.gpus_per_node": Former(
        why="all GPUs of the profile are used; NAME:COUNT selects a profile with another number"
    ),
    "nccl.hostid_from_slurm": Former(why="every node has a host of its own"),
    **dict.fromkeys(
        ("matrix.nodes", "nccl.nodes", "nccl_examples.nodes"), Former(why="pytest's --nodes selects the nodes")
    ),
    "nccl.pair_busbw": Former(why="write a row for 2 nodes at 256 MiB under `thresholds`"),
    "nccl.pair_drain_below": Former(why="write `drain_below` in a row for 2 nodes at 256 MiB under `thresholds`"),
    "nccl.srun_args": Former(why="write it in `srun_args` of the environment that `nccl.environment` names"),
    "nccl_examples.toolchain": _leave_out("nccl_examples.compiled*", "nvcc and CMake must compile the example"),
    "notify.url": Former(why="`notify.command` may call curl"),
    "os.hugepages": Former(why="the setting `hugepages` of `os.drift` compares the nodes"),
    **dict.fromkeys(
        ("os.max_uptime", "os.min_uptime"), Former(why="the time since boot is not judged; `uptime` shows it")
    ),
    "os.min_free_root": Former(
        why="1 GiB or a tenth must be free on / and /tmp; `min_free` of a row of `os.mounts` states another bound"
    ),
    "os.mounts.min_free_percent": Former(why="write bytes as `min_free`"),
    "os.time_sync": _leave_out("os.time_sync"),
    "over": Former("access"),
    "profile.storage": Former(why="write the figures in `storage.filesystems` under `expect`"),
    "profile.training.model": Former(why="the large model is measured"),
    "profile.versions": Former(why="write the section `versions` of the cluster file"),
    **dict.fromkeys(("ray.cpus", "ray.gpus"), Former(why="Ray gets the CPUs and GPUs of Slurm")),
    "ray.join": Former(why="head and workers have 60 s to start"),
    "ray.port": Former(why="free ports are searched"),
    "ray.temp": Former(why="Ray's sessions are in /tmp"),
    "ray.token": Former(
        why="Ray always starts with a token; `not_applicable: {ray.authentication: WHY}` leaves the check out"
    ),
    "ray.tune": _leave_out("ray.tune"),
    "software.conda.modules": Former(why="write `modules` in the environment"),
    "software.modules.init": Former(
        why="`module` is defined as in login shells: by /etc/profile.d or /etc/profile of the node"
    ),
    "storage.files": Former(why="all nodes together create 10000 small files"),
    "storage.filesystems.expect.read_alone": Former(why="write `read`"),
    "storage.filesystems.expect.write_alone": Former(why="write `write`"),
    "storage.filesystems.preset": Former(why="write the figures under `expect`"),
    "storage.max_use": Former(why="nothing is written to a file system that is more than 90% full"),
    "submitit.checkpoint": Former(why="no job is requeued"),
    **dict.fromkeys(
        ("training.max_start", "software.modules.max_load_time", "software.conda.max_activation_time"),
        Former(why="the time is recorded"),
    ),
    "training.min_checkpoint": Former(
        why="the rate is recorded; `storage.filesystems` states what a file system must reach"
    ),
    "training.min_mfu": Former(why="write a row under `training` of the profile"),
    "training.min_scaling": Former(why="the speed beside one node is recorded"),
    "training.model": Former(why="the model fits the memory of the GPUs"),
    "training.peak": Former(why="the dense peak is that of the GPU's data sheet"),
    "transport.workdir": Former(why="commands run in the home folder of the login node"),
    "transport.kind": Former(why="a `host` makes it a login node; without one, this machine is it"),
    "versions.cuda": Former(why="`gpu.cuda` of the profile is the lowest accepted CUDA version"),
}
# as they are typed; without dashes: commands of gpucluster
OPTIONS: dict[str, Former] = {
    "--access": _key("access"),
    "--account": _key("slurm.account"),
    "--burnin-profile": _key("burnin.profile"),
    "--drain-confirm": FIXED,
    "--drain-from": _key("drain.min_action"),
    "--drain-max": _key("drain.max"),
    "--drain-min-action": _key("drain.min_action"),
    "--drain-retries": FIXED,
    "--keep-runs": _key("reports.keep"),
    "--metrics": _key("reports.metrics"),
    "--min-nodes": _key("min_nodes"),
    "--oldest-first": Former(why="a campaign always tests the node first whose verdict is the oldest"),
    "--over": _key("access"),
    "--partition": _key("slurm.partition"),
    "--report-group": _key("reports.group"),
    "--reservation": _key("slurm.reservation"),
    "man": Former(why="`gpucluster COMMAND --help` and the reference have every option"),
}


def of_key(loc: Iterable[int | str], root: str = "") -> Former | None:
    """Return what became of a key at a place of a file; `root`: what stands before it in the table."""
    words = [part for part in (root, *loc) if part and isinstance(part, str)]
    # a name of the site's stands there
    forms = [words, *([*words[:at], "*", *words[at + 1 :]] for at in range(1, len(words)))]
    return next((KEYS[name] for name in map(".".join, forms) if name in KEYS), None)


def of_pattern(pattern: str) -> str:
    """Return a sentence about the former checks that a pattern matches, '' for none. A pattern may match present ones too."""
    found = [f"{name!r} {it.text}" for name, it in CHECKS.items() if fnmatchcase(name, pattern)]
    more = f" (and {len(found) - 1} more)" if found[1:] else ""
    return found[0] + more if found else ""


def of_check(name: str) -> str:
    """Return a sentence about the former name of a check, '' for any other name or pattern."""
    return of_pattern(name) if name in CHECKS else ""


def present_part(name: str) -> str:
    """Return a check's name or pattern, or one with a part of its findings; ValueError for the former name of a check."""
    if former := of_check(name):
        raise ValueError(former)
    return name


def present_check(name: str) -> str:
    """Return the name or pattern of whole checks; ValueError for a part of one, or for the former name of a check."""
    check, _, part = name.partition("/")
    if part:
        raise ValueError(f"{name!r} is a part of a check, which waivers and not_applicable may name; write {check}")
    if name in CHECKS and (present := present_name(name)) != name:
        raise ValueError(f"{name!r} is now {present}")
    return present_part(name)


def present_name(check: str) -> str:
    """Return the present name of a check; that of one without a successor is its former one."""
    known = CHECKS.get(check)
    return (known.new.partition("/")[0] if known else "") or check


def named(name: str) -> Former:
    """Return what became of an option, key or check."""
    return next(rows[name] for _, rows in tables() if name in rows)


def tables() -> Iterator[tuple[str, Mapping[str, Former]]]:
    """Yield what each table has, in one word, and its rows."""
    yield from (("option", OPTIONS), ("key", KEYS), ("check", CHECKS))
