"""The mounts of the tested paths, as /proc/mounts and Lustre's `lfs` show them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.core.probe import Answer, Probe, text_of
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.suites.storage.config import StorageConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.majority import Norm

# differ between nodes with the same mount: what names an end of its connection (addr, clientaddr, mon_addr, mountport, localports;
# name, container_name of its client), places of a node (lowerdir) and their numbers (subvolid of Btrfs, the journal in hostdata of
# GFS2), labels of its SELinux, and shares of its memory (tmpfs(5))
_OWN = re.compile(
    r"\w*(addr|port|name)s?=.*|\w+\+?=[^=]*/.*|subvolid=\d+|hostdata=.*"
    r"|seclabel|(fs|def|root)?context=.*|size=\d+k|nr_inodes=\d+k?"
)
_OPTION = re.compile(r'(?:"[^"]*"|[^,"])+')  # a label with commas is in quotation marks
# options of mount(8), nfs(5) and mount.lustre(8) that every kernel prints where they are set: of a newer kernel, only a mount of its own
_SET = re.compile(
    r"(dir)?sync|no(dir)?atime|nosuid|nodev|noexec|hard|soft|no(cto|ac|lock|acl|rdirplus|sharecache|resvport)|ac(reg|dir)m(in|ax)"
    r"|fsc|lookupcache|nconnect|(local)?flock"
)
# `lfs df` of Lustre 2.1 to 2.15 (utils/lfs.c: showdf): a target ends with [OST:0] and letters of its state, capital ones for trouble
# (lfs-df(1)); an absent one has ':' and a reason instead of its numbers
_TARGET = re.compile(r"(\S+) .*\[(?:MDT|OST):\d+\](?: (\w+))?")
_ABSENT = re.compile(r"(\S+)\s*: ([A-Za-z].*)")
# the line after all targets: filesystem_summary, before Lustre 2.11 'filesystem summary'
_LAST = "filesystem"
# after the name of the file system: KiB and files, each as used (* if that is too much), soft limit, hard limit (0: none) and grace
# time. `quota -w -p` of linuxquota 4 (quota.c: showquotas) and `lfs quota -q` (utils/lfs.c: print_quota); Lustre puts what
# it could not read of all targets into brackets, and such a row states nothing
_QUOTA = r"\s+(\d+)\*? +(\d+) +(\d+) +\S+ +(\d+)\*? +(\d+) +(\d+) +\S+"


T = TypeVar("T")


class Quota(NamedTuple):
    """Bytes and files that the quota of this user leaves; None without a limit."""

    left: int | None
    files_left: int | None


@dataclass(frozen=True)
class PathMount:
    """The mount that holds a path. options: sorted, without addresses. present: targets of Lustre that answer.

    absent: the others, with the reason. states: (target, letter of its trouble). stripes: of a new file on Lustre, -1 for all
    targets; None elsewhere. kernel: its release.
    """

    point: str
    fstype: str
    source: str
    options: tuple[str, ...]
    present: int = 0
    absent: tuple[tuple[str, str], ...] = ()
    states: tuple[tuple[str, str], ...] = ()
    stripes: int | None = None
    kernel: str = ""

    def kind(self, without: Collection[str] = ()) -> str:
        """Type and options as one text, without these options."""
        return f"{self.fstype} {','.join(it for it in self.options if _key(it) not in without)}"

    def having(self, keys: Collection[str]) -> list[str]:
        """Return the options with these keys."""
        return [it for it in self.options if _key(it) in keys]


@dataclass(frozen=True)
class UsualMount:
    """Type and options as on most nodes, without `of_kernel`: the options that some kernels print and others do not."""

    kinds: Norm[str]
    of_kernel: frozenset[str] = frozenset()


def mounts(cluster: Cluster) -> Probe[dict[str, PathMount]]:
    """Return the probe of {path: its mount} of the paths in the section."""
    return _probe(cluster, "mounts", read_mounts, "findmnt; lfs df")


def quotas(cluster: Cluster) -> Probe[dict[str, Quota]]:
    """Return the probe of {path: what the user's quota leaves} of the paths in the section."""
    return _probe(cluster, "quotas", read_quotas, "quota -v; lfs quota")


def _probe(
    cluster: Cluster, what: str, read: Callable[[Answer, tuple[str, ...]], dict[str, T]], command: str
) -> Probe[dict[str, T]]:
    """Return the probe that runs WHAT.sh on the paths of the section."""
    config = cluster.section(StorageConfig)
    paths = tuple(one.path for one in config.filesystems) if config else ()
    quoted = " ".join(map(shlex.quote, paths)) or "''"
    return Probe(
        f"{what} of storage",
        "\n".join((script(__package__, "paths.sh", PATHS=quoted), script(__package__, f"{what}.sh"))),
        lambda answer: read(answer, paths),
        by_hand=command,
        alone=True,
    )


def read_mounts(answer: Answer, paths: tuple[str, ...]) -> dict[str, PathMount]:
    """Return {path: its mount}, without paths that no line of the output holds, or that no automounter has mounted."""
    text, listed = text_of(answer), {}
    kernel = re.search(r"^kernel (\S+)$", text, re.MULTILINE)
    for words in map(str.split, text.splitlines()):
        if len(words) == 6 and words[1].startswith("/"):  # proc_pid_mounts(5), fstab(5)
            escaped = (re.sub(r"\\(040|011|012|134)", lambda it: chr(int(it[1], 8)), word) for word in words)
            source, point, fstype, options, *_ = escaped
            common = sorted(it for it in _OPTION.findall(options) if not _OWN.fullmatch(it))
            release = kernel[1] if kernel else ""
            listed[point] = PathMount(point, fstype, source, tuple(common), kernel=release)
    found_mounts = {}
    for path in paths:
        leads = re.search(rf"^at {re.escape(path)}\nto (/.*)$", text, re.MULTILINE)
        real = leads[1] if leads else path
        holding = [one for one in listed if f"{real}/".startswith(one.rstrip("/") + "/")]
        found = listed.get(max(holding, key=len, default=""))
        if found and found.fstype != "autofs":
            found_mounts[path] = _with_lustre(found, path, text)
    return found_mounts


def read_quotas(answer: Answer, paths: tuple[str, ...]) -> dict[str, Quota]:
    """Return {path: quota}: the row of its source, on Lustre that below `lfs quota PATH`; without paths that have none."""
    text, found = text_of(answer), {}
    for path, mount in read_mounts(answer, paths).items():
        of_lfs = rf"^lfs quota {re.escape(path)}\n\s*\S+{_QUOTA}"
        of_source = rf"^ *{re.escape(mount.source)}{_QUOTA}$"
        if row := re.search(of_lfs if mount.fstype == "lustre" else of_source, text, re.MULTILINE):
            used, soft, hard, *files = map(int, row.groups())
            size = _left(1024 * used, 1024 * soft, 1024 * hard)
            found[path] = Quota(size, _left(*files))
    return found


def _left(used: int, soft: int, hard: int) -> int | None:
    return max(0, (hard or soft) - used) if hard or soft else None


def _with_lustre(mount: PathMount, path: str, text: str) -> PathMount:
    if mount.fstype != "lustre":
        return mount
    table = re.search(rf"^lfs df {re.escape(path)}\n((?:(?!lfs ).*\n)*)", text, re.MULTILINE)
    rows = [line.strip() for line in (table[1] if table else "").splitlines()]
    absent = tuple((found[1], found[2]) for row in rows if (found := _ABSENT.fullmatch(row)))
    known = [found.groups("") for row in rows if (found := _TARGET.fullmatch(row))]
    if known and not any(row.startswith(_LAST) for row in rows):
        absent += ((f"the target after {known[-1][0]}", "`lfs df` did not end"),)
    states = tuple((target, it) for target, letters in known for it in letters if it.isupper())
    stripes = re.search(rf"^lfs getstripe {re.escape(path)}\n(-?\d+)$", text, re.MULTILINE)
    count = int(stripes[1]) if stripes else None
    return replace(mount, present=len(known), absent=absent, states=states, stripes=count)


def usual_mounts(found: Mapping[str, Mapping[str, PathMount]]) -> dict[str, UsualMount]:
    """Return {path: type and options as on most nodes}."""
    usual = {}
    for path in dict.fromkeys(path for of_node in found.values() for path in of_node):
        having = {node: of_node[path] for node, of_node in found.items() if path in of_node}
        usual_type = norm((node, it.fstype) for node, it in having.items()).votes[0][0]
        without = _of_kernel([it for it in having.values() if it.fstype == usual_type])
        usual[path] = UsualMount(norm((node, it.kind(without)) for node, it in having.items()), without)
    return usual


def _key(option: str) -> str:
    return option.partition("=")[0]


def _of_kernel(mounts: Collection[PathMount]) -> frozenset[str]:
    """Return the options that all nodes of some kernel releases have, and none of the others.

    A newer kernel prints more options of the same mount (NFS: fatal_neterrors since Linux 6.15), or fewer (ext4: data=ordered).
    Where a release has one of `_SET`, or one instead of its like (noquota for prjquota), the mounts differ.
    """
    keys = grouped((it.kernel, frozenset(map(_key, it.options))) for it in mounts)
    every = [of_nodes[0].intersection(*of_nodes) for of_nodes in keys.values()]
    some = [of_nodes[0].union(*of_nodes) for of_nodes in keys.values()]
    of_kernel = {*every[0].union(*every)} - every[0].intersection(*every)
    for of_every, of_some in zip(every, some, strict=True):
        of_kernel -= of_some - of_every
    # words with the same end are alike, unless one release prints both
    instead = {
        it
        for it in of_kernel
        for like in of_kernel
        if it[-3:] == like[-3:] and not any({it, like} <= of_every for of_every in every)
    }
    return frozenset(it for it in of_kernel - instead if not _SET.fullmatch(it))


def types_of(found: Mapping[str, Mapping[str, PathMount]]) -> dict[str, str]:
    """Return {path: type of its file system}, of the first node that has it."""
    of_nodes = reversed(list(found.values()))
    return {path: mount.fstype for of_node in of_nodes for path, mount in of_node.items()}
