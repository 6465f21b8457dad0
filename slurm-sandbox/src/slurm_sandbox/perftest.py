"""The output of perftest 24.01 (ib_write_bw, ib_send_bw, ib_read_lat) on the link model. Uses only the standard library.

The sandbox copies this file into its state folder and runs it as the tools. Server and client meet over TCP as the real
ones do; formats are those of print_report_bw, print_report_lat and write_test_info_to_file in perftest_parameters.c.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

NOISE = 0.004
REACHED = 0.985  # of the port's rate: 394 Gb/s of 400
READ_US = 2.35  # typical latency of a read between two nodes
LINE = "-" * 87
_VALUED = {
    "-d": "device", "-i": "port", "-p": "tcp", "-s": "size", "-n": "iters", "-q": "qps", "-x": "gid", "-D": "seconds",
    "--use_cuda": "cuda", "--out_json_file": "file",
}  # fmt: skip
_FLAGS = {"-F": "quiet", "--report_gbits": "gbits", "--out_json": "json"}
_TESTS = {"ib_write_bw": "RDMA_Write_BW", "ib_send_bw": "Send_BW", "ib_read_lat": "RDMA_Read_Latency"}
_HELP = """Usage:
  {name}            start a server and wait for connection
  {name} <host>     connect to server at <host>

Options:
  -d, --ib-dev=<dev>  Use IB device <dev> (default first device found)
  -D, --duration  Run test for a customized period of seconds.
  -F, --CPU-freq  Do not show a warning even if cpufreq_ondemand module is loaded, and cpu-freq is not on max.
  -h, --help  Show this help screen.
  -i, --ib-port=<port>  Use port <port> of IB device (default 1)
  -n, --iters=<iters>  Number of exchanges (at least 5, default 5000)
  -p, --port=<port>  Listen on/connect to port <port> (default 18515)
  -q, --qp=<num of qp's>  Num of qp's(default 1)
  -s, --size=<size>  Size of message to exchange (default 65536)
  -V, --version  Display version number
  -x, --gid-index=<index>  Test uses GID with GID index

      --out_json  Save the report in a json file
      --out_json_file=<file>  Name of the report json file. (Default: perftest_out.json in the working directory) 
      --report_gbits  Report Max/Average BW of test in Gbit/sec (instead of MB/sec)
      --use_cuda=<cuda device id> Use CUDA specific device for GPUDirect RDMA testing
"""  # noqa: W291


class ToolError(Exception):
    """What perftest prints on stderr before it ends with 1."""


@dataclass
class Chosen:
    """The options of a command line; `host` '' is a server."""

    host: str = ""
    device: str = ""
    port: str = "1"
    tcp: str = "18515"
    size: str = ""
    iters: str = ""
    qps: str = "1"
    gid: str = ""
    seconds: str = ""
    cuda: str = ""
    file: str = "perftest_out.json"
    flags: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Rail:
    """One adapter of a node; see hardware.SimulatedHca. `gids`: entries of its GID table."""

    rate: float
    state: str
    link_layer: str
    mtu: int
    lid: int
    speed: float
    latency: float
    gids: int


def print_line(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(name: str, node: str, argv: list[str], folder: Path, base: Path) -> int:
    """Run a tool on a node; return its exit status."""
    try:
        chosen = options(name, argv)
        if chosen is None:
            return 1
        run(name, node, chosen, folder, base)
    except ToolError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def options(name: str, argv: list[str]) -> Chosen | None:
    """Return the options; None after --help or --version, which end with 1 as the real tools do."""
    chosen, words = Chosen(), iter(argv)
    for word in words:
        key, joined, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if key in ("--help", "-h"):
            print_line(_HELP.format(name=name))
            return None
        if key in ("--version", "-V"):
            print_line("Version: 6.20")
            return None
        if key in _VALUED:
            setattr(chosen, _VALUED[key], value if joined else next(words, ""))
        elif key in _FLAGS:
            chosen.flags.add(_FLAGS[key])
        elif word.startswith("-"):
            raise ToolError(
                f"{name}: unrecognized option '{word}'\n Invalid Command or flag.\n Please check command line and run again.\n\n"
                " Parser function exited with Error"
            )
        else:
            chosen.host = word
    latency = name.endswith("_lat")
    chosen.size = chosen.size or ("2" if latency else "65536")
    chosen.iters = chosen.iters or ("1000" if latency else "5000")
    return chosen


def run(name: str, node: str, chosen: Chosen, folder: Path, base: Path) -> None:
    """Open the device, meet the other side, and print what perftest prints."""
    rail = _rail(folder, base, node, chosen)
    if not chosen.host:
        print_line(f"\n{'*' * 36}\n* Waiting for client to connect... *\n{'*' * 36}")
    with _connection(chosen) as link:
        if chosen.gid and int(chosen.gid) >= rail.gids:  # ibv_query_gid fails, so that the other side reads nothing
            raise ToolError(" Unable to set up socket connection")
        with link.makefile() as stream:
            line = _exchanged(link, stream, json.dumps([node, chosen.device]))
            peer, chosen_there = json.loads(line)[0], Chosen(device=json.loads(line)[1])
            _heading(name, chosen, rail)
            if chosen.seconds and chosen.host:
                time.sleep(float(chosen.seconds))
            if chosen.host or name.endswith("_bw"):
                _report(name, chosen, (node, rail), (peer, _rail(folder, base, peer, chosen_there)), folder, base)
            print_line(LINE)
            _exchanged(link, stream, "done")  # both close together


def _exchanged(link: socket.socket, stream: TextIO, text: str) -> str:
    """Send a line and return that of the other side; its end is an error."""
    line = ""
    with contextlib.suppress(OSError):
        link.sendall(f"{text}\n".encode())
        line = stream.readline()
    if not line:
        raise ToolError(
            "ethernet_read_keys: Couldn't read remote address\n Failed to exchange data between server and clients"
        )
    return line


def _rail(folder: Path, base: Path, node: str, chosen: Chosen) -> Rail:
    rails: dict[str, Any] = json.loads(_read(folder, base, node, "perftest.json"))
    if not rails:
        raise ToolError(
            " Did not detect devices \n If device exists, check if driver is up\n Unable to find the Infiniband/RoCE device"
        )
    device = chosen.device or next(iter(rails))
    if device not in rails:
        raise ToolError(f"IB device {device} not found\n Unable to find the Infiniband/RoCE device")
    rail = Rail(**rails[device])
    chosen.device = device
    if rail.state != "ACTIVE":
        state = rail.state.capitalize()
        raise ToolError(
            f" Port number {chosen.port} state is {state}\n Couldn't set the link layer\n Couldn't get context for the device"
        )
    return rail


def _connection(chosen: Chosen) -> socket.socket:
    where = (chosen.host, int(chosen.tcp))
    if chosen.host:
        try:
            return socket.create_connection(where, 60)
        except OSError:
            raise ToolError(
                f"Couldn't connect to {where[0]}:{where[1]}\nUnable to open file descriptor for socket connection"
                " Unable to init the socket connection"
            ) from None
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(where)
        except OSError:
            raise ToolError(f"Couldn't listen to port {where[1]}\n Unable to init the socket connection") from None
        listening.listen()
        return listening.accept()[0]


def _heading(name: str, chosen: Chosen, rail: Rail) -> None:
    test = _TESTS[name].replace("_BW", " BW").replace("_Latency", " Latency")
    bandwidth = name.endswith("_bw")
    print_line(f"{LINE}\n                    {test} Test")
    print_line(f" Dual-port       : OFF\t\tDevice         : {chosen.device}")
    print_line(f" Number of qps   : {chosen.qps}\t\tTransport type : IB")
    print_line(" Connection type : RC\t\tUsing SRQ      : OFF\n PCIe relax order: ON\n ibv_wr* API     : ON")
    print_line(" TX depth        : 128" if bandwidth else " TX depth        : 1")
    if bandwidth:
        print_line(" CQ Moderation   : 1")
    print_line(f" Mtu             : {rail.mtu}[B]\n Link type       : {_link_type(rail)}")
    if chosen.gid:
        print_line(f" GID index       : {chosen.gid}")
    print_line(" Max inline data : 0[B]" if bandwidth else " Outstand reads  : 16")
    print_line(f" rdma_cm QPs\t : OFF\n Data ex. method : Ethernet\n{LINE}")
    print_line(f" local address: LID {rail.lid:#04x} QPN 0x0032 PSN 0x5f2841")
    print_line(f" remote address: LID {rail.lid + 1:#04x} QPN 0x003a PSN 0xc0fd7e\n{LINE}")
    unit = "Gb" if "gbits" in chosen.flags else "MB"
    if bandwidth:
        print_line(f" #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]")
    else:
        print_line(
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
            "99% percentile[usec]   99.9% percentile[usec] "
        )


def _link_type(rail: Rail) -> str:
    return "Ethernet" if rail.link_layer == "Ethernet" else "IB"


def _report(
    name: str, chosen: Chosen, here: tuple[str, Rail], there: tuple[str, Rail], folder: Path, base: Path
) -> None:
    noise = random.Random("/".join([here[0], there[0], chosen.device, name])).lognormvariate(0.0, NOISE)
    size, iters = int(chosen.size), int(chosen.iters) * int(chosen.qps)
    if name.endswith("_bw"):
        factor = _links(folder, base, here[0], there[0]) * here[1].speed * there[1].speed * noise
        gbits = REACHED * min(here[1].rate, there[1].rate) * factor
        shown = gbits if "gbits" in chosen.flags else gbits * 1e9 / 8 / 2**20
        rate = gbits / 8 / size * 1e3
        print_line(f" {size:<7}    {iters:<10}       {shown * 1.002:<7.2f}            {shown:<7.2f}\t\t   {rate:<7.6f}")
        results = {"MsgSize": size, "n_iterations": iters, "BW_peak": round(shown * 1.002, 2)}
        results |= {"BW_average": round(shown, 2), "MsgRate": round(rate, 6)}
    else:
        usec = READ_US * here[1].latency * there[1].latency * noise
        values = [usec * share for share in (0.94, 3.1, 1.0, 1.01, 0.05, 1.2, 1.9)]
        text = "          {:<7.2f}        {:<7.2f}      {:<7.2f}  \t       {:<7.2f}     \t{:<7.2f}\t\t{:<7.2f} \t\t{:<7.2f}"
        print_line(f" {size:<7} {iters}" + text.format(*values))
        names = ("t_min", "t_max", "t_typical", "t_avg", "t_stdev", "percentile_99", "percentile_99.9")
        results = {"MsgSize": size, "n_iterations": iters}
        results |= {key: round(value, 2) for key, value in zip(names, values, strict=True)}
    if "json" in chosen.flags:
        about: dict[str, Any] = {"test": f"{_TESTS[name]}_Test", "Dual_port": "OFF", "Device": chosen.device}
        about |= {"Number_of_qps": int(chosen.qps), "Transport_type": "IB", "Mtu": here[1].mtu}
        about |= {"Link_type": _link_type(here[1]), "Data_ex_method": "Ethernet"}
        with Path(chosen.file).open("w") as file:
            json.dump({"test_info": about, "results": results}, file, indent=0)
            file.write("\n")


def _links(folder: Path, base: Path, one: str, other: str) -> float:
    """Return the factor of the slowest part between two nodes: the cable of this pair, or the uplink of a leaf."""
    factors = [1.0]
    for node, peer in ((one, other), (other, one)):
        health: dict[str, Any] = json.loads(_read(folder, base, node, "network.json"))
        factors.append(health["links"].get(peer, 1.0))
        if health["leaf"] and peer not in health["leaf"]:
            factors.append(health["uplink"])
    return min(factors)


def _read(folder: Path, base: Path, node: str, name: str) -> str:
    own = folder / node / name
    return (own if own.exists() else base / name).read_text()


if __name__ == "__main__":
    nodes_at, base_at, called, node_of_task, *given = sys.argv[1:]
    sys.exit(main(called, node_of_task, given, Path(nodes_at), Path(base_at)))
