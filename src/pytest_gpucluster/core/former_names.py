"""Former names of checks, keys and options, since 0.2.0: what to write instead, or why one went. Pure.

One table for cluster files, profiles, waivers, the command line and the reasons of drained nodes; docs/from-0.2.0.md is
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


FIXED = Former(why="it has a fixed value; remove the key")


def _key(name: str) -> Former:
    return Former(f"the key {name} of the cluster file, or --set {name}=VALUE")


def _leave_out(check: str, why: str = "it is always tested") -> Former:
    return Former(why=f"{why}; `not_applicable: {{{check}: WHY}}` leaves it out")


def _keys(section: str, names: str) -> Iterator[str]:
    return (f"{section}.{name}" for name in names.split())


# SUITE.WHAT
CHECKS: dict[str, Former] = {
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
}
# dotted, without the numbers of lists; `profile.` before those of profiles
KEYS: dict[str, Former] = {
    "over": Former("access"),
    **dict.fromkeys(
        (
            *_keys(
                "burnin",
                "beat dcgm_timeout dtypes load max_corrected max_throttled min_relative nccl_size sample silence",
            ),
            *_keys("ddp", "lost_rank ntasks_per_node"),
            *_keys("matrix", "deadline ntasks_per_node"),
            *_keys("monitoring", "max_scrape_age timeout"),
            *_keys("nccl", "min_relative pair_size"),
            *_keys("os", "max_clock_skew max_load_per_cpu max_zombies"),
            *_keys("ray", "leave ntasks_per_node"),
            *_keys("submitit", "deadline nodes ntasks_per_node wait"),
            *("container.ntasks_per_node", "horovod.ntasks_per_node", "tensorflow.ntasks_per_node"),
            *("ssh.alive", "transport.alive"),
        ),
        FIXED,
    ),
    "gpu.xid_ignore": Former(
        "an entry of `known`: its pattern is a part of the line, as 'NVRM: Xid .*: 74,'"
    ),
    "kubernetes.nccl": _leave_out("kubernetes.job_nccl", "with `jobs: true` it is always tested"),
    "monitoring.alerts": _leave_out("monitoring.alerts"),
    "os.time_sync": _leave_out("os.time_sync"),
    "ray.tune": _leave_out("ray.tune"),
}
# as they are typed; without dashes: commands of gpucluster
OPTIONS: dict[str, Former] = {
    "--access": _key("access"),
    "--account": _key("slurm.account"),
    "--burnin-profile": _key("burnin.profile"),
    "--drain-confirm": _key("drain.retries"),
    "--drain-from": _key("drain.min_action"),
    "--drain-max": _key("drain.max"),
    "--drain-min-action": _key("drain.min_action"),
    "--drain-retries": _key("drain.retries"),
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
    words = (root, *(part for part in loc if isinstance(part, str)))
    return KEYS.get(".".join(filter(None, words)))


def of_pattern(pattern: str) -> str:
    """Return a sentence about the former checks that a pattern matches, '' for none. A pattern may match present ones too."""
    found = [f"{name!r} {it.text}" for name, it in CHECKS.items() if fnmatchcase(name, pattern)]
    more = f" (and {len(found) - 1} more)" if found[1:] else ""
    return found[0] + more if found else ""


def of_check(name: str) -> str:
    """Return a sentence about the former name of a check, '' for any other name or pattern."""
    return of_pattern(name) if name in CHECKS else ""


def present_check(name: str) -> str:
    """Return a check's name or pattern; ValueError for the former name of a check."""
    if former := of_check(name):
        raise ValueError(former)
    return name


def present_name(check: str) -> str:
    """Return the present name of a check; that of one without a successor is its former one."""
    known = CHECKS.get(check)
    return (known.new.partition("/")[0] if known else "") or check


def tables() -> Iterator[tuple[str, Mapping[str, Former]]]:
    """Yield a title and the rows of each table that has some."""
    for title, rows in (("option or command", OPTIONS), ("key", KEYS), ("check", CHECKS)):
        if rows:
            yield title, rows
