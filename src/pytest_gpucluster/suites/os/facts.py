"""The operating system of a node: one command for all facts that are quick to read, and their readers.

All probes of this file share BASICS, so the fleet runs it once. Its output has sections, each with the exit status of
its command; if a section could not be read, only its probes are NotAvailable.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pytest_gpucluster.core.command_end import STATUS, CommandEnd
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe, last_line, text_of
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.core.units import cpu_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

# ASCII record separator, which no file that is read here contains
MARK = "\x1e"
# `s NAME COMMAND...` runs a command as a section and leaves its exit status in $r
SECTIONS_SH = script(__package__, "sections.sh") + "\n"
TUNABLES = (
    "kernel/core_pattern",
    "kernel/pid_max",
    "kernel/randomize_va_space",
    "vm/max_map_count",
    "vm/overcommit_memory",
    "vm/swappiness",
)
_CPUS = "/sys/devices/system/cpu"
_PROC = "/proc/uptime /proc/loadavg /proc/cmdline"
_SYSCTLS = " ".join(f"/proc/sys/{name}" for name in TUNABLES)
_TAINT_FILE = "/proc/sys/kernel/tainted"
_THP_FILE = "/sys/kernel/mm/transparent_hugepage/enabled"
_LSM_FILE = "/sys/kernel/security/lsm"
BASICS = SECTIONS_SH + script(
    __package__, "basics.sh", CPUS=_CPUS, PROC=_PROC, SYSCTLS=_SYSCTLS, TAINT=_TAINT_FILE, THP=_THP_FILE, LSM=_LSM_FILE
)


class CommandSection(NamedTuple):
    """Output (both streams) and end of one command in a combined answer."""

    text: str
    end: CommandEnd

    @property
    def rc(self) -> int | None:
        """The exit status, None without one."""
        return self.end.status


@dataclass(frozen=True)
class Clock:
    """Seconds since the epoch: the node's clock, and the controller's at the command and at its answer."""

    time: float
    sent: float | None = None
    received: float | None = None


@dataclass(frozen=True)
class Load:
    """Load averages over 1, 5 and 15 minutes."""

    one: float
    five: float
    fifteen: float


@dataclass(frozen=True)
class Cpus:
    """Facts of lscpu. `offline` is a CPU list like 2-3, '' if all CPUs are online.

    memory_nodes: how many of `numa_nodes` have no CPU: memory of a GPU (GH200, GB200) or a CXL expander.
    """

    online: int
    offline: str
    numa_nodes: int
    sockets: str
    threads_per_core: str
    model: str
    architecture: str
    memory_nodes: int = 0
    hypervisor: str = ""  # of a virtual machine, as KVM

    @property
    def cpu_nodes(self) -> int:
        """The number of NUMA nodes with CPUs."""
        return self.numa_nodes - self.memory_nodes


@dataclass(frozen=True)
class Mount:
    """A line of /proc/mounts."""

    source: str
    path: str
    fstype: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class MemoryInfo:
    """From /proc/meminfo, in bytes; `hugepages` is a number of pages of `hugepage_size`."""

    total: int
    available: int
    swap_total: int
    swap_free: int
    hugepages: int
    hugepage_size: int


def sections(answer: Answer) -> dict[str, CommandSection]:
    """Split a combined answer at its marks; ProbeError if they are not in order, NotAvailable if a command was killed."""
    chunks = text_of(answer).split(MARK)[1:]
    found: dict[str, CommandSection] = {}
    for head, tail in zip(chunks[::2], chunks[1::2], strict=False):
        name, _, text = head.partition("\n")
        status = re.fullmatch(rf"=({STATUS})\n?", tail)
        if not status:
            raise ProbeError(f"section {name!r} does not end with its exit status: {tail[:40]!r}")
        found[name] = CommandSection(text, CommandEnd.of(status[1]))
        if found[name].end.signal:
            raise NotAvailable(f"{name}: {found[name].end}")
    if not found:
        raise ProbeError(f"no section in the answer: {answer.out[:60]!r}")
    return found


def basic_sections(answer: Answer) -> dict[str, CommandSection]:
    """Split an answer of BASICS into its sections, also those that one process read together."""
    found = sections(answer)
    files, names = found.pop("files", None), found.pop("names", None)
    if files is not None and files.rc == 0:
        found |= {name: CommandSection(text, CommandEnd(0)) for name, text in split_files(files.text).items()}
    if names is not None:
        host, _, kernel = names.text.strip().partition(" ")
        found |= {"hostname": CommandSection(host, names.end), "kernel": CommandSection(kernel or host, names.end)}
    return found


def split_files(text: str) -> dict[str, str]:
    """Return {section of BASICS: text} of the files that one process read; ProbeError if they cannot be separated."""
    parts = re.split(r"Linux\nLinux\n(?!Linux\n)", text)
    lines = parts[0].splitlines(keepends=True)
    ones = 3 + len(TUNABLES) + 2  # uptime, loadavg, cmdline; taint, thp; then the governors, one line each
    if len(parts) != 6 or len(lines) <= ones:  # lines, release, meminfo, limits, mounts, lsm
        raise ProbeError(f"/proc and /sys: {len(parts)} files of 6, not understood: {text[:40]!r}")
    return {
        "proc": "".join(lines[:3]) + parts[2],
        "tunables": "".join(lines[3 : ones - 2]),
        "taint": lines[ones - 2],
        "thp": lines[ones - 1],
        "governor": "".join(lines[ones:]),
        "release": parts[1],
        "limits": parts[3],
        "mounts": parts[4],
        "lsm": parts[5],
    }


def section(answer: Answer, name: str) -> str:
    """Return the text of one section of BASICS; NotAvailable if its command failed."""
    part = basic_sections(answer).get(name)
    if part is None:
        raise ProbeError(f"section {name!r} is missing in the answer")
    if part.rc != 0:
        raise NotAvailable(f"{last_line(part.text) or 'no message'} (exit {part.rc})")
    return part.text


def _basic(name: str, part: str, read: Callable[[str], T], command: str, version_of: str = "") -> Probe[T]:
    def parse(answer: Answer) -> T:
        return read(section(answer, part))

    return Probe(name, BASICS, parse, by_hand=command, alone=True, version_of=version_of)


def read_clock(answer: Answer) -> Clock:
    """Read `date +%s.%N`; a date without %N prints it unchanged, then whole seconds are used."""
    text = section(answer, "date").strip()
    match = re.fullmatch(r"(\d+)(\.\d+)?(?:\.%?N)?", text)
    if not match:
        raise ProbeError(f"date: not a number of seconds: {text[:40]!r}")
    return Clock(float(match[1] + (match[2] or "")), answer.sent, answer.received)


def read_line(text: str) -> str:
    """Return the line of a text; ProbeError unless it has exactly one line."""
    line = text.strip()
    if not line or "\n" in line:
        raise ProbeError(f"expected one line, got {text[:60]!r}")
    return line


def _proc_lines(text: str) -> list[str]:
    lines = text.splitlines()
    if len(lines) < 4:  # uptime, loadavg, cmdline, then meminfo
        raise ProbeError(f"/proc: uptime, loadavg, cmdline and meminfo expected, got {text[:80]!r}")
    return lines


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ProbeError(f"{what}: not a number: {text[:40]!r}")
    return value


def read_uptime(text: str) -> float:
    """Return seconds since boot."""
    return _number(_proc_lines(text)[0].partition(" ")[0], "/proc/uptime")


def read_load(text: str) -> Load:
    """Read /proc/loadavg: '0.61 0.92 0.57 1/143 8812'."""
    fields = _proc_lines(text)[1].split()
    if len(fields) != 5 or "/" not in fields[3]:  # the fields of proc(5)
        raise ProbeError(f"/proc/loadavg: not understood: {' '.join(fields)[:60]!r}")
    one, five, fifteen = (_number(field, "/proc/loadavg") for field in fields[:3])
    return Load(one, five, fifteen)


# Words that differ between nodes, or with the kernel (which os.kernel judges)
_OWN_WORDS = re.compile(
    r"(BOOT_IMAGE|initrd|root|resume|ip|BOOTIF|hostname|nodename|systemd\.(hostname|machine_id)|ostree|"
    r"cryptdevice|rd\.\S*uuid|console|wwid|nfsroot)=|.*[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-"
)


def read_cmdline(text: str) -> str:
    """Return the sorted words of the kernel's command line, without those that are specific to a node or kernel."""
    words = _proc_lines(text)[2].split()
    return " ".join(sorted(word for word in words if not _OWN_WORDS.match(word)))


def read_memory(text: str) -> MemoryInfo:
    """Read /proc/meminfo, whose sizes are in kB of 1024 bytes."""
    pairs = (line.partition(":") for line in _proc_lines(text)[3:])
    values = {key: rest.split() for key, _, rest in pairs}

    def size(key: str, default: str | None = None) -> int:
        fields = values.get(key) or ([default] if default else [])
        if not fields or not fields[0].isdecimal():
            raise ProbeError(f"/proc/meminfo: {key} is missing or no number")
        return int(fields[0]) * (1024 if fields[1:] == ["kB"] else 1)

    # a kernel without huge pages or swap omits these lines
    return MemoryInfo(
        total=size("MemTotal"),
        available=size("MemAvailable", "0"),
        swap_total=size("SwapTotal", "0"),
        swap_free=size("SwapFree", "0"),
        hugepages=size("HugePages_Total", "0"),
        hugepage_size=size("Hugepagesize", "0"),
    )


def read_release(text: str) -> str:
    """Return 'ID VERSION_ID' of os-release in lower case: 'ubuntu 24.04'; of a rolling release 'arch'."""
    values = dict(re.findall(r"^([A-Z_]+)=[\"']?([^\"'\n]*)", text, re.MULTILINE))
    if not values.get("ID"):
        raise ProbeError(f"/etc/os-release: no ID in {text[:60]!r}")
    return f"{values['ID']} {values.get('VERSION_ID', '')}".strip().lower()


def read_cpus(text: str) -> Cpus:
    """Read lscpu in the C locale."""
    pairs = (line.partition(":") for line in text.splitlines())
    values = {key.strip(): value.strip() for key, _, value in pairs}
    try:
        online = cpu_list(values.get("On-line CPU(s) list", ""))
    except ValueError as error:
        raise ProbeError(f"lscpu: {error}") from error
    if not online:
        raise ProbeError(f"lscpu: no 'On-line CPU(s) list' in {text[:60]!r}")
    return Cpus(
        online=len(online),
        offline=values.get("Off-line CPU(s) list", ""),
        numa_nodes=int(_number(values.get("NUMA node(s)", "1"), "lscpu: NUMA node(s)")),
        sockets=values.get("Socket(s)", "unknown"),
        threads_per_core=values.get("Thread(s) per core", "unknown"),
        model=values.get("Model name", "unknown"),
        architecture=values.get("Architecture", "unknown"),
        memory_nodes=sum(not value for key, value in values.items() if _NODE_CPUS.fullmatch(key)),
        hypervisor=values.get("Hypervisor vendor", ""),
    )


_NODE_CPUS = re.compile(r"NUMA node\d+ CPU\(s\)")


@dataclass(frozen=True)
class MemoryParts:
    """What MemTotal hides, in bytes. `extra`: on NUMA nodes without CPUs; `reserved`: for a crash kernel.

    dimms: {name: size} of the modules that EDAC lists; {} without its driver.
    """

    extra: int = 0
    reserved: int = 0
    dimms: Mapping[str, int] = field(default_factory=dict)

    def installed(self, total: int) -> int:
        """Return the memory of the processors: MemTotal without that of GPUs, with what a crash kernel holds."""
        return total - self.extra + self.reserved


def read_memory_parts(answer: Answer) -> MemoryParts:
    """Read the NUMA nodes, the crash kernel and EDAC in /sys; what is not there is 0."""
    text = "".join(part.text for part in sections(answer).values())
    try:
        with_cpus = cpu_list(_last(r"/has_cpu:(.*)", text))
    except ValueError:
        with_cpus = frozenset()
    totals = re.findall(r"^\S*:Node (\d+) MemTotal: *(\d+) kB", text, re.MULTILINE)
    extra = sum(int(size) for node, size in totals if with_cpus and int(node) not in with_cpus)
    crash = _last(r"/kexec_crash_size:(.*)", text)
    rows = re.findall(r"^\S*/(mc\d+/\w+)/(dimm_label|size):(.*)$", text, re.MULTILINE)
    labels = {dimm: text.strip() for dimm, key, text in rows if key == "dimm_label"}
    sizes = {dimm: int(text) for dimm, key, text in rows if key == "size" and text.isdecimal()}
    dimms = {f"{dimm} {labels.get(dimm, '')}".strip(): size << 20 for dimm, size in sizes.items() if size}
    return MemoryParts(extra * 1024, int(crash) if crash.isdecimal() else 0, dimms)


def _last(pattern: str, text: str) -> str:
    """Return what a file contains, '' where there is none."""
    found: list[str] = re.findall(pattern, text)
    return found[-1].strip() if found else ""


_EDAC = "/sys/devices/system/edac/mc/mc*/dimm* /sys/devices/system/edac/mc/mc*/rank*"  # rank0: of chip selects
_DIMMS = " ".join(f"{path}/{name}" for path in _EDAC.split() for name in ("dimm_label", "size"))
MEMORY_PARTS: Probe[MemoryParts] = Probe(
    "memory parts",
    SECTIONS_SH
    # of meminfo the first lines alone
    + "s files grep -sHv -e '^Node [0-9]* [^M]' -e '^Node [0-9]* Mem[^T]' /sys/devices/system/node/node[0-9]*/meminfo "
    + f"/sys/devices/system/node/has_cpu /sys/kernel/kexec_crash_size {_DIMMS}",
    read_memory_parts,
    by_hand=f"grep MemTotal /sys/devices/system/node/node*/meminfo; grep -sH . {_DIMMS}",
)


def read_user(text: str) -> str:
    """Return the line of id with its groups in the order of their numbers: that of id is the directory's."""
    head, groups, rest = read_line(text).partition(" groups=")
    ids, context, label = rest.partition(" context=")
    return head + groups + ",".join(sorted(ids.split(","), key=_group_id)) + context + label


def _group_id(text: str) -> tuple[int, str]:
    number = text.partition("(")[0]
    return (int(number) if number.isdecimal() else -1, text)


def _absent(answer: Answer, name: str) -> bool:
    part = basic_sections(answer).get(name)
    return part is not None and "No such file or directory" in part.text


def read_governors(answer: Answer) -> dict[str, int]:
    """Return {frequency governor: number of CPUs}; {} without frequency scaling."""
    if _absent(answer, "governor"):
        return {}
    text = section(answer, "governor")
    counts: dict[str, int] = {}
    for governor in sorted(text.split()):
        counts[governor] = counts.get(governor, 0) + 1
    if not counts:
        raise ProbeError("scaling_governor: empty")
    return counts


def read_mounts(text: str) -> dict[str, Mount]:
    """Read /proc/mounts by path; of several mounts on one path the last one hides the others."""
    mounts: dict[str, Mount] = {}
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) < 4:  # source, path, type, options
            raise ProbeError(f"/proc/mounts: not understood: {line[:80]!r}")
        source, path, fstype, options = (_unescape(field) for field in fields[:4])
        mounts[path] = Mount(source, path, fstype, tuple(options.split(",")))
    if "/" not in mounts:
        raise ProbeError("/proc/mounts: no root file system")
    return mounts


def _unescape(text: str) -> str:
    r"""Undo the octal escapes of /proc/mounts: blank is \040."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match[1], 8)), text)


def read_limits(text: str) -> dict[str, float]:
    """Return the soft limits of /proc/self/limits: {'Max open files': 1024.0}; unlimited is infinity."""
    rows = re.findall(r"^(Max \S.*?)\s{2,}(\d+|unlimited)\s+(?:\d+|unlimited)\b", text, re.MULTILINE)
    if not rows:
        raise ProbeError(f"/proc/self/limits: not understood: {text[:60]!r}")
    return {name: math.inf if soft == "unlimited" else float(soft) for name, soft in rows}


def read_lsm(answer: Answer) -> str:
    """Return the active security modules, 'lockdown,yama,apparmor'; 'none' if the kernel has no list."""
    if _absent(answer, "lsm"):
        return "none"
    return read_line(section(answer, "lsm"))


def read_thp(answer: Answer) -> str:
    """Return the setting: 'always [madvise] never' gives madvise; 'none' on a kernel built without huge pages."""
    if _absent(answer, "thp"):
        return "none"
    text = section(answer, "thp")
    match = re.search(r"\[(\w+)\]", text)
    if not match:
        raise ProbeError(f"transparent_hugepage/enabled: not understood: {text[:60]!r}")
    return match[1]


def read_tunables(text: str) -> dict[str, str]:
    """Return {name: value} of all TUNABLES, with single blanks."""
    lines = text.splitlines()
    if len(lines) != len(TUNABLES):
        raise ProbeError(f"sysctls: {len(TUNABLES)} lines expected, got {len(lines)}")
    names = (name.replace("/", ".") for name in TUNABLES)
    return {name: " ".join(value.split()) for name, value in zip(names, lines, strict=True)}


def read_taint(text: str) -> int:
    """Return the bits of /proc/sys/kernel/tainted."""
    bits = read_line(text)
    if not re.fullmatch(r"\d{1,20}", bits):
        raise ProbeError(f"{_TAINT_FILE}: not a number: {bits[:40]!r}")
    return int(bits)


_GOVERNORS = f"cat {_CPUS}/cpu*/cpufreq/scaling_governor | sort | uniq -c"
_THP = f"cat {_THP_FILE}"
_SYSCTL = "sysctl " + " ".join(name.replace("/", ".") for name in TUNABLES)

CLOCK: Probe[Clock] = Probe("clock", BASICS, read_clock, by_hand="date", alone=True)
HOSTNAME = _basic("hostname", "hostname", read_line, "uname -n")
KERNEL = _basic("kernel", "kernel", read_line, "uname -r", "kernel")
UPTIME = _basic("uptime", "proc", read_uptime, "cat /proc/uptime")
LOAD = _basic("load", "proc", read_load, "cat /proc/loadavg")
CMDLINE = _basic("cmdline", "proc", read_cmdline, "cat /proc/cmdline")
MEMORY = _basic("memory", "proc", read_memory, "cat /proc/meminfo")
RELEASE = _basic("release", "release", read_release, "cat /etc/os-release", "operating system")
CPUS = _basic("cpus", "lscpu", read_cpus, "lscpu")
MOUNTS = _basic("mounts", "mounts", read_mounts, "cat /proc/mounts")
LIMITS = _basic("limits", "limits", read_limits, "cat /proc/self/limits")
KERNEL_SETTINGS = _basic("kernel settings", "tunables", read_tunables, _SYSCTL)
TAINT = _basic("taint", "taint", read_taint, f"cat {_TAINT_FILE}")
USER = _basic("user", "user", read_user, "id")
GOVERNORS: Probe[dict[str, int]] = Probe("governor", BASICS, read_governors, by_hand=_GOVERNORS, alone=True)
THP: Probe[str] = Probe("transparent huge pages", BASICS, read_thp, by_hand=_THP, alone=True)
LSM: Probe[str] = Probe("lsm", BASICS, read_lsm, by_hand=f"cat {_LSM_FILE}", alone=True)
