"""The files of a simulated node, which the simulated tools print.

A healthy node without a name is written once, as the base; each node's folder contains only the differences from it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import stat
import sys
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from slurm_sandbox import collectives, commands, gpu_load, models, perftest
from slurm_sandbox.daemons import search_path
from slurm_sandbox.errors import CommandError
from slurm_sandbox.hardware import digest, gpu_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slurm_sandbox.hardware import SimulatedDrive, SimulatedGpu, SimulatedHca, SimulatedNode
    from slurm_sandbox.layout import Layout

# Tools of the host that the simulated ones may call, as variables in upper case
_HOST_TOOLS = (
    *(
        "awk",
        "cat",
        "date",
        "df",
        "dpkg-query",
        "find",
        "getent",
        "grep",
        "head",
        "hostname",
        "ip",
        "last",
        "ls",
        "lscpu",
        "mount",
        "ps",
        "readlink",
    ),
    *("sleep", "sort", "sysctl", "tail", "tr", "uname", "wc"),
)
# all_reduce_perf under other names
_NCCL_TESTS = ("all_gather_perf", "reduce_scatter_perf", "alltoall_perf", "broadcast_perf", "sendrecv_perf")
_PERFTEST = ("ib_send_bw", "ib_read_lat")
_SUBNET_TOOLS = ("iblinkinfo", "ibqueryerrors", "sminfo", "saquery")
# the option in a script's first line that passes all further options to the script (mawk(1), gawk(1))
_AWK_SCRIPT = {"mawk": "-We", "gawk": "-E"}
# the time of an answer: without a further process if awk has strftime
_DATE_OF_AWK = "return strftime(layout)"
_DATE_OF_PROCESS = """command = "%s '+" layout "'"
  command | getline line
  close(command)
  return line"""
# files in a node's folder that prolog, epilog, faults and the assignment of real GPUs write
_PRESERVED = ("prolog.", "epilog", "fault.", "gpu.", "enroot/", "root/etc/pam.d/")


def write_simulated_tools(layout: Layout) -> None:
    """Write the simulated tools to the sandbox's simbin."""
    base = layout.root / "base"
    base.mkdir(exist_ok=True)
    texts = {path.name: path.read_text() for path in (models.DATA / "simbin").iterdir()}
    write_tools(layout, {**texts, "nvidia-smi": _nvidia_smi(layout)})
    for name in _NCCL_TESTS:
        (layout.simbin / name).symlink_to("all_reduce_perf")
    for name in _PERFTEST:
        (layout.simbin / name).symlink_to("ib_write_bw")
    for name in _SUBNET_TOOLS:
        (layout.simbin / name).symlink_to("ibnetdiscover")
    for source, target in (
        ("nvidia-smi-q.txt", "nvidia-smi-q"),
        ("nvidia-smi-q-x.txt", "nvidia-smi-q-x"),
        ("subnet.awk", "subnet.awk"),
        ("portinfo.txt", "portinfo"),
        ("mlxlink.json", "mlxlink"),
    ):
        shutil.copyfile(models.DATA / source, base / target)
    shutil.copyfile(collectives.__file__, base / "collectives.py")
    shutil.copyfile(gpu_load.__file__, base / "gpu_load.py")
    shutil.copyfile(perftest.__file__, base / "perftest.py")
    (base / "aliases").write_text(
        "".join(
            f"{alias}\t{name}\n" for name, aliases, _, _ in models.gpu_fields() for alias in aliases if alias != "!"
        )
    )


def _has_strftime(awk: str) -> bool:
    """Return whether this awk has strftime (gawk; mawk since 1.3.4)."""
    try:
        return commands.run([awk, 'BEGIN { print strftime("ok") }'], timeout=60.0).stdout == "ok\n"
    except CommandError:
        return False


def _nvidia_smi(layout: Layout) -> str:
    """Return the simulated nvidia-smi: an awk script, or a shell wrapper if this awk cannot pass options to a script."""
    found = {name: shutil.which(name, path=search_path()) or name for name in ("awk", "date", "sleep")}
    awk = found["awk"]  # unresolved: an image has only this name
    places = {
        "@NODES@": json.dumps(str(layout.nodes), ensure_ascii=False),
        "@BASE@": json.dumps(str(layout.root / "base"), ensure_ascii=False),
        "@DATE@": _DATE_OF_AWK if _has_strftime(awk) else _DATE_OF_PROCESS % found["date"],
        "@SLEEP@": found["sleep"],
    }
    text = (models.DATA / "nvidia-smi.awk").read_text()
    for mark, value in places.items():
        text = text.replace(mark, value)
    option = _AWK_SCRIPT.get(Path(awk).resolve().name)
    if option:
        return f"#!{awk} {option}\n{text}"
    program = layout.root / "base/nvidia-smi.awk"
    program.write_text(text)
    return f'#!/bin/sh\nexec {shlex.quote(awk)} -f {shlex.quote(str(program))} -- "$@"\n'


def write_real_tools(layout: Layout, nodes: Mapping[str, tuple[int, ...]]) -> None:
    """Write the wrapper of the real nvidia-smi: each node has its own GPUs, counted from 0.

    All other tools are those of the host. `nodes`: {node: indices of its GPUs on the host}.
    """
    (layout.root / "base").mkdir(exist_ok=True)
    real = shutil.which("nvidia-smi", path=search_path()) or "nvidia-smi"
    text = (models.DATA / "nvidia-smi-real.sh").read_text().replace("@REAL@", shlex.quote(real))
    sudo = (models.DATA / "simbin/sudo").read_text()
    write_tools(layout, {"nvidia-smi": text, "sudo": sudo})
    for node, indices in nodes.items():
        (layout.node(node) / "gpu.ids").write_text(",".join(map(str, indices)) + "\n")
        (layout.node(node) / "gpu.offset").write_text(f"{indices[0] if indices else 0}\n")


def write_tools(layout: Layout, texts: Mapping[str, str]) -> None:
    """Write the tools, {name: text}, each with the shared functions inlined, so that it opens one file only."""
    lines = (
        f"{name.upper().replace('-', '_')}={shlex.quote(path)}"
        for name in _HOST_TOOLS
        if (path := shutil.which(name, path=search_path()))
    )
    places = {
        "@SHARED@\n": (models.DATA / "simbin-lib.sh").read_text(),
        "@NODES@": shlex.quote(str(layout.nodes)),
        "@BASE@": shlex.quote(str(layout.root / "base")),
        "@TOOLS@": "\n".join([*lines, f"PYTHON={shlex.quote(sys.executable)}"]),
    }
    layout.simbin.mkdir(exist_ok=True)
    for name, text in texts.items():
        for mark, value in places.items():
            text = text.replace(mark, value)  # noqa: PLW2901 - one mark after the other
        tool = layout.simbin / name
        tool.write_text(text)
        tool.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)


def write_base(layout: Layout, contents: Mapping[str, str]) -> None:
    """Write the files of a healthy node, once."""
    folder = layout.root / "base"
    if not (folder / "gpus").exists():
        _write(folder, contents)


def write_node(layout: Layout, node: SimulatedNode, base: Mapping[str, str]) -> None:
    """Write the differences from the base, hide files that the node lacks, and remove outdated files."""
    folder = layout.node(node.name)
    contents = files(node)
    hidden = [*node.hidden, *_lacking(contents, base)]
    if hidden:
        contents["hidden"] = _lines(hidden)
    changed = {path: text for path, text in contents.items() if base.get(path) != text}
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        name = str(path.relative_to(folder))
        if name not in changed and not name.startswith(_PRESERVED):
            path.unlink(missing_ok=True)
    _write(folder, changed)


def _lacking(contents: Mapping[str, str], base: Mapping[str, str]) -> list[str]:
    """Return the overlay paths of the base that the node lacks; a folder if the node has nothing in it."""
    there = {str(parent) for path in contents for parent in PurePosixPath(path).parents} | contents.keys()
    gone: set[str] = set()
    for path in base.keys() - there:
        top = path
        while (parent := str(PurePosixPath(top).parent)) not in there:
            top = parent
        gone.add(top.removeprefix("root"))
    return sorted(gone)


def _write(folder: Path, contents: Mapping[str, str]) -> None:
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")  # atomic: a tool may be reading the old file
        new.write_text(text)
        new.replace(path)


def files(node: SimulatedNode) -> dict[str, str]:
    """Return {path in the node's folder: text}."""
    return {
        **_gpu_files(node),
        **_network_files(node),
        **_system_files(node),
        **({"subnet": _subnet(node), "modules": _modules(node), "vpd": _vpd(node)} if node.hcas else {}),
        "dmi": _dmi(node),
        "lldp": _lldp(node),
        **{f"root{path}": text for path, text in _overlay(node).items()},
        **({"clock.offset": f"{node.clock_offset:.0f}\n"} if node.clock_offset else {}),
        **({"environ": _lines(f"{name}={value}" for name, value in node.variables.items())} if node.variables else {}),
    }


# -- nvidia-smi ----------------------------------------------------------------------------------------------


def _gpu_files(node: SimulatedNode) -> dict[str, str]:
    gpus = node.gpus
    derived = {
        "index": [str(index) for index in range(len(gpus))],
        "count": [str(len(gpus))] * len(gpus),
        "hostname": [node.name] * len(gpus),
        "q.minor": [str(index) for index in range(len(gpus))],
    }
    units = {name: unit for name, _, unit, _ in models.gpu_fields()}

    def table(fields: list[dict[str, str]]) -> str:
        return _lines(
            "\t".join([name, units.get(name, ""), *(derived.get(name) or [one[name] for one in fields])])
            for name in (fields[0] if fields else units)
        )

    return {
        "gpus": table([gpu.fields for gpu in gpus]),
        **({"gpus.first": table([gpu.fields | gpu.first for gpu in gpus])} if any(gpu.first for gpu in gpus) else {}),
        "links": _lines(row for index, gpu in enumerate(gpus) for row in _link_rows(index, gpu)),
        "apps": _lines(
            f"{i}\t{app.pid}\t{app.name}\t{app.memory_mib}" for i, gpu in enumerate(gpus) for app in gpu.apps
        ),
        "topo-m": _topology(node),
        "topo-p2p": _p2p(node),
    }


def _link_rows(index: int, gpu: SimulatedGpu) -> list[str]:
    rows = []
    for link, speed in enumerate(gpu.links):
        errors = gpu.link_errors.get(link, (0, 0, 0, 0))
        rows.append("\t".join(map(str, (index, link, speed or "-", *errors))))
    return rows


_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
_P2P_LEGEND = """
Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
  GNS  = GPU not supported
  TNS  = Topology not supported
  NS   = Not supported
  U    = Unknown
"""


def _topology(node: SimulatedNode) -> str:
    """Return `nvidia-smi topo -m`: GPUs first, then the adapters as NICs."""
    gpus, hcas = node.gpus, node.hcas
    names = [f"GPU{i}" for i in range(len(gpus))] + [f"NIC{i}" for i in range(len(hcas))]
    affinity = "CPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    rows = ["\t\x1b[4m" + "\t".join(names) + f"\t{affinity}\x1b[0m"]
    for row, name in enumerate(names):
        cells = [_hop(node, row, column) for column in range(len(names))]
        tail = _affinity(node, gpus[row]) if row < len(gpus) else "\t\t\t"
        rows.append("\t".join([name, *cells, tail]))
    nics = "".join(f"  NIC{i}: {hca.name}\n" for i, hca in enumerate(hcas))
    return _lines(rows) + _LEGEND + (f"\nNIC Legend:\n\n{nics}" if nics else "") + "\n"


def _affinity(node: SimulatedNode, gpu: SimulatedGpu) -> str:
    known = node.spec.wiring.affinity
    numa, memory = known[gpu.slot] if known else (str(gpu.numa_node), "N/A")
    return f"{ranges(sorted(node.spec.cpus.of_numa(gpu.numa_node)))}\t{numa}\t\t{memory}"


def _hop(node: SimulatedNode, row: int, column: int) -> str:
    if row == column:
        return " X "
    first, second = min(row, column), max(row, column)
    changed = node.topology.get((first, second))
    if changed:
        return changed
    wiring, count = node.spec.wiring, len(node.gpus)
    if second < count:
        return _gpu_hop(node, node.gpus[first], node.gpus[second])
    ends = [node.gpus[first] if first < count else node.hcas[first - count], node.hcas[second - count]]
    if first < count and node.gpus[first].slot in node.hcas[second - count].near:
        return wiring.near
    return wiring.numa if ends[0].numa_node == ends[1].numa_node else "SYS"


def _gpu_hop(node: SimulatedNode, one: SimulatedGpu, other: SimulatedGpu) -> str:
    wired = node.spec.wiring.gpus
    if isinstance(wired, tuple):
        return wired[one.slot].replace(" X ", "X").split()[other.slot]
    links = sum(link is not None for link in one.links)
    return wired or (f"NV{links}" if links else "SYS")


def _p2p(node: SimulatedNode) -> str:
    """Return `nvidia-smi topo -p2p n`: GPUs with direct NVLinks reach only their neighbours."""
    count = len(node.gpus)
    rows = [" \t\x1b[4m" + "".join(f"GPU{i}\t" for i in range(count)) + "\x1b[0m"]
    for i, one in enumerate(node.gpus):
        cells = ["X" if i == j else _reaches(node, one, other) for j, other in enumerate(node.gpus)]
        rows.append(f" GPU{i}\t" + "".join(f"{cell}\t" for cell in cells))
    return _lines(rows) + _P2P_LEGEND


def _reaches(node: SimulatedNode, one: SimulatedGpu, other: SimulatedGpu) -> str:
    if not node.spec.nvlinks:
        return "NS"
    wired = node.spec.wiring.gpus
    return "NS" if isinstance(wired, tuple) and _gpu_hop(node, one, other) == "SYS" else "OK"


# -- InfiniBand ----------------------------------------------------------------------------------------------


def network(node: SimulatedNode) -> dict[str, Any]:
    """Return a node's fields of collectives.NodeHealth."""
    active = sum(bool(hca.near) and hca.state.endswith("ACTIVE") for hca in node.hcas)
    return vars(node.network) | {"hcas": active}


def _rail(hca: SimulatedHca) -> dict[str, Any]:
    """Return an adapter's fields of perftest.Rail."""
    return {
        "rate": float(hca.rate.split()[0]),
        "state": hca.state.split(": ")[1],
        **{name: getattr(hca, name) for name in ("link_layer", "mtu", "lid", "speed", "latency", "gids")},
    }


def _network_files(node: SimulatedNode) -> dict[str, str]:
    return {
        "ibstat": "".join(_ibstat(hca) for hca in node.hcas),
        "ibv_devinfo": "\n".join(_ibv_devinfo(hca) for hca in node.hcas),
        "lspci": _lspci(node),
        "ip-addr": _lines(f"{n}: {name}    inet {ip} scope global {name}" for n, name, ip, _ in _interfaces(node)),
        "ip-link": _lines(
            f"{n}: {name}: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu {node.mtus.get(name, mtu)} qdisc mq state UP mode "
            f"DEFAULT group default qlen 1000\\    link/{_link_kind(name)} "
            for n, name, _, mtu in _interfaces(node)
        ),
        "network.json": json.dumps(network(node), sort_keys=True) + "\n",
        "perftest.json": json.dumps({hca.name: _rail(hca) for hca in node.hcas}) + "\n",
        "burnin.json": json.dumps(vars(node.burn), sort_keys=True) + "\n",
    }


def _link_kind(interface: str) -> str:
    return "loopback" if interface == "lo" else "infiniband" if interface.startswith("ib") else "ether"


def _number(name: str) -> int:
    return int(name.lstrip("gpu") or 0) if name.startswith("gpu") else 0


def _interfaces(node: SimulatedNode) -> list[tuple[int, str, str, int]]:
    """Return (number, name, address, MTU) of the network interfaces."""
    host = _number(node.name)
    ethernet = _number(node.address_of or node.name)
    rows = [(1, "lo", "127.0.0.1/8", 65536), (2, "eno1", f"10.1.{ethernet // 256}.{ethernet % 256}/16", 1500)]
    return rows + [
        (3 + i, hca.interface, f"10.{100 + i}.{host // 256}.{host % 256}/16", _ip_mtu(hca))
        for i, hca in enumerate(node.hcas)
        if hca.near or hca.state.endswith("ACTIVE")
    ]


def _ip_mtu(hca: SimulatedHca) -> int:
    return 4092 if hca.near else 1500


def _lspci(node: SimulatedNode) -> str:
    """Return the bridges with Access Control Services, GPUs and adapters in `lspci -vvv`."""
    on = "+" if node.acs else "-"
    redirects = f"ReqRedir{on} CmpltRedir{on} UpstreamFwd{on}"
    control = f"\t\tACSCtl:\tSrcValid{on} TransBlk- {redirects} EgressCtrl- DirectTrans-"
    rows = []
    for index, gpu in enumerate(node.gpus):
        bus, device = int(gpu.fields["pci.bus"], 16), int(gpu.fields["pci.device"], 16)
        domain = f"{gpu.fields['pci.domain'][2:].lower()}:" if int(gpu.fields["pci.domain"], 16) else ""
        if bus:  # on bus 0 of a virtual machine there is no bridge
            rows += [
                f"{domain}{bus - 1:02x}:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)",
                "\tCapabilities: [68] Express (v2) Downstream Port (Slot+), MSI 00",
                "\tCapabilities: [170 v1] Access Control Services",
                control,
            ]
        rows.append(f"{domain}{bus:02x}:{device:02x}.0 3D controller: NVIDIA Corporation {node.spec.lspci} (rev a1)")
        if index < len(node.hcas) and node.hcas[index].near:
            chip = node.hcas[index].lspci
            rows.append(f"{domain}{bus + 1:02x}:00.0 Infiniband controller: Mellanox Technologies {chip}")
    return _lines(rows)


def _ibstat(hca: SimulatedHca) -> str:
    state = {"4: ACTIVE": "Active", "1: DOWN": "Down", "2: INIT": "Initializing"}.get(hca.state, "Down")
    guid = "0x" + hca.guid.replace(":", "")
    return (
        f"CA '{hca.name}'\n\tCA type: {hca.hca_type}\n\tNumber of ports: 1\n\tFirmware version: {hca.firmware}\n"
        f"\tHardware version: 0\n\tNode GUID: {guid}\n\tSystem image GUID: {guid}\n\tPort 1:\n\t\tState: {state}\n"
        f"\t\tPhysical state: {hca.phys_state.partition(': ')[2]}\n\t\tRate: {hca.rate.split()[0]}\n"
        f"\t\tBase lid: {hca.lid}\n\t\tLMC: 0\n\t\tSM lid: 1\n\t\tCapability mask: 0xa751e848\n\t\tPort GUID: {guid}\n"
        f"\t\tLink layer: {hca.link_layer}\n"
    )


_MTU_CODES = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}  # enum ibv_mtu


def _ibv_devinfo(hca: SimulatedHca) -> str:
    number, _, state = hca.state.partition(": ")
    return (
        f"hca_id:\t{hca.name}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t{hca.firmware}\n"
        f"\tnode_guid:\t\t\t{hca.guid}\n\tsys_image_guid:\t\t\t{hca.guid}\n\tvendor_id:\t\t\t0x02c9\n"
        f"\tvendor_part_id:\t\t\t{hca.hca_type[2:]}\n\thw_ver:\t\t\t\t0x0\n\tboard_id:\t\t\t{hca.board}\n\tphys_port_cnt:\t\t\t1\n"
        f"\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_{state} ({number})\n\t\t\tmax_mtu:\t\t4096 (5)\n"
        f"\t\t\tactive_mtu:\t\t{hca.mtu} ({_MTU_CODES[hca.mtu]})\n"
        f"\t\t\tsm_lid:\t\t\t1\n\t\t\tport_lid:\t\t{hca.lid}\n\t\t\tport_lmc:\t\t0x00\n"
        f"\t\t\tlink_layer:\t\t{hca.link_layer}\n"
    )


_LINK = ".target"  # what the simulated readlink prints of a folder


def _subnet(node: SimulatedNode) -> str:
    """Return the node's part of the InfiniBand subnet, as data/subnet.awk reads it."""
    rows = [f"since {time.time():.0f}"]
    for hca in node.hcas:
        if hca.link_layer != "InfiniBand" or not hca.near:
            continue
        rate = re.search(r"\((\d+)X (\w+)\)", hca.rate)
        up = hca.state.endswith("ACTIVE") and hca.phys_state.endswith("LinkUp")
        words = (node.name, hca.name, hca.guid.replace(":", ""), hca.lid, hca.leaf, hca.leaf_port)
        words += ("Active" if up else "Down", *(rate.groups() if rate else (4, "NDR")), hca.mtu)
        counts = (hca.counters.get("symbol_error", 0), hca.errors_per_second, hca.counters.get("link_downed", 0))
        keys = (",".join(hca.pkeys), ",".join(hca.dropped) or "-")
        rows.append(" ".join(map(str, ("hca", *words, *counts, *keys))))
    return _lines([*rows, *node.subnet])


def _modules(node: SimulatedNode) -> str:
    """Return the module at each adapter, as the simulated mlxlink reads them: adapter, speed, temperature, light, serial number, state, interface."""
    return _lines(
        f"{hca.name} {hca.rate.rstrip(')').split()[-1]} {hca.celsius} {hca.light[0]} {hca.light[1]} "
        f"MT{digest(node.name, 'module', hca.name)[:8].upper()} "
        + ("Active LinkUp" if hca.state.endswith("ACTIVE") else "Polling Polling")
        + f" {hca.interface}"
        for hca in node.hcas
    )


def _vpd(node: SimulatedNode) -> str:
    """Return each adapter with its vital product data in `lspci -Dvv`."""
    return "".join(
        f"{hca.path.rpartition('/')[2]} Infiniband controller: Mellanox Technologies {hca.lspci}\n"
        "\tCapabilities: [48] Vital Product Data\n\t\tProduct Name: NVIDIA ConnectX-7 HHHL Adapter Card, 400GbE / NDR IB\n"
        "\t\tRead-only fields:\n\t\t\t[PN] Part number: MCX75310AAS-NEAT\n\t\t\t[EC] Engineering changes: A6\n"
        f"\t\t\t[SN] Serial number: MT{int(digest(node.name, 'adapter', hca.name)[:10], 16) % 10**10:010}\n\t\tEnd\n"
        for hca in node.hcas
    )


_DIMMS = 32


def _dmi(node: SimulatedNode) -> str:
    """Return what `dmidecode -t 1 -t 2 -t 3 -t 17` prints."""
    serial = digest(node.name, "system")[:10].upper()
    gib = 1 << (node.spec.memory_mib // 1024 // _DIMMS).bit_length()
    blocks = [
        f"Handle 0x0001, DMI type 1, 27 bytes\nSystem Information\n\tManufacturer: Supermicro\n"
        f"\tProduct Name: SYS-821GE-TNHR\n\tSerial Number: S{serial}\n",
        f"Handle 0x0002, DMI type 2, 15 bytes\nBase Board Information\n\tManufacturer: Supermicro\n"
        f"\tProduct Name: X13DEG-OAD\n\tSerial Number: OM{serial}\n",
        "Handle 0x0003, DMI type 3, 22 bytes\nChassis Information\n\tManufacturer: Supermicro\n\tSerial Number: To be filled by O.E.M.\n",
    ]
    for slot in range(_DIMMS):
        cpu, channel = divmod(slot, _DIMMS // 2)
        blocks.append(
            f"Handle 0x{0x40 + slot:04X}, DMI type 17, 92 bytes\nMemory Device\n\tSize: {gib} GB\n"
            f"\tLocator: P{cpu + 1}-DIMM{'ABCDEFGH'[channel // 2]}{channel % 2 + 1}\n\tBank Locator: P{cpu}_Node0_Channel{channel // 2}\n"
            f"\tManufacturer: Samsung\n\tSerial Number: {digest(node.name, 'dimm', slot)[:8].upper()}\n\tPart Number: M321R8GA0BB0-CQKZJ\n"
        )
    return "# dmidecode 3.5\nSMBIOS 3.5.0 present.\n\n" + "\n".join(blocks)


def _lldp(node: SimulatedNode) -> str:
    """Return what `lldpcli -f json show neighbors` prints: one interface stands there without a list (lldpd 1.0.16)."""
    switch, port = node.board
    chassis = {"id": {"type": "mac", "value": "2c:5e:ab:00:00:01"}, "descr": "Cumulus Linux version 5.9.2"}
    heard = {
        "via": "LLDP",
        "rid": "1",
        "age": "12 days, 04:11:31",
        "chassis": {switch: chassis},
        "port": {"id": {"type": "ifname", "value": port}, "descr": port, "ttl": "120"},
    }
    return json.dumps({"lldp": {"interface": {"eno1": heard}}}, indent=2) + "\n"


def _hca_files(node: SimulatedNode) -> dict[str, str]:
    contents: dict[str, str] = {}
    for hca in node.hcas:
        top = f"/sys/class/infiniband/{hca.name}"
        port = f"{top}/ports/1"
        contents |= {
            f"{top}/fw_ver": hca.firmware,
            f"{top}/hca_type": hca.hca_type,
            f"{top}/board_id": hca.board,
            f"{top}/node_guid": hca.guid,
            f"{top}/node_type": "1: CA",
            f"{top}/device/numa_node": str(hca.numa_node),
            f"{top}/device/vendor": "0x15b3",
            f"{top}/device/{_LINK}": hca.path,
            f"{top}/device/uevent": f"PCI_SLOT_NAME={hca.path.rpartition('/')[2]}",
            f"{top}/device/net/{hca.interface}/mtu": str(_ip_mtu(hca)),
            f"{port}/state": hca.state,
            f"{port}/phys_state": hca.phys_state,
            f"{port}/rate": hca.rate,
            f"{port}/link_layer": hca.link_layer,
            f"{port}/gids/0": f"fe80:0000:0000:0000:{hca.guid}",
            f"{port}/lid": f"0x{hca.lid:x}",
            f"/sys/class/net/{hca.interface}/mtu": str(_ip_mtu(hca)),
            f"/sys/class/net/{hca.interface}/operstate": "up" if hca.state.endswith("ACTIVE") else "down",
        }
        contents |= {f"{port}/counters/{name}": str(count) for name, count in hca.counters.items()}
        contents |= {f"{port}/pkeys/{index}": key for index, key in enumerate((*hca.pkeys, "0x0000"))}
        contents |= {f"{top}/device/vpd": "SMDL=SW_MNG"} if hca.bridge else {}
    for gpu in node.gpus:
        path = gpu_path(gpu)
        contents[f"/sys/bus/pci/drivers/nvidia/{path.rpartition('/')[2]}/{_LINK}"] = path
    return {path: text + "\n" for path, text in contents.items()}


def _pci_files(node: SimulatedNode) -> dict[str, str]:
    """Return what sysfs has of GPUs, adapters, the interface of the board and NVMe drives."""
    functions = [
        *((address, "30200", "10DE:2335", 16, "32.0 GT/s PCIe") for address in _gpu_addresses(node)),
        *(
            (hca.path.rpartition("/")[2], _HCA_CLASS[hca.link_layer], "15B3:1021", hca.width, "32.0 GT/s PCIe")
            for hca in node.hcas
        ),
        ("0000:71:00.0", "20000", "8086:1563", 4, "8.0 GT/s PCIe"),
        *((drive.address, "10802", drive.kind, drive.width, drive.speed) for drive in node.drives),
    ]
    contents = {}
    for address, pci_class, kind, width, speed in functions:
        top = f"/sys/bus/pci/devices/{address}"
        contents[f"{top}/uevent"] = f"PCI_CLASS={pci_class}\nPCI_ID={kind}\nPCI_SLOT_NAME={address}\n"
        contents |= {f"{top}/current_link_width": f"{width}\n", f"{top}/current_link_speed": f"{speed}\n"}
    for drive in node.drives:
        files = {
            "model": f"{drive.model:<40}",
            "firmware_rev": drive.firmware,
            "state": drive.state,
            "transport": "pcie",
            "address": drive.address,
            "serial": f"S6{digest(node.name, drive.name)[:12].upper()}",
        }
        contents |= {f"/sys/class/nvme/{drive.name}/{name}": f"{text}\n" for name, text in files.items()}
        contents[f"/sys/class/nvme/{drive.name}/device/uevent"] = f"PCI_SLOT_NAME={drive.address}\n"
        contents[f"/sys/block/{drive.name}n1/removable"] = "0\n"
    return contents


_HCA_CLASS = {"InfiniBand": "20700", "Ethernet": "20000"}


def _gpu_addresses(node: SimulatedNode) -> list[str]:
    """Return the addresses of the GPUs that the node was built with: one that fell off the bus keeps its entry."""
    return [address[-12:].lower() for address in node.spec.addresses[: node.device_files]]


# -- the operating system ------------------------------------------------------------------------------------


def _quota(node: SimulatedNode) -> str:
    """Return what `quota -u -v -w -p` of linuxquota 4 prints: a quota of 10 TiB and 5 million files in the shared folder."""
    limit, mount = 10 << 30, node.mounts[-1]
    return _lines(
        [
            "Disk quotas for user operator (uid 1000): ",
            "     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace",
            f"{mount.source:>15} {limit - node.quota_left_kb:>7}  {limit:>6} {limit:>7} {0:>7} {90210:>7}  {0:>6} {5000000:>7} {0:>7}",
        ]
    )


def _system_files(node: SimulatedNode) -> dict[str, str]:
    sync = node.time_synchronised
    build = node.kernel.split("-")[1] if "-" in node.kernel else "1"
    return {
        "kernel": f"{node.kernel} #{build}-Ubuntu SMP PREEMPT_DYNAMIC\n{node.spec.cpus.machine}\n",
        "mounts": _lines(
            "\t".join(map(str, (m.path, m.source, m.fstype, m.options, m.size_kb, m.used_kb))) for m in node.mounts
        ),
        "quota": _quota(node),
        "processes": _lines(
            "\t".join(map(str, (p.pid, p.ppid, p.stat, p.etimes, p.user, p.comm, p.args or p.comm, p.rss_kb)))
            for p in node.processes
        ),
        **({"crashes": _crashes(node)} if node.crash_files else {}),
        "wtmp": _wtmp(node),
        "bmc-events": _bmc_events(node),
        "bmc-sensors": _bmc_sensors(node),
        **{f"smart-{drive.name}": _smart(drive) for drive in node.drives},
        "ldconfig-p": _lines(
            [
                f"{len(_LIBRARIES)} libs found in cache `/etc/ld.so.cache'",
                *(f"\t{name} (libc6,x86-64) => {_LIBRARY}/{name}" for name in _LIBRARIES),
            ]
        ),
        "shm": _lines(f"shm {size} {user} {path}" for size, user, path in node.shm),
        **({} if node.systemd else {"systemd-gone": "\n"}),
        **({"away": _lines(node.away)} if node.away else {}),
        **({"slow": _lines(f"{path} {seconds:g}" for path, seconds in node.slow.items())} if node.slow else {}),
        **({"name-delay": f"{node.name_delay:g}\n"} if node.name_delay else {}),
        "services": _lines(f"{unit} {state}" for unit, state in node.services.items()),
        "packages": _lines(f"{name}\t{version}" for name, version in node.packages.items()),
        "dmesg": _lines(node.kernel_log),
        "lscpu": _lscpu(node),
        "nproc": f"{node.spec.cpus.count - len(node.offline_cpus)}\n",
        "timedatectl-show": _lines(
            ("Timezone=Etc/UTC", "LocalRTC=no", "CanNTP=yes", "NTP=yes", f"NTPSynchronized={'yes' if sync else 'no'}")
        ),
        "chronyc-tracking-csv": _CHRONY_CSV.format(node.time_lost_days * 86_400) if sync else _CHRONY_CSV_OFF,
        "chronyc-tracking": _CHRONY if sync else _CHRONY.replace("Normal", "Not synchronised"),
    }


_CHRONY_CSV = (
    "0A000001,10.0.0.1,3,@{:.0f},0.000012345,-0.000001234,0.000023456,-12.345,-0.001,0.012,"
    "0.000512345,0.000123456,64.2,Normal\n"
)
_CHRONY_CSV_OFF = (
    "7F7F0101,,0,0.000000000,0.000000000,0.000000000,0.000000000,0.000,0.000,0.000,1.000000000,1.000000000,0.0,"
    "Not synchronised\n"
)
_CHRONY = """\
Reference ID    : 0A000001 (10.0.0.1)
Stratum         : 3
System time     : 0.000012345 seconds fast of NTP time
Last offset     : -0.000001234 seconds
RMS offset      : 0.000023456 seconds
Leap status     : Normal
"""


def _crashes(node: SimulatedNode) -> str:
    """Return the files that a crash left, as `find -printf 'file %T@ %p'` lists them."""
    now = time.time()
    return _lines(f"file {now - before:.10f} {path}" for before, path in node.crash_files)


def _smart(drive: SimulatedDrive) -> str:
    """Return what smartctl 7.4 prints with `--json=c -H -A`; of a controller that stopped, that it cannot be opened."""
    name = f"/dev/{drive.name}"
    smartctl: dict[str, Any] = {"version": [7, 4], "argv": ["smartctl", "--json=c", "-H", "-A", name]}
    if drive.state == "dead":
        error = {"string": f"Smartctl open device: {name} failed: No such device", "severity": "error"}
        found: dict[str, Any] = {"smartctl": {**smartctl, "messages": [error], "exit_status": 2}}
    else:
        warning = drive.critical_warning
        found = {
            "smartctl": {**smartctl, "exit_status": 8 if warning else 0},
            "device": {"name": name, "info_name": name, "type": "nvme", "protocol": "NVMe"},
            "smart_status": {"passed": not warning, "nvme": {"value": warning}},
            "nvme_smart_health_information_log": {
                "critical_warning": warning,
                "temperature": 82 if warning & 2 else 34,
                "available_spare": drive.spare,
                "available_spare_threshold": 10,
                "percentage_used": drive.used,
                "media_errors": 0,
                "num_err_log_entries": 12,
            },
        }
    return json.dumps({"json_format_version": [1, 0], **found}, separators=(",", ":")) + "\n"


def _wtmp(node: SimulatedNode) -> str:
    """Return the boots and shutdowns of `last -x -F`, the newest first; the last boot is as long ago as the uptime."""
    # a fixed time: all healthy nodes have the same files, and only faults change them
    booted = int(time.time() - node.uptime) if not node.clean_shutdown else 1_700_000_000
    layout = "%a %b %e %H:%M:%S %Y"
    boot = time.strftime(layout, time.gmtime(booted))
    down, before = (time.strftime(layout, time.gmtime(booted - ago)) for ago in (300, 8_640_000))
    kernel = node.kernel[:16]
    rows = [f"reboot   system boot  {kernel:<16} {boot}   still running"]
    if node.clean_shutdown:
        rows.append(f"shutdown system down  {kernel:<16} {down} - {boot}  (00:05)")
    rows.append(f"reboot   system boot  {kernel:<16} {before} - {down} (99+23:55)")
    return _lines([*rows, "", "wtmp begins Wed Aug 13 10:00:00 2025"])


# entries of a healthy node: of its delivery, of a DIMM that was replaced, and of a power feed that was switched off
_BMC_EVENTS = (
    "08/13/25 | 09:58:02 UTC | Event Logging Disabled #0x72 | Log area reset/cleared | Asserted",
    " Pre-Init  |0000000093| System ACPI Power State #0xd5 | S0/G0: working | Asserted",
    "08/13/25 | 10:00:41 UTC | Physical Security #0x73 | General Chassis intrusion | Asserted",
    "09/02/25 | 03:11:05 UTC | Memory #0x87 | Uncorrectable ECC (UnCorrectable ECC |  DIMMB2) | Asserted",
    "09/03/25 | 13:40:17 UTC | System Boot Initiated #0x08 | Initiated by power up | Asserted",
    "10/21/25 | 07:02:17 UTC | Power Supply #0x61 | Power Supply AC lost | Asserted",
    "10/21/25 | 07:02:18 UTC | Power Supply #0x70 | Redundancy Lost | Asserted",
    "10/21/25 | 09:30:44 UTC | Power Supply #0x61 | Power Supply AC lost | Deasserted",
    "10/21/25 | 09:30:45 UTC | Power Supply #0x70 | Fully Redundant | Asserted",
    "11/02/25 | 16:20:09 UTC | System Boot Initiated #0x08 | Initiated by warm reset | Asserted",
    "11/02/25 | 16:22:31 UTC | OS Boot #0x09 | C: boot completed | Asserted",
)


def _bmc_events(node: SimulatedNode) -> str:
    """Return the log of the BMC as `sel list` prints it, with the entries of faults at its end."""
    now = time.time()
    recent = (
        f"{time.strftime('%m/%d/%y | %H:%M:%S UTC', time.gmtime(now - before))} | {text}"
        for before, text in node.bmc_events
    )
    return _lines(f"{number:4x} | {text}" for number, text in enumerate((*_BMC_EVENTS, *recent), 1))


def _bmc_sensors(node: SimulatedNode) -> str:
    """Return the sensors as `sdr elist` prints them."""
    return _lines(
        f"{name:<16} | {number}h | {status:<3} | {entity:>4} | {reading}"
        for name, (number, status, entity, reading) in node.bmc_sensors.items()
    )


def _lscpu(node: SimulatedNode) -> str:
    cpus, off = node.spec.cpus, sorted(node.offline_cpus)
    online = [cpu for cpu in range(cpus.count) if cpu not in off]
    known = dict(cpus.lscpu)
    rows = [
        ("Architecture", cpus.machine),
        *((name, known[name]) for name in ("CPU op-mode(s)", "Address sizes", "Byte Order") if name in known),
        ("CPU(s)", str(cpus.count)),
        ("On-line CPU(s) list", ranges(online)),
        *([("Off-line CPU(s) list", ranges(off))] if off else []),
        *((name, known[name]) for name in ("Vendor ID", "Model name", "CPU family", "Model") if name in known),
        ("Thread(s) per core", str(cpus.threads)),
        ("Core(s) per socket", str(cpus.count // cpus.threads // cpus.sockets)),
        ("Socket(s)", str(cpus.sockets)),
        ("Stepping", known["Stepping"]),
        *([] if node.spec.vendor == "NVIDIA" else [("Hypervisor vendor", "KVM"), ("Virtualization type", "full")]),
        ("NUMA node(s)", str(cpus.numa_nodes + cpus.memory_nodes)),
        *(
            (f"NUMA node{n} CPU(s)", ranges(sorted({*cpus.of_numa(n)} - {*off})))
            for n in range(cpus.numa_nodes + cpus.memory_nodes)
        ),
    ]
    return _lines(f"{name + ':':<41}{text}".rstrip() for name, text in rows)


def ranges(numbers: list[int]) -> str:
    """Return a sorted list in the kernel's format: '0-2,5' for [0, 1, 2, 5]."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _mdstat(node: SimulatedNode) -> str:
    disks = ("nvme1n1", "nvme2n1", "nvme3n1", "nvme4n1")
    members = [f"{name}[{at}]{'(F)' * (name == node.failed_disk)}" for at, name in enumerate(disks)]
    states = "".join("_" if name == node.failed_disk else "U" for name in disks)
    return (
        "Personalities : [raid1] [raid6] [raid5] [raid4]\n"
        f"md0 : active raid5 {' '.join(reversed(members))}\n"
        f"      29300000000 blocks super 1.2 level 5, 512k chunk, algorithm 2 [4/{states.count('U')}] [{states}]\n\n"
        "unused devices: <none>\n"
    )


def _overlay(node: SimulatedNode) -> dict[str, str]:
    """Return the files of /etc, /proc and /sys."""
    release = _lines(
        f'{key}="{value}"' if not value.replace("-", "").isalnum() or key == "VERSION_ID" else f"{key}={value}"
        for key, value in node.os_release.items()
    )
    mounts = _lines(f"{m.source} {m.path} {m.fstype} {m.options} 0 0" for m in node.mounts)
    driver = node.gpus[0].fields["driver_version"] if node.gpus else "580.159.04"
    cpus = node.spec.cpus
    online = [cpu for cpu in range(cpus.count) if cpu not in node.offline_cpus]
    cpu = "/sys/devices/system/cpu"
    contents = {
        "/etc/os-release": release,
        "/usr/lib/os-release": release,
        "/etc/hostname": f"{node.name}\n",
        "/proc/mounts": mounts,
        "/proc/self/mounts": mounts,
        # the kernel makes a file system read-only, not its mount
        "/proc/self/mountinfo": _lines(
            f"{number} 1 0:{number} / {m.path} rw,relatime shared:1 - {m.fstype} {m.source} {m.options}"
            for number, m in enumerate(node.mounts, 22)
        ),
        "/proc/mdstat": _mdstat(node),
        "/proc/uptime": f"{node.uptime:.2f} {node.uptime * cpus.count * 0.98:.2f}\n",
        "/proc/loadavg": f"{node.load} 2/1893 412345\n",
        "/proc/meminfo": _meminfo(node),
        "/sys/class/dmi/id/sys_vendor": f"{node.spec.vendor}\n",
        "/sys/class/dmi/id/product_name": f"{node.spec.product or node.spec.vendor}\n",
        "/proc/cmdline": f"BOOT_IMAGE=/vmlinuz-{node.kernel} root=/dev/nvme0n1p2 ro {node.spec.iommu}\n",
        "/proc/version": f"Linux version {node.kernel} (buildd@lcy02) (gcc 13.3.0) #1 SMP PREEMPT_DYNAMIC\n",
        "/proc/modules": _lines(f"{name} {size} 0 - Live 0x0000000000000000" for name, size in node.modules.items()),
        "/proc/driver/nvidia/version": (_NVRM if node.open_modules else _NVRM_PROPRIETARY).format(
            driver=driver, machine=cpus.machine
        ),
        "/proc/sys/kernel/osrelease": f"{node.kernel}\n",
        "/proc/sys/kernel/hostname": f"{node.name}\n",
        "/proc/sys/vm/nr_hugepages": f"{node.hugepages}\n",
        f"{cpu}/online": f"{ranges(online)}\n",
        f"{cpu}/offline": f"{ranges(sorted(node.offline_cpus))}\n",
        f"{cpu}/present": f"0-{cpus.count - 1}\n",
        f"{cpu}/possible": f"0-{cpus.count - 1}\n",
        "/sys/devices/system/node/online": f"{ranges(list(range(cpus.numa_nodes + cpus.memory_nodes)))}\n",
        "/sys/class/net/eno1/mtu": "1500\n",
        "/sys/class/net/eno1/operstate": "up\n",
        "/sys/class/net/lo/mtu": "65536\n",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "/sys/kernel/security/lsm": "lockdown,capability,landlock,yama,apparmor\n",
    }
    for name in (*(f"nvidia{n}" for n in range(node.device_files)), "nvidiactl", "nvidia-uvm", "shm"):
        contents[f"/dev/{name}"] = ""
    for numa in range(cpus.numa_nodes + cpus.memory_nodes):
        contents[f"/sys/devices/system/node/node{numa}/cpulist"] = f"{ranges(sorted(cpus.of_numa(numa)))}\n"
    for number in online if node.governor else ():
        contents[f"{cpu}/cpu{number}/cpufreq/scaling_governor"] = f"{node.governor}\n"
    contents["/proc/sys/kernel/tainted"] = f"{node.taint}\n"
    if node.nccl_conf:
        contents["/etc/nccl.conf"] = _lines(node.nccl_conf)
    for name, value in node.sysctls.items():
        contents[f"/proc/sys/{name.replace('.', '/')}"] = f"{value}\n"
    for name in _LIBRARIES:
        contents[f"{_LIBRARY}/{name}"] = "" if name in node.empty_libraries else "\x7fELF\n"
    for module in node.modules:
        contents[f"/sys/module/{module}/initstate"] = "live\n"
    return contents | _hca_files(node) | _pci_files(node)


_LIBRARY = "/usr/lib/x86_64-linux-gnu"
_LIBRARIES = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-opencl.so.1",
)

_NVRM = """\
NVRM version: NVIDIA UNIX Open Kernel Module for {machine}  {driver}  Release Build  (buildd@)
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2)
"""
_NVRM_PROPRIETARY = _NVRM.replace("Open Kernel Module for {machine}", "{machine} Kernel Module").replace(
    "  Release Build", ""
)


def _meminfo(node: SimulatedNode) -> str:
    total = node.mem_total_kb
    shm = sum(size for size, _, _ in node.shm)
    reserved = node.hugepages * 2048
    used = int(total * 0.03) + shm + reserved
    rows = {
        "MemTotal": total,
        "MemFree": max(0, total - used - node.cached_kb),
        "MemAvailable": max(0, total - used),
        "Buffers": 12784,
        "Cached": node.cached_kb + shm,
        "SwapCached": 0,
        "SwapTotal": 0,
        "SwapFree": 0,
        "Dirty": 18544,
        "Shmem": 7368 + shm,
        "Slab": 158684,
        "Committed_AS": 315468,
    }
    lines = [f"{name + ':':<16}{kb:>10} kB" for name, kb in rows.items()]
    lines += [f"{name + ':':<16}{node.hugepages:>10}" for name in ("HugePages_Total", "HugePages_Free")]
    return _lines([*lines, f"{'Hugepagesize:':<16}{2048:>10} kB", f"{'Hugetlb:':<16}{reserved:>10} kB"])


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
