"""File systems: errors, rates, latency, metadata, and what nodes see of each other's changes. Pure; the facts are payload.py's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check, revised
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.majority import differs
from pytest_gpucluster.core.outliers import outliers
from pytest_gpucluster.core.part import named
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.kit.node.file_systems import READ_ONLY
from pytest_gpucluster.suites.storage.facts import Quota
from pytest_gpucluster.suites.storage.measured import (
    UNMEASURED,
    Figure,
    best,
    latencies,
    node_of,
    of_path,
    operations,
    rates,
    required,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.core.check import Judgement, Verdict
    from pytest_gpucluster.kit.framework.payload_result import Fact, PayloadResult
    from pytest_gpucluster.suites.storage.config import FileSystem, StorageConfig
    from pytest_gpucluster.suites.storage.facts import PathMount, UsualMount

VISIBLE = 1.0  # s; NVIDIA, N-011: a change of one node is seen by the others within 1 s
# s; a cache that keeps names for 1 s, the default of FUSE (libfuse: entry_timeout) and Weka (dentry_max_age_positive), ends just after
TOO_LATE = 1.1
FEW_INODES = 0.01  # share of the inodes
# errors that settings, rights, full file systems, types without an operation, or a fio without a result (ValueError) cause
_OF_SITE = (
    *("ENOSPC", "EDQUOT", "EROFS", "EACCES", "EPERM", "ENOENT", "ENOTDIR", "unmade", "unseen", ""),
    *("ENOSYS", "ENOTSUP", "ValueError"),  # ENOTSUP: Python's name of EOPNOTSUPP
)
_ONE_NODE = "the run has one node: it proves nothing between nodes"
_NO_SHARED = "no file system of the section is shared"
# types whose client decides where a record goes, by the size that it knows: NFS (open(2)), FUSE and SMB (generic_write_checks of
# Linux), BeeGFS by a lock of the node alone (tuneUseGlobalAppendLocks=false, its default)
_WITHOUT_APPEND = ("nfs", "fuse", "cifs", "smb3", "beegfs")
# letters that `lfs df` puts after a target (lfs-df(1))
_STATES = {
    "D": ("degraded", "degraded, as while its RAID is rebuilt"),
    "R": ("read_only", "read-only"),
    "N": ("no_new_files", "takes no new files"),
    "S": ("out_of_space", "out of space"),
    "I": ("out_of_inodes", "out of inodes"),
}
# a client that gives up returns an error for data that a program has written before (nfs(5))
_GIVE_UP = {"soft", "softerr"}


@check(
    "storage.mount",
    cause="the file system is mounted with other options on this node, or not at all",
    hint="findmnt on the node; /etc/fstab, autofs; mount -o remount",
    action=Action.CONFIGURE,
)
def mount(mounts: Mapping[str, PathMount], usual: Mapping[str, UsualMount], config: StorageConfig) -> Judgement:
    """Type, version, protocol, connections and options of each mount are as on the other nodes of the group; it is writable."""
    for path in (it.path for it in config.filesystems):
        if path not in mounts:
            yield NotAvailable(f"{path}: no mount of the node holds it")
            continue
        part, found = named("mount", path), mounts[path]
        if read_only := READ_ONLY.intersection(found.options):
            yield Finding(part, f"mounted read-only: {', '.join(sorted(read_only))}", "rw", code="read_only")
        elif found.fstype.startswith("nfs") and (soft := _GIVE_UP.intersection(found.options)):
            measured = f"{soft.pop()}, so that writes may be lost while the server is away"
            yield Advisory(part, measured, "hard", code="gives_up")
        kinds, of_kernel = usual[path].kinds, usual[path].of_kernel
        mine = found.kind(of_kernel)
        yield from kinds.judge(part, mine, worse=differs, shown=lambda kind: kind or "nothing")
        if own := found.having(of_kernel):
            measured = f"{','.join(own)} on all nodes with kernel {found.kernel}"
            yield Advisory(part, measured, "not on nodes with another kernel", code="options_of_kernel")
        for name, value in (option.split("=", 1) for option in found.options if option.startswith("nconnect=")):
            yield Metric(f"storage_{name}", float(value), "connections", path, better="neither")
        if found.stripes is not None:
            yield Metric("storage_stripes", found.stripes, "OSTs", path, better="neither")


@check(
    "storage.lustre",
    cause="the node has no connection to a target of Lustre, or the target is down or deactivated",
    hint="lfs df; lctl dl; lctl get_param osc.*.import on the node; dmesg | grep -i lustre",
    action=Action.MONITOR,  # a target that recovers is back after minutes
)
def lustre(mounts: Mapping[str, PathMount]) -> Judgement:
    """Every metadata and object storage target of Lustre answers the node, and none is read-only."""
    found = {path: it for path, it in mounts.items() if it.fstype == "lustre"}
    if not found:
        raise NotApplicable("no path is on Lustre")
    for path, it in found.items():
        if not it.present and not it.absent:
            yield NotAvailable(f"{path}: `lfs df` printed no targets; is lfs installed on the node?")
        for target, why in it.absent:
            yield Finding(named("mount", f"{path} {target}"), Quote(why), "answers", code="absent_target")
        for target, letter in it.states:
            kind = Finding if letter == "R" else Advisory  # the others slow or refuse new files only
            code, state = _STATES.get(letter, ("unknown_state", f"state {letter}"))
            yield kind(named("mount", f"{path} {target}"), state, "no such state in `lfs df`", code=code)


@check(
    "storage.operations",
    cause="the file system returns errors to this node or hangs there",
    hint="dmesg on the node; mount; df; the state of the server",
    action=Action.MONITOR,
)
def operations_end(node_name: str, result: PayloadResult) -> Judgement:
    """Every step of the node ends without an error of the file system."""
    if not result.tasks:
        raise NotAvailable(result.failed.text if result.failed else "the step has no result")
    for fact in result.of_node(node_name, "problem"):
        action = Action.CONFIGURE if fact["code"] in _OF_SITE else None
        part, code = named("mount", f"{fact['path']}: {fact['step']}"), fact["code"].lower() or "refused"
        yield Finding(part, Quote(fact["reason"]), "ends without an error", action, code=code)
    for fact in result.of_node(node_name, "stuck"):
        measured = f"no end after {fact['seconds']:.0f} s"
        yield Finding(named("step", fact["phase"]), measured, "ends", code="no_end")
    unconnected = result.of_node(node_name, "unconnected")
    if unconnected:  # the first node of the step has the reason
        yield NotAvailable(unconnected[0]["reason"])
    elif not result.of_node(node_name, "done") and not result.of_node(node_name, "stuck"):
        yield NotAvailable(result.silence(node_name))


@check(
    "storage.space",
    cause="the file system is almost full, or a quota of the user is",
    hint="df; df -i; quota -s; lfs quota of the user",
    action=Action.CONFIGURE,
)
def space(node_name: str, result: PayloadResult, config: StorageConfig, quotas: Mapping[str, Quota]) -> Judgement:
    """At most 90% of the file system is used, the user's quota has room for the measurement, and inodes are left."""
    for path in (it.path for it in config.filesystems):
        part, fact = named("mount", path), next(iter(of_path(result, "space", path, node_name)), None)
        if fact is None:
            yield NotAvailable(f"{path}: {UNMEASURED}")
            continue
        if not fact["room"]:
            used = 1 - fact["free"] / max(1, fact["size"])
            measured = Quantity(100 * used, "%", f"{used:.0%} of {format_size(fact['size'])} used")
            most = Quantity(100 * config.max_use, "%", f"at most {config.max_use:.0%} used")
            yield Finding(part, measured, most, code="too_full")
        needed = max(config.files, FEW_INODES * fact["inodes"])
        if fact["inodes"] and fact["inodes_free"] < needed:
            measured = Quantity(fact["inodes_free"], "inodes", f"{fact['inodes_free']} inodes left")
            text = f"{FEW_INODES:.0%} of {fact['inodes']}, and {config.files} for this run"
            yield Finding(part, measured, Quantity(needed, "inodes", text), code="few_inodes")
        yield Metric("storage_free", fact["free"] / 1e9, "GB", path, better="neither")
        quota = quotas.get(path, Quota(None, None))  # nothing is stated without the tool
        yield from _quota(path, quota, min(config.budget, fact["room"] // 2), config.files)


def _quota(path: str, found: Quota, size: int, files: int) -> Iterator[Finding | Metric]:
    """Judge what the user's quota leaves for the bytes and files of the run."""
    part = named("mount", f"{path} quota")
    if found.left is not None:
        yield Metric("storage_quota_left", found.left / 1e9, "GB", path, better="neither")
        if found.left < size:
            left = Quantity(found.left, "B", f"{format_size(found.left)} left")
            needed = Quantity(size, "B", f"{format_size(size)} for this run")
            yield Finding(part, left, needed, code="too_full")
    if found.files_left is not None:
        yield Metric("storage_quota_files_left", found.files_left, "files", path, better="neither")
        if found.files_left < files:
            left = Quantity(found.files_left, "files", f"{found.files_left} files left")
            needed = Quantity(files, "files", f"{files} for this run")
            yield Finding(part, left, needed, code="few_files")


@check(
    "storage.bandwidth",
    cause="the node's mount, adapter, cable or disk is slow; if it is slow only beside the others, the link or leaf that it shares",
    hint="compare mount options and nconnect; ethtool -S or perfquery of its adapter; the same fio alone on this node",
    action=Action.MONITOR,
)
def bandwidth(node_name: str, result: PayloadResult, config: StorageConfig, peers: Collection[str] = ()) -> Judgement:
    """The sequential rates of the node are not below those of the other nodes of its group, while all nodes read or write.

    The fastest and the slowest nodes were measured alone too: a node that is slow there as well fails. So does one that
    is an outlier in both directions, or on its local disk in one. Where fewer than two thirds are clearly faster, it is a warning.
    """
    for fs in config.filesystems:
        figures = [rates(result, fs.path, what).among(peers) for what in ("write", "read")]
        outlying = [it for it in figures if it.slow(node_name, config.min_relative)]
        for figure in figures:
            alone = rates(result, fs.path, figure.measurement, "alone").among(peers)
            slow_alone = _below(alone, node_name, best([alone]), config)
            if figure in outlying or (slow_alone and _below(figure, node_name, figure.median, config)):
                finding = _slower(fs, figure, node_name, _alone_text(alone, node_name))
                proved = slow_alone or len(outlying) > 1 or fs.kind == "local"  # the node has its disk alone
                yield _unless_shared(finding, figure, node_name, config, proved=proved)
        yield from _recorded(fs, figures, node_name)


def _unless_shared(
    found: Finding, figure: Figure, node: str, config: StorageConfig, *, proved: bool
) -> Finding | Advisory:
    """Return a finding that is proved, if most nodes are faster; else a warning."""
    if proved and figure.has_faster_majority(node, config.min_relative):
        return found
    return Advisory(found.part, found.measured, found.expected, found.code)


def _below(figure: Figure, node: str, reference: float, config: StorageConfig) -> bool:
    """Return whether a node has a rate, with others to compare, that is far below this one."""
    if node not in figure.values or len(figure.values) < 2:
        return False
    return figure.values[node] < (1 - config.min_relative) * reference and figure.late(node, reference)


def _alone_text(alone: Figure, node: str) -> str:
    if node not in alone.values:
        return ""
    others = max((value for name, value in alone.values.items() if name != node), default=None)
    return f"; alone {alone.values[node]:.3g}" + (f", the fastest node alone {others:.3g}" if others else "")


def _slower(fs: FileSystem, figure: Figure, node: str, more: str = "") -> Finding:
    word = figure.name.removeprefix("storage_").replace("_", " ")
    value, unit, median = figure.values[node], figure.unit, figure.median
    measured = Quantity(value, unit, f"{value:.3g} {unit} with all nodes{more}")
    text = f"about {median:.3g} {unit}, the median of {len(figure.values)} nodes"
    return Finding(named("mount", f"{fs.path} {word}"), measured, Quantity(median, unit, text), code="slow")


def _recorded(fs: FileSystem, figures: Sequence[Figure], node: str) -> Iterator[Finding | Metric | NotAvailable]:
    """Record the figures of a node, and judge what each node must reach on a local file system."""
    found = [it for it in figures if node in it.values]
    if not found:
        yield NotAvailable(f"{fs.path}: {UNMEASURED}")
    for figure in found:
        value, unit = figure.values[node], figure.unit
        key = _stated(figure)
        least = fs.figures.get(key) if fs.kind == "local" else None
        bound = _stated_bound(key, least, unit) if least is not None else None
        if bound is not None and value < bound.number:
            part = named("mount", f"{fs.path} {figure.name.removeprefix('storage_')}")
            measured = Quantity(value, unit, f"{value:.3g} {unit}")
            yield Finding(part, measured, bound, code="less_than_stated")
        better = "higher" if figure.less_is_worse else ""
        yield Metric(figure.name, value, unit, fs.path, better=better, bound=bound)


def _stated_bound(key: str, least: float, unit: str) -> Quantity:
    return Quantity(least, unit, f"at least {least:.3g} {unit} (storage.expect.{key})")


def _stated(figure: Figure) -> str:
    """Return the key of `expect` of a figure."""
    name = figure.name.removeprefix("storage_")
    return "creates" if name == "create_files" else name


@check(
    "storage.aggregate",
    each="results",
    cause="the server, or a link that all nodes share, is saturated; or each client is slow",
    hint="more nodes than one reach no more: the load of the servers and their links; else nconnect, rsize and wsize, stripes",
    action=Action.CONFIGURE,
    setting="storage.filesystems",
)
def aggregate(result: PayloadResult, config: StorageConfig) -> Judgement:
    """All nodes together reach what `expect` states of a shared file system."""
    shared = [fs for fs in config.filesystems if fs.kind == "shared"]
    if not shared:
        raise NotApplicable(_NO_SHARED)
    for fs in shared:
        together = {what: rates(result, fs.path, what) for what in ("write", "read")}
        alone = {what: rates(result, fs.path, what, "alone") for what in ("write", "read")}
        measured = {what: total(figure) for what, figure in together.items() if figure.values}
        measured |= {f"{what}_alone": best([it]) for what, it in alone.items() if it.values}
        others = [*latencies(result, fs.path), *operations(result, fs.path)]
        measured |= {_stated(it): total(it) for it in others if it.less_is_worse and it.values}
        if not measured:
            yield NotAvailable(f"{fs.path}: {UNMEASURED}")
            continue
        for name, least in fs.figures.items():
            if name not in measured:
                yield NotAvailable(f"{fs.path} {name}: {UNMEASURED}")
            elif measured[name] < least:
                unit, why = _unit(name), _limits(name, together, alone)
                found = Quantity(measured[name], unit, f"{measured[name]:.3g} {unit}{why}")
                bound = _stated_bound(name, least, unit)
                yield Finding(named("mount", f"{fs.path} {name}"), found, bound, code="less_than_stated")
        for name, value in measured.items():
            unit = _unit(name)
            stated = _stated_bound(name, fs.figures[name], unit) if name in fs.figures else None
            yield Metric(f"storage_all_{name}", value, unit, fs.path, better="higher", bound=stated)


def _unit(name: str) -> str:
    if name.removesuffix("_alone") in ("read", "write"):
        return "GB/s"
    return "IO/s" if name.endswith("iops") else "files/s"


def _limits(name: str, together: Mapping[str, Figure], alone: Mapping[str, Figure]) -> str:
    """Return what the rates alone and together show: a saturated server or link, or slow clients."""
    if name not in together or not alone[name].values or len(together[name].values) < 2:
        return ""
    nodes, single = len(together[name].values), best([alone[name]])
    share = total(together[name]) / (nodes * single) if single else 1.0
    if share < 0.7:
        return f" by {nodes} nodes, one alone {single:.3g}; the server or a shared link limits"
    return f" by {nodes} nodes, one alone {single:.3g}; each client limits"


def _slow_in(
    fs: FileSystem, figures: Sequence[Figure], node: str, config: StorageConfig
) -> Iterator[Finding | Advisory]:
    """Judge figures of short operations: a node that is slow in one measurement only is a warning, except on a disk of its own."""
    slow = [it for it in figures if it.slow(node, config.min_relative)]
    proved = len(slow) > 1 and (fs.kind == "local" or len({it.measurement for it in slow}) > 1)
    for figure in slow:
        yield _unless_shared(_slower(fs, figure, node), figure, node, config, proved=proved)


@check(
    "storage.latency",
    cause="the node's path to the server, or its disk, is slow",
    hint="ping the server from this node and from another one; iostat -x; nfsiostat",
    action=Action.MONITOR,
)
def latency(node_name: str, result: PayloadResult, config: StorageConfig, peers: Collection[str] = ()) -> Judgement:
    """Random accesses of 4 KiB and fsync take as long as on the other nodes of the group."""
    for fs in config.filesystems:
        figures = [it.among(peers) for it in latencies(result, fs.path)]
        # the slowest accesses vary on healthy nodes
        usual = [it for it in figures if not it.name.endswith("_p99")]
        yield from _slow_in(fs, usual, node_name, config)
        yield from _recorded(fs, figures, node_name)


@check(
    "storage.metadata",
    cause="the node's path to the metadata server is slow, or it lists an old state of a folder",
    hint="mount options noac, acdirmax and lookupcache; lctl get_param mdc.*.stats",
    action=Action.MONITOR,
)
def metadata(node_name: str, result: PayloadResult, config: StorageConfig, peers: Collection[str] = ()) -> Judgement:
    """Small files are created, examined and removed as fast as on the other nodes of the group; a folder lists all files of another node."""
    for fs in config.filesystems:
        figures = [it.among(peers) for it in operations(result, fs.path)]
        for fact in of_path(result, "listed", fs.path, node_name):
            if fact["seen"] != fact["made"]:
                writer = node_of(result, fact["writer"])
                seen = Quantity(fact["seen"], "files")
                made = Quantity(fact["made"], "files", f"{fact['made']}, which {writer} created before")
                yield Finding(named("mount", f"{fs.path} list"), seen, made, code="old_list")
        judged = [it for it in figures if not it.name.startswith("storage_list")]
        yield from _slow_in(fs, judged, node_name, config)
        yield from _recorded(fs, figures, node_name)


def _shared(result: PayloadResult, config: StorageConfig) -> list[str]:
    """Return the paths on which nodes meet; NotApplicable without any."""
    if len(result.nodes) < 2:
        raise NotApplicable(_ONE_NODE)
    paths = [fs.path for fs in config.filesystems if fs.kind == "shared"]
    if not paths:
        raise NotApplicable(_NO_SHARED)
    return paths


@check(
    "storage.visibility",
    cause="the node caches names, attributes or data too long",
    hint="mount options actimeo, acdirmax, lookupcache; the clocks of node and server; lctl get_param ldlm.*",
    action=Action.CONFIGURE,
)
def visibility(node_name: str, result: PayloadResult, config: StorageConfig) -> Judgement:
    """A new file, new content and a new name of another node are seen within 1 s (NVIDIA, N-011)."""
    for path in _shared(result, config):
        for fact in required(result, "seen", path, node_name):
            part = named("mount", f"{path} {fact['change']}")
            seconds, writer = fact["seconds"], node_of(result, fact["writer"])
            expected = Quantity(VISIBLE, "s", f"seen within {VISIBLE:g} s of the end of the change")
            if seconds is None:
                measured = f"the change of {writer} was not seen within 10 s"
                yield Finding(part, measured, expected, code="unseen")
                continue
            if seconds > TOO_LATE:
                late = Quantity(seconds, "s", f"the change of {writer} was seen after {seconds:.1f} s")
                yield Finding(part, late, expected, code="seen_late")
            yield Metric(f"storage_seen_{fact['change']}", seconds, "s", path)


@check(
    "storage.locks",
    cause="locks of this node are not known to the server: they are local to the node, or not supported",
    hint="mount options local_lock and nolock (NFS), flock and localflock (Lustre); rpc.statd",
    action=Action.CONFIGURE,
)
def locks(node_name: str, result: PayloadResult, config: StorageConfig) -> Judgement:
    """Locks of one node, flock and fcntl, hold against another one, until it releases them."""
    for path in _shared(result, config):
        for fact in required(result, "locked", path, node_name):
            for kind, problem in fact["problems"].items():
                if problem:
                    part, expected = named("mount", f"{path} {kind}"), "the node can lock its own file"
                    yield Finding(part, Quote(problem), expected, code="cannot_lock")
        deaf = _locks_of_itself(of_path(result, "lock", path))
        tried = of_path(result, "lock", path, node_name)
        if not tried:
            yield NotAvailable(f"{path}: no other node held a lock that this one could try")
        for fact in tried:
            holder = node_of(result, fact["holder"])
            key, problem = (fact["lock"], int(fact["rank"])), fact["problem"]
            part = named("mount", f"{path} {fact['lock']}")
            if fact["state"] == "held" and problem != "held":
                of_holder = (fact["lock"], fact["holder"]) in deaf and key not in deaf
                if not of_holder:
                    measured = Quote(problem or f"taken while {holder} holds it")
                    yield Finding(part, measured, "refused", code="failed" if problem else "not_exclusive")
            elif fact["state"] == "released" and problem:
                code = "still_held" if problem == "held" else "failed"
                yield Finding(part, Quote(f"{problem} after {holder} released it"), "taken", code=code)


def _locks_of_itself(facts: Iterable[Fact]) -> set[tuple[str, int]]:
    """Return (kind of lock, rank) of nodes that took a held lock, and whose own one another node took."""
    taken = {
        (it["lock"], int(it["rank"]), int(it["holder"])) for it in facts if it["state"] == "held" and not it["problem"]
    }
    return {(kind, rank) for kind, rank, _ in taken} & {(kind, holder) for kind, _, holder in taken}


@check(
    "storage.append",
    each="results",
    cause="the file system does not append atomically: records of several nodes overwrite one another",
    hint="write a file per node, or lock the file",
    action=Action.CONFIGURE,
)
def append(result: PayloadResult, config: StorageConfig, types: Mapping[str, str]) -> Judgement:
    """Records that all nodes append to one file at the same time are all in it."""
    paths = [path for path in _shared(result, config) if not types.get(path, "").startswith(_WITHOUT_APPEND)]
    if not paths:
        raise NotApplicable("the clients of these file systems do not append atomically")
    for path in paths:
        found = of_path(result, "appended", path)
        if not found:
            yield NotAvailable(f"{path}: {UNMEASURED}")
        for fact in found:
            if fact["lost"]:
                text = f"{fact['lost']} of {fact['records']} records are lost"
                lost, none = Quantity(fact["lost"], "records", text), Quantity(0, "records", "every record")
                yield Finding(named("mount", f"{path} append"), lost, none, code="lost_records")


def _only_this_reader(verdict: Verdict, node_name: str, result: PayloadResult, *_facts: object) -> Verdict:
    """Return the verdict without a drain unless the node read other bytes twice where another node read the right ones."""
    wrong = [it for it in result.of_node(node_name, "verified") if it["wrong"]]
    right = {
        (it["path"], it["writer"]) for it in result.facts("verified") if not it["wrong"] and it["node"] != node_name
    }
    if wrong and all(it["other"] and (it["path"], it["writer"]) in right for it in wrong):
        return verdict
    return replace(verdict, action=Action.MONITOR)


@revised(_only_this_reader)
@check(
    "storage.integrity",
    cause="memory, the adapter or the disk of the node corrupts data; if several nodes read the same wrong bytes, their writer does",
    hint="dmesg; the memory and link errors of the node; sha256sum of one file on this node and on another one",
    action=Action.DRAIN,
    never_healthy="a healthy node does not read a whole block of other bytes twice, the second time without its page cache, where "
    "another node reads, in the same file, the bytes that were written",
)
def integrity(node_name: str, result: PayloadResult, config: StorageConfig) -> Judgement:
    """The checksums of files that other nodes wrote are right (local: of the node's own file)."""
    for path in (fs.path for fs in config.filesystems):
        for fact in required(result, "verified", path, node_name):
            if not fact["wrong"]:
                continue
            writer, blocks = node_of(result, fact["writer"]), ", ".join(map(str, fact["wrong"]))
            code, again = (
                ("other_bytes", "other bytes")
                if fact["other"]
                else ("bytes_missing", "not all bytes have arrived")
                if fact["again"]
                else ("right_later", "right")
            )
            measured = f"MiB {blocks} of {fact['blocks']} that {writer} wrote are wrong; at the second reading: {again}"
            yield Finding(named("mount", f"{path} checksums"), measured, "what was written", code=code)


@check(
    "storage.imports",
    cause="the environment is on slow storage, or is not the same on this node",
    hint="time python3 -c 'import torch' on one node while the others are idle; an image or a local copy of the environment",
    action=Action.CONFIGURE,
    setting="storage.imports",
)
def imports(node_name: str, result: PayloadResult, config: StorageConfig) -> Judgement:
    """The modules of `storage.imports` are imported on all nodes at once, as fast as on the other nodes."""
    if not config.imports:
        raise NotApplicable("storage.imports names no module")
    times = {str(it["node"]): it["seconds"] for it in result.facts("imported") if not it["problem"]}
    mine = result.of_node(node_name, "imported")
    if not mine:
        raise NotAvailable(f"no result: {result.silence(node_name)}")
    part = named("software", f"import {', '.join(config.imports)}")
    if mine[0]["problem"]:
        yield Finding(part, Quote(mine[0]["problem"]), "imported", code=mine[0]["code"])
        return
    found = outliers(times, min_relative=config.min_relative)
    if node_name in found.high:
        text = f"about {found.median:.1f} s, the median of {len(times)} nodes"
        measured = Quantity(times[node_name], "s", f"{times[node_name]:.1f} s")
        yield Advisory(part, measured, Quantity(found.median, "s", text), code="slow")
    yield Metric("storage_import", times[node_name], "s")
