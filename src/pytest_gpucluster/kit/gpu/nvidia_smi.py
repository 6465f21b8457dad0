"""The GPUs of a node, as nvidia-smi reports them.

All probes of this file share SURVEY, one command line that runs eight short nvidia-smi processes one after another,
so the fleet runs it once. Its output has one section for each nvidia-smi, with its exit status: a failed section does
not affect the others. The query is repeated without a field that an older driver rejects; that field is then 'not
reported by this driver'.

Formats: nvidia-smi(1) and `nvidia-smi --help-query-gpu`; recorded from driver 580 in tests/data/h200x8.
Text that nvidia-smi prints instead of a value ('[N/A]', '[Unknown Error]', 'ERR!', ...) is never a number: the fact is
None and `unread` holds the text.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpucluster.core.command_end import LIMITED_SH, STATUS, CommandEnd
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.probe import NOT_EXECUTABLE, NOT_FOUND, Answer, Probe, last_line
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.gpu.diagnostics import OWNERS_SH, owner
from pytest_gpucluster.kit.gpu.nvidia_csv import (
    Reader,
    bit_mask,
    bus_id,
    either,
    enumeration,
    is_unsupported,
    number,
    read_cell,
    read_csv,
    text_value,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")
MIB = 2**20

# Seconds for all nvidia-smi of the survey: without persistence mode each loads the driver again, which takes several
# seconds. The one that then still runs is killed, and no further one is started on that node.
HANG = 90
DRIVER_NOT_LOADED = 9  # nvidia-smi(1), return value 9
INFOROM_CORRUPTED = 14  # nvidia-smi(1): a warning; the output is complete
_NO_GPU = "No devices were found"  # `nvlink -s` prints it with status 0; recorded from driver 580
_STOPPED = (DRIVER_NOT_LOADED, NOT_EXECUTABLE, NOT_FOUND)


_ENABLED = either("Enabled", "Disabled")
_YES = either("Yes", "No")
_COUNT = whole()
_MEMORY = whole("MiB", MIB)


def _cell(column: str, read: Reader) -> Any:
    """Return the field of an attribute: the column to query, and its reader. Other names of a column: nvidia_csv.py."""
    return field(default=None, metadata={"cell": (column, read)})


@dataclass(frozen=True, slots=True)  # there may be a hundred thousand
class Gpu:
    """One GPU. Memory in bytes, clocks in MHz, power in watts, temperature in degrees Celsius.

    None: nvidia-smi printed no value; `unread` is {attribute: the text that it printed instead}.
    """

    index: int | None = _cell("index", _COUNT)
    uuid: str | None = _cell("uuid", text_value)
    name: str | None = _cell("name", text_value)
    bus: str | None = _cell("pci.bus_id", bus_id)
    serial: str | None = _cell("serial", text_value)
    driver: str | None = _cell("driver_version", text_value)
    vbios: str | None = _cell("vbios_version", text_value)
    memory: int | None = _cell("memory.total", _MEMORY)
    memory_used: int | None = _cell("memory.used", _MEMORY)
    display: bool | None = _cell("display_active", _ENABLED)
    persistence: bool | None = _cell("persistence_mode", _ENABLED)
    compute_mode: str | None = _cell("compute_mode", enumeration)
    mig: bool | None = _cell("mig.mode.current", _ENABLED)
    ecc: bool | None = _cell("ecc.mode.current", _ENABLED)
    ecc_volatile_uncorrected: int | None = _cell("ecc.errors.uncorrected.volatile.total", _COUNT)
    ecc_volatile_corrected: int | None = _cell("ecc.errors.corrected.volatile.total", _COUNT)
    ecc_aggregate_uncorrected: int | None = _cell("ecc.errors.uncorrected.aggregate.total", _COUNT)
    ecc_aggregate_sram: int | None = _cell("ecc.errors.uncorrected.aggregate.sram", _COUNT)
    sram_threshold_exceeded: bool | None = _cell("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded", _YES)
    retired_pending: bool | None = _cell("retired_pages.pending", _YES)
    retired_single: int | None = _cell("retired_pages.single_bit_ecc.count", _COUNT)
    retired_double: int | None = _cell("retired_pages.double_bit.count", _COUNT)
    pcie_gen: int | None = _cell("pcie.link.gen.current", _COUNT)
    pcie_gen_max: int | None = _cell("pcie.link.gen.max", _COUNT)
    pcie_width: int | None = _cell("pcie.link.width.current", _COUNT)
    pcie_width_max: int | None = _cell("pcie.link.width.max", _COUNT)
    pstate: str | None = _cell("pstate", text_value)
    clock_sm_max: float | None = _cell("clocks.max.sm", number("MHz"))
    clock_memory: float | None = _cell("clocks.mem", number("MHz"))
    clock_memory_max: float | None = _cell("clocks.max.mem", number("MHz"))
    clock_application: float | None = _cell("clocks.applications.graphics", number("MHz"))
    clock_application_default: float | None = _cell("clocks.default_applications.graphics", number("MHz"))
    throttle: int | None = _cell("clocks_throttle_reasons.active", bit_mask)
    temperature: float | None = _cell("temperature.gpu", number())
    power: float | None = _cell("power.draw", number("W"))
    power_limit: float | None = _cell("power.limit", number("W"))
    fabric_state: str | None = _cell("fabric.state", enumeration)
    fabric_status: str | None = _cell("fabric.status", enumeration)
    fabric_health: str | None = _cell("fabric.health.summary", enumeration)
    recovery_action: str | None = _cell("gpu_recovery_action", enumeration)
    unread: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Its name in metrics and reasons: GPU 3 (GPU-5ec84d8d-..., 0000:1b:00.0)."""
        return f"GPU {'?' if self.index is None else self.index} ({self.uuid or 'no UUID'}, {self.bus or 'no bus id'})"

    @property
    def part(self) -> Part:
        """The GPU as the part of a finding."""
        name = self.uuid or ("" if self.bus or self.index is not None else "unknown GPU")
        return Part("gpu", self.index, name, self.bus or "", self.serial or "")

    @property
    def lost(self) -> str:
        """NVML's message if the GPU is lost (nvmlErrorString), '' if it answers."""
        gone = next((text for text in self.unread.values() if _IS_LOST.search(text)), "")
        unknown = [text for text in self.unread.values() if "Unknown Error" in text]
        return gone or (unknown[0] if 2 * len(unknown) > len(_FIELDS) else "")

    def lacks(self, attribute: str) -> bool:
        """Whether the GPU, its driver or the guest does not support an attribute; False for an error."""
        return is_unsupported(self.unread.get(attribute, ""))


REQUIRES_RESET = "GPU requires reset"
_IS_LOST = re.compile(rf"\bGPU is lost\b|fallen off the bus|{REQUIRES_RESET}", re.IGNORECASE)
_FIELDS: dict[str, tuple[str, Reader]] = {it.name: it.metadata["cell"] for it in fields(Gpu) if it.metadata}

# --- the command -------------------------------------------------------------------------------------------------

_APPS = "pid,gpu_uuid,used_memory,process_name"  # the name last: it may hold commas
_ROWS = "gpu_uuid,remapped_rows.correctable,remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure"
_FOLD_ERRORS = shlex.quote(script(__package__, "nvlink_errors.awk"))
_QUERIES = script(
    __package__,
    "nvidia_smi.sh",
    STOPPED="|".join(map(str, _STOPPED)),
    FIELDS=",".join(query for query, _ in _FIELDS.values()),
    ROWS=_ROWS,
    APPS=_APPS,
    FOLD=_FOLD_ERRORS,
)
_ORDER = ("gpus", "rows", "apps", "header", "nvlink", "errors", "topology", "p2p")
# one timeout(1) for all: one for each would be a third of the work on a healthy node
SURVEY = f"""{LIMITED_SH}limited {HANG} sh -c {shlex.quote(_QUERIES)}
[ "$ended" = 0 ] || {{ printf '\\n@@ ended %s\\n@@ owner 0\\n' "$ended"; {OWNERS_SH}; }}"""
_SECTION = re.compile(rf"^@@ (\w+) (-|{STATUS})$", re.MULTILINE)


@dataclass(frozen=True)
class SurveySection:
    """The output of one nvidia-smi of the survey; `end` is None if it was not started."""

    end: CommandEnd | None
    text: str

    @property
    def rc(self) -> int | None:
        """The exit status, None without one."""
        return self.end.status if self.end else None


def sections(answer: Answer) -> dict[str, SurveySection]:
    """Return {name: section} of the survey's output; ProbeError if it is damaged."""
    if answer.truncated:
        raise ProbeError("nvidia-smi: the answer was cut at the cap")
    parts = _SECTION.split(answer.out)
    if len(parts) < 4:  # text before the first section, then name, status, text
        shown = last_line(answer.err or answer.out)[:120]
        raise ProbeError(f"nvidia-smi: no section in the answer: {shown!r}")
    found = {
        name: SurveySection(None if end == "-" else CommandEnd.of(end), text.strip("\n"))
        for name, end, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    }
    whole = found.pop("ended", None)  # of the shell that starts them all
    if whole is not None:
        missing = [name for name in _ORDER if name not in found]
        found |= {name: SurveySection(None, "") for name in missing[1:]}
        found |= {name: SurveySection(whole.end, "") for name in missing[:1]}  # the one that was running
    return found


def section(answer: Answer, name: str, what: str) -> str:
    """Return the text of a section; NotAvailable with nvidia-smi's message if it failed."""
    found = sections(answer).get(name)
    if found is None:
        raise ProbeError(f"{what}: its section is missing; the answer ended early")
    if found.end is None:
        raise NotAvailable(f"{what}: not queried, since nvidia-smi failed before (see gpu.driver)")
    if found.rc not in (0, INFOROM_CORRUPTED):
        raise NotAvailable(f"{what}: {_plain(last_line(found.text)) or 'no message'} ({found.end})")
    if found.text.strip() == _NO_GPU:
        raise NotAvailable(f"{what}: {_NO_GPU}")
    return found.text


def _plain(line: str) -> str:
    """Return a line of foreign output for display: at most 160 characters, control characters replaced."""
    return "".join(sign if sign.isprintable() else "?" for sign in line)[:160]


@dataclass(frozen=True)
class Gpus:
    """All GPUs of a node.

    `messages`: lines of nvidia-smi outside its table, like a GPU whose handle it cannot get. `driver_problem`: why
    nvidia-smi could not work at all (absent, hung, no driver); '' if the driver answered. `cuda`: the newest CUDA
    version of the driver. `failed`: the exit status if it was not 0. `cut_off`: the query that exceeded HANG
    seconds; '' if all were answered. `owner`: the diagnostic that owns the GPUs, where nvidia-smi failed.
    """

    devices: tuple[Gpu, ...] = ()
    messages: tuple[str, ...] = ()
    driver_problem: str = ""
    cuda: str | None = None
    failed: str = ""
    cut_off: str = ""
    owner: str = ""

    def __len__(self) -> int:
        return len(self.devices)

    def __iter__(self) -> Iterator[Gpu]:
        return iter(self.devices)

    @property
    def versions(self) -> dict[str, str]:
        """Of the GPUs (their names), the driver, its CUDA and the VBIOS; several are joined."""
        found = {
            "GPUs": {gpu.name for gpu in self.devices},
            "NVIDIA driver": {gpu.driver for gpu in self.devices},
            "VBIOS": {gpu.vbios for gpu in self.devices},
            "CUDA of the driver": {self.cuda},
        }
        return {name: ", ".join(sorted(filter(None, known))) for name, known in found.items() if any(known)}

    @property
    def joined_fabric(self) -> bool | None:
        """Whether all GPUs have joined the NVLink fabric, so that a fabric manager set it up; None if none reports it."""
        states = [(gpu.fabric_state, gpu.fabric_status) for gpu in self.devices if gpu.fabric_state]
        return states == [("Completed", "Success")] * len(self.devices) if states else None

    def with_uuid(self, uuid: str) -> Part:
        """Return the GPU with a UUID."""
        return next((gpu.part for gpu in self.devices if gpu.uuid == uuid), Part("gpu", name=uuid))

    def at(self, bus: str) -> Part:
        """Return the GPU at a PCI address as the driver logs it, like 0000:1b:00."""
        found = self.device(bus)
        return found.part if found else Part("gpu", address=bus.lower())

    def device(self, bus: str) -> Gpu | None:
        """Return the GPU at a PCI address as the driver logs it, None if nvidia-smi lists none there."""
        wanted = bus.lower().partition(".")[0]
        return next((gpu for gpu in self.devices if gpu.bus and gpu.bus.rpartition(".")[0] == wanted), None)


_DRIVER_DOWN = re.compile(
    r"couldn't communicate|Failed to initialize NVML|version mismatch|not found|No such file|Permission", re.IGNORECASE
)


def parse_gpus(answer: Answer) -> Gpus:
    """Return the GPUs. A node without driver or nvidia-smi is a fact too: see `driver_problem`."""
    parts = sections(answer)
    found = parts.get("gpus")
    if found is None or found.end is None:
        raise ProbeError("nvidia-smi: the query of the GPUs has not answered")
    if found.end.signal:
        raise NotAvailable(f"nvidia-smi: {found.end}")
    table = read_csv(found.text, "index", free="name")
    devices = tuple(_gpu(row) for row in table.rows)
    indices = [gpu.index for gpu in devices if gpu.index is not None]
    if len(set(indices)) != len(indices):
        raise ProbeError(f"nvidia-smi: a GPU is listed twice: indices {indices}")
    shifted = next((gpu for gpu in devices if "," in (gpu.name or "") and gpu.bus is None), None)
    if shifted is not None:  # the surplus comma was not in the name
        which = f"GPU {shifted.index}, {shifted.name!r}"
        raise ProbeError(f"nvidia-smi: a row has more cells than columns: {which}")
    below = parts["header"].text.splitlines() if "header" in parts else []
    warnings = [line.strip() for line in below if _WARNING.match(line)]
    messages = tuple(dict.fromkeys(map(_plain, (*table.messages, *warnings))))
    failed = "" if found.rc in (0, INFOROM_CORRUPTED) else str(found.end)
    cut_off = next((name for name in _ORDER if name in parts and (end := parts[name].end) and end.hung), "")
    problem, cuda = _driver_problem(found, devices), _cuda(parts.get("header"))
    owned = owner(parts["owner"].text) if "owner" in parts else ""
    return Gpus(devices, messages, problem, cuda, failed, cut_off, owned)


def _gpu(row: Mapping[str, tuple[str, str]]) -> Gpu:
    cells = {attribute: read_cell(row, *of) for attribute, of in _FIELDS.items()}
    unread = {attribute: why for attribute, (_, why) in cells.items() if why}
    return Gpu(**{attribute: value for attribute, (value, _) in cells.items()}, unread=unread)


def _driver_problem(found: SurveySection, devices: tuple[Gpu, ...]) -> str:
    message = " ".join(found.text.split())[:200] or "no message"
    message = last_line(found.text)[:200] if found.rc == NOT_FOUND else message
    if found.end and found.end.hung:
        return f"nvidia-smi did not answer within {HANG} s"
    if devices or found.rc == 0:
        return ""
    if found.rc in _STOPPED or _DRIVER_DOWN.search(found.text):
        return f"{message} (exit {found.rc})"
    return ""


def _cuda(header: SurveySection | None) -> str | None:
    """Return the version in 'CUDA Version: 13.0', since driver 595 'CUDA UMD Version: 13.2'."""
    match = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)", header.text) if header else None
    return match[1] if match else None


def parse_lasting(answer: Answer) -> dict[str, int]:
    """Return {UUID: the clock event reasons of every later reading} of CLOCKS_LATER; {} for a GPU that gave none."""
    lasting: dict[str, int] = {}
    for reading in range(1, READINGS + 1):
        table = read_csv(section(answer, f"clocks{reading}", "nvidia-smi, later readings"), "uuid")
        found = {row["uuid"][0]: read_cell(row, _FIELDS["throttle"][0], bit_mask)[0] for row in table.rows}
        before = lasting or dict.fromkeys(found, -1)
        known = {uuid: mask for uuid, mask in found.items() if mask is not None and uuid in before}
        lasting = {uuid: mask & before[uuid] for uuid, mask in known.items()}
    return lasting


# --- row remapping, processes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowRemapping:
    """The row remapping of one GPU (Ampere and later). None: no value; `unread` has the printed text."""

    correctable: int | None
    uncorrectable: int | None
    pending: bool | None
    failure: bool | None
    unread: Mapping[str, str] = field(default_factory=dict)


# {attribute of RowRemapping: reader}
ROWS: dict[str, Reader] = {"correctable": _COUNT, "uncorrectable": _COUNT, "pending": _YES, "failure": _YES}


def parse_rows(answer: Answer) -> dict[str, RowRemapping]:
    """Return {UUID: RowRemapping} from `--query-remapped-rows`."""
    text = section(answer, "rows", "nvidia-smi --query-remapped-rows")
    table = read_csv(text, "uuid")
    if not table.rows:
        raise NotAvailable(f"nvidia-smi --query-remapped-rows: {_plain(last_line(text)) or 'no answer'}")
    found = {}
    for row in table.rows:
        values = {name: read_cell(row, f"remapped_rows.{name}", read) for name, read in ROWS.items()}
        unread = {name: why for name, (_, why) in values.items() if why}
        known = {name: value for name, (value, _) in values.items()}
        found[row["uuid"][0]] = RowRemapping(**known, unread=unread)
    return found


@dataclass(frozen=True)
class GpuProcess:
    """A process with a CUDA context. `memory` in bytes, None if nvidia-smi may not read it."""

    pid: int | None
    uuid: str
    memory: int | None
    name: str


def parse_apps(answer: Answer) -> tuple[GpuProcess, ...]:
    """Return the processes of `--query-compute-apps`; an idle node prints only the header."""
    text = section(answer, "apps", "nvidia-smi --query-compute-apps")
    table = read_csv(text, "pid", free="process_name")
    if not table.rows and not re.search(r"^pid\b", text, re.MULTILINE):
        raise NotAvailable(f"nvidia-smi --query-compute-apps: {_plain(last_line(text)) or 'no answer'}")
    return tuple(
        GpuProcess(
            read_cell(row, "pid", _COUNT)[0],
            row.get("uuid", ("",))[0],
            read_cell(row, "used_memory", _MEMORY)[0],
            row.get("process_name", ("unnamed",))[0],
        )
        for row in table.rows
    )


# --- NVLink ------------------------------------------------------------------------------------------------------

_GPU_LINE = re.compile(r"GPU \d+: .*\(UUID: (\S+)\)")
_LINK = re.compile(r"Link (\d+): (?:(\d+(?:\.\d+)?) GB/s|<?inactive>?)", re.IGNORECASE)
_speed_of = lru_cache(64)(float)  # one object for all links of a speed, of which a large cluster has 700,000
# recorded from drivers 590 to 610: a GPU without NVLink, one without a partner, one in MIG mode
_NO_LINKS = re.compile(
    r"all links are inactive|does not have or support Nvlink|not supported for Devices in MIG mode", re.IGNORECASE
)
_WARNING = re.compile(r"WARNING:", re.IGNORECASE)
_COUNTER = re.compile(r"Link (\d+): (.+?)\s*: (\S.*)")
_COUNT_OR_RATE = re.compile(r"\d+(e-?\d+)?")


def parse_nvlink(answer: Answer) -> dict[str, dict[int, float | None]]:
    """Return {UUID: {link: GB/s, None if inactive}} from `nvlink -s`; {} for a GPU without NVLink."""
    part = sections(answer).get("nvlink")
    lacking = part is not None and part.rc and _NO_LINKS.search(part.text)
    text = part.text if part and lacking else section(answer, "nvlink", "nvidia-smi nvlink -s")
    found: dict[str, dict[int, float | None]] = {}
    links: dict[int, float | None] | None = None
    before: list[str] = []  # a banner, or warnings
    for line in filter(None, (line.strip() for line in text.splitlines())):
        gpu, link = _GPU_LINE.fullmatch(line), _LINK.fullmatch(line)
        if gpu:
            links = found.setdefault(gpu[1], {})
        elif link and links is not None:
            links[int(link[1])] = _speed_of(link[2]) if link[2] else None
        elif links is None and not link:
            before.append(line)
        elif not _NO_LINKS.search(line) and not _WARNING.match(line):
            raise ProbeError(f"nvidia-smi nvlink -s: not understood: {line[:80]!r}")
    if not found and before and not _NO_LINKS.search(text):
        raise ProbeError(f"nvidia-smi nvlink -s: not understood: {before[0][:80]!r}")
    return found


@dataclass(frozen=True)
class LinkErrors:
    """NVLink counters of one GPU since its driver was loaded.

    `zeros`: the number of zero or harmless ones. `counts`: (link, counter, count or bit error rate) of the others.
    `unread`: (link, counter, text) of those that are neither a count nor a rate. `at`: uptime of the node in seconds when
    they were read, None if it is not known.
    """

    zeros: int
    counts: tuple[tuple[int, str, float], ...]
    unread: tuple[tuple[int, str, str], ...] = ()
    at: float | None = field(default=None, compare=False)


def parse_nvlink_errors(answer: Answer) -> dict[str, LinkErrors]:
    """Return {UUID: LinkErrors} from the folded `nvlink -e`."""
    text = section(answer, "errors", "nvidia-smi nvlink -e")
    uptime = re.search(r"^uptime (\d+(?:\.\d+)?)", text, re.MULTILINE)
    at = float(uptime[1]) if uptime else None
    found: dict[str, LinkErrors] = {}
    uuid = ""
    counts: list[tuple[int, str, float]] = []
    unread: list[tuple[int, str, str]] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        gpu, counter = _GPU_LINE.fullmatch(line), _COUNTER.fullmatch(line)
        zero = re.fullmatch(r"zero (\d+)", line)
        if gpu:
            uuid, counts, unread = gpu[1], [], []
        elif zero and uuid:
            found[uuid] = LinkErrors(int(zero[1]), tuple(counts), tuple(unread), at)
        elif counter and _COUNT_OR_RATE.fullmatch(counter[3]):
            number = float(counter[3]) if "e" in counter[3] else int(counter[3])
            counts.append((int(counter[1]), counter[2], number))
        elif counter:
            unread.append((int(counter[1]), counter[2], _plain(counter[3])))
    if uuid and uuid not in found:
        raise ProbeError("nvidia-smi nvlink -e: the answer ends within a GPU")
    return found


# --- topology ----------------------------------------------------------------------------------------------------

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU\d+")
_AFFINITY = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")
_NO_NIC = re.compile(rf"{_GPU.pattern}|{_AFFINITY.pattern}")
_LEGEND = re.compile(r"^\s*(NIC\d+): (\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Topology:
    """`links[GPU][other]` is NV18, PIX, SYS, ...; `nics[GPU][NIC]` likewise, the NIC by its device name.

    `numa[GPU]`: its NUMA nodes, like '0' or '0-1'. `memory[GPU]`: the NUMA node of its own memory, as on Grace. A
    GPU without these columns (guests, old drivers) is in neither.
    """

    links: Mapping[int, Mapping[int, str]]
    nics: Mapping[int, Mapping[str, str]]
    numa: Mapping[int, str] = field(default_factory=dict)
    memory: Mapping[int, str] = field(default_factory=dict)

    def linked(self) -> list[set[int]]:
        """Return the groups of GPUs that NVLinks join; a GPU without an NVLink is a group of its own."""
        groups, rest = list[set[int]](), set(self.links)
        while rest:
            group, found = set[int](), {min(rest)}
            while found:
                group |= found
                near = (self.links[one] for one in found)
                found = {it for links in near for it, how in links.items() if how.startswith("NV")} - group
                found &= rest
            groups.append(group)
            rest -= group
        return groups


def matrix(text: str, what: str) -> dict[str, dict[str, str]]:
    """Return {row: {column: cell}} of a matrix of `nvidia-smi topo`; ProbeError if a GPU's row is cut or missing.

    Columns are the GPUs and NICs, by the driver's names, and the affinities if it prints them.
    """
    plain = _ANSI.sub("", text)
    # copying from a terminal may have turned the tabs into spaces, and stripped the header
    tabbed = plain if "\t" in plain else re.sub(r" {2,}", "\t", plain)
    lines = re.sub(r"^(?=GPU\d+\tGPU\d+)", "\t", tabbed, flags=re.MULTILINE).splitlines()
    start = next((at for at, line in enumerate(lines) if re.match(r"\s*\t\s*GPU\d+", line)), None)
    if start is None:
        only_legend = "Legend:" in text  # without a GPU
        raise NotAvailable(f"{what}: {_NO_GPU if only_legend else _plain(last_line(text)) or 'no answer'}")
    columns = [cell.strip() for cell in lines[start].split("\t")]
    affinities = [name for name in columns if _AFFINITY.fullmatch(name)]
    devices = [at for at, name in enumerate(columns) if name and name not in affinities]
    names = {columns[at] for at in devices}
    found = {}
    for line in lines[start + 1 :]:
        cells = [sys.intern(cell.strip()) for cell in line.split("\t")]  # the same on all nodes
        if cells[0] not in names:
            break
        if len(cells) <= devices[-1] or not all(cells[at] for at in devices):
            raise ProbeError(f"{what}: the row of {cells[0]} is cut: {line[:80]!r}")
        rest = list(filter(None, cells[devices[-1] + 1 :]))  # padded with tabs
        near = dict(zip(affinities, rest, strict=True)) if len(rest) == len(affinities) else {}
        found[cells[0]] = {columns[at]: cells[at] for at in devices} | near
    missing = set(filter(_GPU.fullmatch, names)) - set(found)  # the rows of NICs are not needed
    if missing:
        raise ProbeError(f"{what}: no row for {', '.join(sorted(missing))}; the answer is cut")
    return found


def _between_gpus(rows: Mapping[str, Mapping[str, str]]) -> dict[int, dict[int, str]]:
    return {
        gpu: {int(other[3:]): cell for other, cell in cells.items() if _GPU.fullmatch(other)}
        for gpu, cells in _of_gpus(rows)
    }


def _of_gpus(rows: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[int, Mapping[str, str]]]:
    return ((int(row[3:]), cells) for row, cells in rows.items() if _GPU.fullmatch(row))


def parse_topology(answer: Answer) -> Topology:
    """Return the topology from `topo -m`."""
    return topology_of(section(answer, "topology", "nvidia-smi topo -m"))


def topology_of(text: str) -> Topology:
    """Return the topology from the text that `nvidia-smi topo -m` prints."""
    rows = matrix(text, "nvidia-smi topo -m")
    names = dict(_LEGEND.findall(_ANSI.sub("", text)))
    nics = {
        gpu: {names.get(it, it): cell for it, cell in cells.items() if not _NO_NIC.fullmatch(it)}
        for gpu, cells in _of_gpus(rows)
    }
    numa, memory = (
        {gpu: cells[column] for gpu, cells in _of_gpus(rows) if not is_unsupported(cells.get(column, "N/A"))}
        for column in ("NUMA Affinity", "GPU NUMA ID")
    )
    return Topology(_between_gpus(rows), nics, numa, memory)


def parse_p2p(answer: Answer) -> dict[int, dict[int, str]]:
    """Return {GPU: {other: 'OK', 'NS', ..., 'X' for itself}} from `topo -p2p n`."""
    what = "nvidia-smi topo -p2p n"
    return _between_gpus(matrix(section(answer, "p2p", what), what))


# --- device files ------------------------------------------------------------------------------------------------


# CUDA calls it to load nvidia_uvm and to make its file at the first use; it needs root's rights for that
MAKES_UVM = "nvidia-modprobe"


def parse_device_files(answer: Answer) -> frozenset[str]:
    """Return the names in /dev that begin with nvidia, and MAKES_UVM if it can run; NotAvailable without a list of /dev."""
    lines = answer.out.split()
    if len(lines) < 2 or lines[-2] != "entries" or not lines[-1].isdecimal() or lines[-1] == "0":
        raise NotAvailable(f"ls /dev: {last_line(answer.err) or 'no answer'}")
    return frozenset(lines[:-2])


_TIMEOUT = HANG + 15.0  # timeout(1) sends KILL 5 s after TERM


def _of_survey(name: str, parse: Callable[[Answer], T], by_hand: str) -> Probe[T]:
    return Probe(name, SURVEY, parse, timeout=_TIMEOUT, alone=True, by_hand=by_hand)


GPUS = _of_survey("GPUs", parse_gpus, "nvidia-smi -q -i INDEX")
REMAPPED_ROWS = _of_survey("row remapping", parse_rows, "nvidia-smi -q -d ROW_REMAPPER")
APPS = _of_survey("GPU processes", parse_apps, "nvidia-smi")
NVLINK = _of_survey("NVLink state", parse_nvlink, "nvidia-smi nvlink -s")
NVLINK_ERRORS = _of_survey("NVLink errors", parse_nvlink_errors, "nvidia-smi nvlink -e")
TOPOLOGY = _of_survey("GPU topology", parse_topology, "nvidia-smi topo -m")
P2P = _of_survey("peer access", parse_p2p, "nvidia-smi topo -p2p n")
# a second reading, for how far the counters rise
NVLINK_ERRORS_LATER = Probe(
    "NVLink errors, second reading",
    f'o=$(nvidia-smi nvlink -e 2>&1); echo "@@ errors $?"; read -r u </proc/uptime; echo "uptime $u"; '
    f'printf "%s\\n" "$o" | awk {_FOLD_ERRORS}',
    parse_nvlink_errors,
    timeout=_TIMEOUT,
    alone=True,
    by_hand="nvidia-smi nvlink -e",
)
READINGS, PAUSE = 3, 5  # later readings of the clock event reasons, and the seconds between two
# Every driver reports the reasons; how long each lasted (clocks_event_reasons_counters) only 570 and later, and not for
# "hardware slowdown".
CLOCKS_LATER = Probe(
    "clock event reasons, later readings",
    f"for i in {' '.join(map(str, range(1, READINGS + 1)))}; do sleep {PAUSE}; o=$(nvidia-smi --query-gpu=uuid,{_FIELDS['throttle'][0]} --format=csv "
    '2>&1); echo "@@ clocks$i $?"; printf "%s\\n" "$o"; done',
    parse_lasting,
    timeout=_TIMEOUT + READINGS * PAUSE,
    alone=True,
    by_hand="nvidia-smi -q -d PERFORMANCE -i INDEX; sleep 5; nvidia-smi -q -d PERFORMANCE -i INDEX",
)
DEVICE_FILES = Probe(
    "GPU device files",
    f"""IFS=:; for p in $PATH; do [ ! -u "$p/{MAKES_UVM}" ] || {{ echo {MAKES_UVM}; break; }}; done; unset IFS; n=0; """
    """for f in $(ls /dev); do n=$((n+1)); case $f in nvidia*) echo "$f";; esac; done; echo entries $n""",
    parse_device_files,
    by_hand="ls -l /dev/nvidia*",
)
