"""InfiniBand fabrics for tests: as the text that ibsim and the reader of ibnetdiscover take, and simulated by ibsim with a real opensm.

ibsim and its clients meet at abstract unix sockets of a name of their own: nothing listens on the network.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.suites.ibfabric.facts import SUBNET_SH, FabricFacts, NodePort, NodePorts, read_fabric
from pytest_gpucluster.suites.ibfabric.subnet import read_ibnetdiscover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

End = tuple[str, int]  # name of a device, and its port
PROGRAMS = ("ibsim", "ibsim-run", "opensm", "ibnetdiscover")
SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
needs_ibsim = pytest.mark.skipif(
    any(shutil.which(name, path=SEARCH) is None for name in PROGRAMS),
    reason="apt-get install ibsim-utils opensm infiniband-diags",
)
PATIENCE = 120.0  # seconds until opensm has brought up the subnet
PORTS = 64
LEAF, SPINE, HCA = "2c5eab0300b87b40", "2c5eab0300c26280", "e09d7303007a4bd8"
# a managed leaf of Quantum-2, as NVIDIA/topograph has it among its test outputs, with its SHARP aggregation node
NETDISCOVER = f"""\
#
# Topology file: generated on Wed Aug  6 16:11:23 2025
#
# Initiated from node e09d730300156ff6 port e09d730300156ff6

vendid=0x2c9
devid=0xd2f2
sysimgguid=0x{LEAF}
switchguid=0x{LEAF}({LEAF})
Switch	65 "S-{LEAF}"		# "MF0;A09-IBLEAF-04:MQM9701/U1" enhanced port 0 lid 73 lmc 0
[1]	"H-{HCA}"[1]({HCA}) 		# "dgx-04-c01 mlx5_5" lid 647 4xNDR
[35]	"S-{SPINE}"[32]		# "MF0;A10-IBSPINE-02:MQM9701/U1" lid 236 4xNDR
[65]	"H-2c5eab0300b87b48"[1](2c5eab0300b87b48) 		# "Mellanox Technologies Aggregation Node" lid 74 4xNDR

vendid=0x2c9
devid=0xd2f2
sysimgguid=0x{SPINE}
switchguid=0x{SPINE}({SPINE})
Switch	65 "S-{SPINE}"		# "MF0;A10-IBSPINE-02:MQM9701/U1" enhanced port 0 lid 236 lmc 0
[32]	"S-{LEAF}"[35]		# "MF0;A09-IBLEAF-04:MQM9701/U1" lid 73 4xNDR

vendid=0x2c9
devid=0xcf09
sysimgguid=0x{LEAF}
caguid=0x2c5eab0300b87b48
Ca	1 "H-2c5eab0300b87b48"		# "Mellanox Technologies Aggregation Node"
[1](2c5eab0300b87b48) 	"S-{LEAF}"[65]		# lid 74 lmc 0 "MF0;A09-IBLEAF-04:MQM9701/U1" lid 73 4xNDR

vendid=0x2c9
devid=0x1021
sysimgguid=0x{HCA}
caguid=0x{HCA}
Ca	1 "H-{HCA}"		# "dgx-04-c01 mlx5_5"
[1]({HCA}) 	"S-{LEAF}"[1]		# lid 647 lmc 0 "MF0;A09-IBLEAF-04:MQM9701/U1" lid 73 4xNDR
"""
UP = f'0x{LEAF} "  MF0;A09-IBLEAF-04:MQM9701/U1"     73'
LINKINFO = f"""\
{UP}    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>  0x{HCA}    647    1[  ] "dgx-04-c01 mlx5_5" ( )
{UP}    2[  ] ==(                Down/ Polling)==>             [  ] "" ( )
{UP}    3[  ] ==(                Down/Disabled)==>             [  ] "" ( )
{UP}    4[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>      "Port not available"
{UP}   35[  ] ==( 2X        53.125 Gbps   Init/  LinkUp)==>  0x{SPINE}    236   32[  ] "MF0;A10-IBSPINE-02:MQM9701/U1" (Could be 4X Could be 106.25 Gbps)
0x{HCA} "             dgx-04-c01 mlx5_5"    647    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>  0x{LEAF}     73    1[  ] "MF0;A09-IBLEAF-04:MQM9701/U1" (Could be 12X )
"""

ERRORS = """\
time {time}
Errors for 0x{leaf} "MF0;A09-IBLEAF-04:MQM9701/U1"
   GUID 0x{leaf} port ALL: [SymbolErrorCounter == {errors}] [PortXmitWait == 918273]
   GUID 0x{leaf} port 35: [SymbolErrorCounter == {errors}] [LinkDownedCounter == 2] [PortXmitWait == 918273]

## Summary: 4 nodes checked, 1 bad nodes found
##          131 ports checked, 1 ports have errors beyond threshold
## Thresholds:
## Suppressed:
"""
MASTER = f"sminfo: sm lid 647 sm guid 0x{HCA}, activity count 99 priority 14 state 3 SMINFO_MASTER\n"
STANDBY = f"sminfo: sm lid 73 sm guid 0x{LEAF}, activity count 7 priority 0 state 2 SMINFO_STANDBY\n"
DB_CSV = f"""\
START_NODES
NodeDesc,NumPorts,NodeType,ClassVersion,BaseVersion,SystemImageGUID,NodeGUID
"MF0;A09-IBLEAF-04:MQM9701/U1",65,2,1,1,0x{LEAF},0x{LEAF}
END_NODES
START_NODES_INFO
NodeGUID,HWInfo_DeviceID,FWInfo_PSID,FWInfo_Extended_Major,FWInfo_Extended_Minor,FWInfo_Extended_SubMinor
0x{LEAF},0xd2f2,MT_0000000556,0x0000001f,0x000007dc,0x00000ee2
0x{HCA},0x1021,MT_0000000838,N/A,N/A,N/A
END_NODES_INFO
"""
NET_DUMP = f"""\
# This database file was automatically generated
Ty : # : #IB : GUID : LID : Sta : PhysSta : LWA : LSA : Conn LID (#) : FEC mode : RTR : Raw BER : Effective BER : Symbol BER : Symbol Err : Effective Err : Node Desc
SW : 35 : 35 : 0x{LEAF} : 73 (0x49) : ACT : LINK UP : 4x : 100 : 236 (0xec) : STD-LL-RS : NO-RTR : 1e-06 : 3e-11 : 2e-11 : 812 : 900 : "MF0;A09-IBLEAF-04:MQM9701/U1"
CA : 1 : 1 : 0x{HCA} : 647 (0x287) : ACT : LINK UP : 4x : 100 : 73 (0x49) : STD-LL-RS : NO-RTR : 2e-09 : 1.5e-254 : 1.5e-254 : 0 : 0 : "dgx-04-c01 mlx5_5"
CA : 1 : 1 : 0x1 : 648 (0x288) : DOWN : POLL : N/A : N/A : N/A : N/A : N/A : N/A : N/A : N/A : N/A : N/A : "dgx-04-c02 mlx5_5"
"""


def shown(**parts: tuple[str, int]) -> str:
    """Return what subnet.sh prints of these parts."""
    return "".join(f"= {name}\n{text}= exit {status}\n" for name, (text, status) in parts.items())


WHOLE = {
    "before": (ERRORS.format(time=100, errors=17, leaf=LEAF), 1),
    "subnet": (NETDISCOVER, 0),
    "links": (LINKINFO, 0),
    "managers": (MASTER + STANDBY + MASTER, 0),
    "ports": ("73 35 Active 2048 4096 647 1\n236 32 Active 4096 4096 647 0\nnoise\n", 0),
    "pkeys": ("73 35 0xffff 0x8001\n73 35 0x0002\n647 1 0xffff\nnoise\n", 0),
    "routing": (
        "routing_engine ar_updn,minhop\n"
        "Jun 21 13:03:06 813474 [BE3ED6C0] 0x02 -> osm_ucast_mgr_process: minhop tables configured on all switches\n"
        "Jun 21 13:04:06 813474 [BE3ED6C0] 0x02 -> osm_ucast_mgr_process: ar_updn tables configured on all switches\n",
        0,
    ),
    "ibdiagnet": (DB_CSV + NET_DUMP, 0),
    "after": (ERRORS.format(time=105, errors=90, leaf=LEAF), 1),
}
SHOWN = shown(**WHOLE)


@dataclass
class Topology:
    """Cables by their ends. HCAs have names like `gpu01 mlx5_0`; other devices are switches. rates: '4xHDR' unless it says else."""

    peers: dict[End, End] = field(default_factory=dict)
    rates: dict[End, str] = field(default_factory=dict)

    def connect(self, one: End, other: End) -> None:
        self.peers |= {one: other, other: one}

    def cut(self, end: End) -> None:
        self.peers.pop(self.peers.pop(end))

    def swap(self, one: End, other: End) -> None:
        """Swap the far ends of two cables."""
        far, its = self.peers[one], self.peers[other]
        self.connect(one, its)
        self.connect(other, far)

    def slow(self, end: End, rate: str = "4xEDR") -> None:
        self.rates |= {end: rate, self.peers[end]: rate}

    @property
    def devices(self) -> list[str]:
        return list(dict.fromkeys(device for device, _ in self.peers))

    def guid(self, device: str) -> str:
        top = 0xA088C20300000000 if " " in device else 0x2C5EAB0300000000
        kind, first, second = re.fullmatch(r"(\D+)(\d+)(?:(?: mlx5_|-)(\d+))?", device).groups()  # type: ignore[union-attr]
        # of two managers the one with the lower GUID becomes the master
        number = zlib.crc32(kind.encode()) % 256 << 16 | int(first) << 6 | int(second or 0)
        return f"{top + 64 * number:016x}"

    def port_guid(self, hca: str) -> str:
        """ibsim gives the first port of an HCA the GUID after that of the HCA."""
        return f"{int(self.guid(hca), 16) + 1:016x}"

    def node_id(self, device: str) -> str:
        return f"{'H' if ' ' in device else 'S'}-{self.guid(device)}"

    def text(self) -> str:
        """The fabric as ibnetdiscover prints it, with the s= and w= of --full, by which ibsim knows the rates."""
        guids = {device: self.guid(device) for device in self.devices}
        return "\n".join(self._device(device, guids) for device in guids)

    def _device(self, device: str, guids: dict[str, str]) -> str:
        guid, is_hca = guids[device], " " in device
        lines = ["vendid=0x2c9", f"devid=0x{'101b' if is_hca else 'd2f0'}", f"sysimgguid=0x{guid}"]
        if is_hca:
            lines += [f"caguid=0x{guid}", f'Ca\t1 "H-{guid}"\t\t# "{device}"']
        else:
            about = f'"{described(device)}" enhanced port 0 lid 0 lmc 0'
            lines += [f"switchguid=0x{guid}({guid})", f'Switch\t{PORTS} "S-{guid}"\t\t# {about}']
        for (_, port), (other, its) in sorted(it for it in self.peers.items() if it[0][0] == device):
            rate, far, other_hca = self.rates.get((device, port), "4xHDR"), guids[other], " " in other
            own = f"({self.port_guid(device)})" if is_hca else ""
            end = f'"{"H" if other_hca else "S"}-{far}"[{its}]' + (f"({self.port_guid(other)}) " if other_hca else "")
            about = f'"{described(other)}" lid 0 {rate} s=4 w={2 if rate.startswith("4x") else 16}'
            lines.append(f"[{port}]{own}\t{end}\t\t# {'lid 0 lmc 0 ' * is_hca}{about}")
        return "\n".join([*lines, ""])

    def ports(self) -> dict[str, NodePorts]:
        """What the nodes show of their ports; adapter mlx5_N has the PCI address 0000:N0:00.0."""
        found: dict[str, list[NodePort]] = {}
        for device in self.devices:
            node, _, name = device.partition(" ")
            if name:
                place = f"0000:{name[5:]}0:00.0"
                found.setdefault(node, []).append(NodePort(name, 1, self.port_guid(device), "ACTIVE", place))
        return {node: NodePorts(tuple(ports), tools=True) for node, ports in found.items()}

    def facts(self) -> FabricFacts:
        """What the reader of ibnetdiscover makes of the text."""
        return FabricFacts("gpu01", read_ibnetdiscover(self.text()))


def described(device: str) -> str:
    return device if " " in device else f"MF0;{device}:MQM8700/U1"


def uplinks(fabric: Topology, leaves: int, spines: int, each: int) -> Topology:
    for leaf in range(leaves):
        for spine in range(spines):
            for number in range(each):
                fabric.connect(
                    (f"leaf{leaf + 1:02}", 33 + spine * each + number),
                    (f"spine{spine + 1:02}", 1 + leaf * each + number),
                )
    return fabric


def rail_optimised(nodes: int = 16, hcas: int = 8, spines: int = 4, each: int = 2) -> Topology:
    """Each of the node's HCAs is on a leaf of its own."""
    fabric = Topology()
    for node in range(nodes):
        for hca in range(hcas):
            fabric.connect((f"gpu{node + 1:02} mlx5_{hca}", 1), (f"leaf{hca + 1:02}", node + 1))
    return uplinks(fabric, hcas, spines, each)


def small() -> Topology:
    return rail_optimised(nodes=4, hcas=4)


def fat_tree(nodes: int = 64, leaves: int = 4, spines: int = 4, each: int = 2) -> Topology:
    """One HCA for each node, and as many nodes on each leaf."""
    fabric = Topology()
    for node in range(nodes):
        fabric.connect(
            (f"gpu{node + 1:02} mlx5_0", 1), (f"leaf{node * leaves // nodes + 1:02}", node % (nodes // leaves) + 1)
        )
    return uplinks(fabric, leaves, spines, each)


class Ibsim:
    """A running fabric. `console`: a command of ibsim; `manager` starts an opensm at a host; `facts` runs subnet.sh there."""

    def __init__(self, folder: Path, topology: Topology, process: subprocess.Popen[str]) -> None:
        self.folder, self.topology, self._process = folder, topology, process
        self._managers: list[subprocess.Popen[bytes]] = []

    def environment(self, host: str) -> dict[str, str]:
        own = {"IBSIM_SOCKNAME": self.folder.name, "SIM_HOST": self.topology.node_id(host), "PATH": SEARCH}
        return {**os.environ, **own}

    def console(self, line: str) -> None:
        """Send a command. ibsim takes one line at a time when its input wakes it, and prints nothing by which one could wait."""
        assert self._process.stdin
        for text in (line, "# wakes it", "# again"):
            self._process.stdin.write(f"{text}\n")
            self._process.stdin.flush()
            time.sleep(0.15)

    def manager(self, host: str, *words: str) -> None:
        own = self.folder / f"opensm-{len(self._managers)}"
        own.mkdir()
        log = own / "log"
        argv = ["ibsim-run", "opensm", "-f", str(log), *words]
        self._managers.append(
            subprocess.Popen(
                argv,
                env={**self.environment(host), "OSM_CACHE_DIR": str(own), "OSM_TMP_DIR": str(own)},
                cwd=own,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        deadline = time.monotonic() + PATIENCE
        while not self._is_up(log, host):
            assert time.monotonic() < deadline, f"opensm at {host} has not brought up the subnet"
            time.sleep(0.1)

    def _is_up(self, log: Path, host: str) -> bool:
        text = log.read_text() if log.exists() else ""
        if "Entering MASTER state" not in text:
            return "Entering STANDBY state" in text
        return not any(it in self.run("iblinkinfo --line", host).stdout for it in (" Init", " Armed"))

    def run(self, script: str, host: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ibsim-run", "sh", "-c", script],
            env=self.environment(host),
            cwd=self.folder,  # each client makes a folder for its sysfs
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def facts(self, host: str, *, before: str = "") -> FabricFacts:
        """Run subnet.sh, which does not wait between both readings of the counters; first `before`."""
        done = self.run(before + SUBNET_SH.replace("sleep 5 &", ": &"), host)
        return read_fabric(host, done.stdout, done.stderr)

    def facts_once(self, host: str, true: Callable[[FabricFacts], bool]) -> FabricFacts:
        """Return what the tools show as soon as this is true of it: ibsim and opensm take their time on a busy machine."""
        deadline = time.monotonic() + PATIENCE
        while not true(facts := self.facts(host)):
            assert time.monotonic() < deadline, facts
            # opensm reads the subnet again: a notice may be lost
            self._managers[0].send_signal(signal.SIGHUP)
            time.sleep(2)
        return facts

    def stop(self) -> None:
        for one in self._managers:
            one.terminate()
        for one in self._managers:
            one.wait(timeout=30)
        self._process.kill()
        self._process.communicate()


@contextmanager
def simulated(folder: Path, topology: Topology, *managers: str) -> Iterator[Ibsim]:
    """Simulate a fabric, with an opensm at each of these hosts; the first of them becomes the master."""
    net = folder / "net"
    net.write_text(topology.text())
    with (folder / "ibsim.log").open("w") as log:
        process = subprocess.Popen(
            ["ibsim", "-s", str(net)],
            env={**os.environ, "IBSIM_SOCKNAME": folder.name, "PATH": SEARCH},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
        )
    running = Ibsim(folder, topology, process)
    try:
        deadline = time.monotonic() + PATIENCE
        while "Network simulator ready" not in (folder / "ibsim.log").read_text():
            assert process.poll() is None, (folder / "ibsim.log").read_text()[-500:]
            assert time.monotonic() < deadline, "ibsim is not ready"
            time.sleep(0.05)
        for host in managers:
            running.manager(host)
        yield running
    finally:
        running.stop()
