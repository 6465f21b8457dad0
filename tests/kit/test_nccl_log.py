"""NCCL_DEBUG=INFO: transports, places, labels."""

from __future__ import annotations

import pytest
from paths import TESTS

from pytest_gpucluster.kit import nccl_tests
from pytest_gpucluster.kit.nccl_log import HINTS, NcclConnection, NcclLog, read

DATA = TESTS / "data" / "nccl"


def test_one_node_recording() -> None:
    log = read((DATA / "nccl-debug-info.txt").read_text())
    assert log.version == "2.28.9+cuda13.0"
    assert (log.ranks, log.nodes, log.network, log.interfaces) == (8, 1, "Socket", ("eth0",))
    assert log.no_ib
    assert not log.nvls
    paths = log.paths()
    assert dict(paths.within) == {"P2P/direct": 192}
    assert not paths.between
    assert paths.pairs["within P2P/direct"] == tuple((rank, (rank + 1) % 8) for rank in range(8))


def test_four_virtual_nodes_recording() -> None:
    log = read((DATA / "torch-net-socket-debug.txt").read_text())
    assert log.labels == {rank: str(rank) for rank in range(8)}
    assert (log.nodes, log.gdr) == (4, False)
    where = {rank: f"gpu0{int(task) // 2 + 1}" for rank, task in log.labels.items()}
    paths = log.paths(where)
    assert set(paths.between) == {"NET/Socket"}
    assert set(paths.within) == {"P2P/CUMEM"}
    assert log.summary(where).startswith(
        "between nodes: NET/Socket (eth0); within nodes: P2P/CUMEM (NCCL found or used"
    )


def test_one_label_alone() -> None:
    log = read((DATA / "torch-net-socket-debug.txt").read_text(), label="5")
    assert set(log.hosts) == {5}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("P2P/CUMEM/read", "P2P/CUMEM"),
        ("P2P/IPC", "P2P/IPC"),
        ("P2P/direct pointer", "P2P/direct"),
        ("P2P/indirect/3[3]", "P2P/indirect"),
        ("SHM/direct/direct", "SHM"),
        ("SHM", "SHM"),
        ("NET/Socket/0", "NET/Socket"),
        ("NET/IB/0", "NET/IB"),
        ("NET/IB/0/GDRDMA", "NET/IB/GDRDMA"),
        ("NET/IB/3(1)/GDRDMA/Shared", "NET/IB/GDRDMA"),
        ("NET/AWS Libfabric/0/GDRDMA", "NET/AWS"),
        ("NVLS", "NVLS"),
    ],
)
@pytest.mark.parametrize("channel", ["Channel 03/0", "Channel 03", "Ring 03"])
def test_kinds(path: str, kind: str, channel: str) -> None:
    log = read(f"[3] n1:1:2 [0] NCCL INFO {channel} : 0[1b000] -> 9[3] via {path}\n")
    if kind != "NET/AWS":  # a plugin's name may have blanks; its first word names it
        assert log.channels == {NcclConnection(3, 0, 9, kind)}


def test_warnings_and_plugins() -> None:
    log = read(
        "[2026-11-20 15:33:36] n1:1:2 [0] misc/socket.cc:50 NCCL WARN socketStartConnect: Connect to 10.0.0.1 failed\n"
        "n1:1:2 [0] NCCL INFO Connected NVLS tree\n"
        "n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
        "n1:1:2 [0] NCCL INFO Using network IB\n"
        "n1:1:2 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1\n"
        "n1:1:2 [0] NCCL INFO CollNet 00/1 : 3 [send] via COLLNET/IB/0/GDRDMA\n"
    )
    assert log.warnings == ("socketStartConnect: Connect to 10.0.0.1 failed",)
    assert log.nvls
    assert log.interfaces == ("mlx5_0", "mlx5_1")
    assert (log.network, log.gdr) == ("IB", True)
    assert dict(log.collnet) == {"COLLNET/IB/GDRDMA": 1}


def test_a_cut_line_does_not_count() -> None:
    assert not read("n1:1:2 [0] NCCL INFO Channel 03/0 : 0[0] -> 9[3] [send] via NET/IB/0").channels


def test_nothing_logged() -> None:
    assert read("").summary() == "no connection was logged"


def test_settings_from_outside_are_read() -> None:
    """As NCCL 2.28.9 logged them on 4 H200: some lines end with a stop, some do not."""
    text = "".join(
        f"vm:1:1 [0] NCCL INFO {said}\n"
        for said in (
            "NCCL_PROTO set by environment to LL",
            "NCCL_MAX_NCHANNELS set by environment to 2.",
            "NCCL_DEBUG set by environment to INFO",
        )
    )
    log = read(text)
    assert log.settings["NCCL_PROTO"] == "LL"
    assert log.set_by == "set in the environment or nccl.conf: NCCL_MAX_NCHANNELS=2, NCCL_PROTO=LL"
    assert log.summary().endswith(log.set_by)
    assert read("").set_by == ""


# --- each line, and lines that almost are one

CHANNEL = "vm:1:2 [0] NCCL INFO Channel 03/0 : 0[1b] -> 9[3] [send] via NET/IB/0\n"


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("3: vm", "3"), ("3:vm", "3"), (" 03: vm", "3"), ("[4] vm", "4"), ("[4]vm", "4"), ("[1,12]<stdout>: vm", "12"),
        ("[1,12]<stderr>:vm", "12"), ("[prterun-n1-77@1,0]<stdout>: vm", "0"), ("[,3]<stdout>: vm", "3"),
    ],
)  # fmt: skip
def test_the_label_of_a_task_is_cut_off(line: str, label: str) -> None:
    assert nccl_tests.labelled(line) == (label, "vm")


@pytest.mark.parametrize(
    "line",
    ["vm", "", "x3: vm", "3 vm", "[x] vm", "[4 vm", "[1,x]<stdout>: vm", "[a,b,3]<stdout>: vm", "[1,3]<x>: vm", "x: vm",
     "[]: vm", "[1,3]: vm"],
)  # fmt: skip
def test_a_line_without_a_label_stays(line: str) -> None:
    assert nccl_tests.labelled(line) == ("", line)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("", "", True), ("[0]", "[-1]", True), ("vm:", "2026 vm:", True), ("NCCL", "misc/a.cc:50 NCCL", True),
        ("Channel", "Ring", True), ("Channel", "Tree", True), ("Channel", "Lane", False), ("03/0", "03", True),
        ("[send] ", "", True), ("[send]", "[receive]", True), ("[send]", "[sent]", False),
        (":1:", ":x:", False), (":1:", "::", False), (":2 ", ":x ", False), (":2 ", ": ", False), ("[0]", "[x]", False),
        ("[0]", "[]", False), ("NCCL", ":50 NCCL", False), ("NCCL", "a: NCCL", False), ("NCCL", "a:x NCCL", False),
        ("03/0", "x3/0", False), ("03/0", "03/x", False), ("03/0", "03/", False), ("[1b]", "[]", False), ("[1b]", "[x]", False),
        (" 0[", " x[", False), ("9[", "x[", False), ("[3]", "[]", False), ("[3]", "[x]", False), ("NET/IB/0", "-", False),
    ],
)  # fmt: skip
def test_what_is_a_line_of_a_channel(old: str, new: str, *, found: bool) -> None:
    log = read(CHANNEL.replace(old, new, 1))
    assert log.channels == ({NcclConnection(3, 0, 9, "NET/IB")} if found else set())


RANK = "n1.cluster-a:1:2 [0] NCCL INFO ncclCommInitRank comm 0x1a rank 3 nranks 8 cudaDev 0\n"


def test_the_ranks_of_a_communicator() -> None:
    log = read(RANK)
    assert (log.hosts, log.ranks, log.nodes) == ({3: "n1.cluster-a"}, 8, 0)
    assert read(RANK.replace("nranks 8", "nRanks 8 nNodes 2")).nodes == 2
    both = read(
        RANK.replace("8", "4 nNodes 1") + RANK.replace("8", "8 nNodes 2") + RANK.replace("8", "2 nNodes 1")
    )
    assert (both.ranks, both.nodes) == (8, 2)
    for old, new in (("rank 3", "rank x"), ("nranks 8", "nranks x"), ("0x1a", "0x"), ("nranks 8", "nranks ")):
        assert read(RANK.replace(old, new)).hosts == {}
    assert read(RANK.replace("nranks 8", "nranks 8 nNodes x")).ranks == 8


def info(*lines: str) -> NcclLog:
    return read("".join(f"vm:1:2 [0] NCCL INFO {line}\n" for line in lines))


def test_what_the_network_is() -> None:
    assert info("Using network IB", "Using network Socket", "Using network IB").network == "IB, Socket"
    assert info("Using network ").network == info("Assigned NET plugin  to comm").network == ""
    assert info("Assigned NET plugin IB").network == ""
    assert info("Assigned NET plugin  to comm", "Using network IB").network == "IB"
    names = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1.5:1/RoCE [x]no:1 []none:1 [2]:1 [12]mlx5-9:1 [3]x"
    assert info(names).interfaces == ("mlx5_0", "mlx5_1.5", "mlx5-9")
    assert info("NET/ : Using [0]eth0:1").interfaces == info("x NET/IB : Using [0]eth0:1").interfaces == ()
    assert info("NCCL version 2", "NCCL version ").version == "2"
    assert read("vm:1:2 [0] NCCL WARN \n").warnings == ()
    assert not info("NET/Socket : No device found.").no_ib


@pytest.mark.parametrize(
    ("line", "gdr"),
    [
        ("Connected all rings, use ring PXN 0 GDR 1", True), ("use ring PXN 10 GDR 0", False), ("use ring PXN x GDR 1", None),
        ("use ring PXN  GDR 1", None), ("use ring PXN 0 GDR x", None),
    ],
)  # fmt: skip
def test_gpudirect_rdma_as_nccl_logs_it(line: str, gdr: bool | None) -> None:  # a table
    assert info(line).gdr is gdr


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("CollNet 00/1 : 3 [send] via COLLNET/SHARP/0/GDRDMA", {"COLLNET/SHARP/GDRDMA": 1}),
        ("CollNet 00/1 : 3 [receive] via COLLNET/SHARP/12", {"COLLNET/SHARP": 1}),
        ("CollNet x/1 : 3 [send] via COLLNET/SHARP/0", {}), ("CollNet /1 : 3 [send] via COLLNET/SHARP/0", {}),
        ("CollNet 00/ : 3 [send] via COLLNET/SHARP/0", {}), ("CollNet 00/x : 3 [send] via COLLNET/SHARP/0", {}),
        ("CollNet 00/1 :  [send] via COLLNET/SHARP/0", {}), ("CollNet 00/1 : x [send] via COLLNET/SHARP/0", {}),
        ("CollNet 00/1 : 3 [send] via COLLNET//0", {}), ("CollNet 00/1 : 3 [send] via COLLNET/SHARP/", {}),
    ],
)  # fmt: skip
def test_collnet(line: str, found: dict[str, int]) -> None:
    assert info(line, line).collnet == {name: 2 * count for name, count in found.items()}


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_NET_GDR_LEVEL", "NCCL_COLLNET_ENABLE", "NCCL_CROSS_NIC", "NCCL_PXN_DISABLE",
        "NCCL_OOB_NET_ENABLE", "NCCL_TOPO_FILE", "NCCL_COMM_ID", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_IGNORE_CPU_AFFINITY",
        "NCCL_CONF_FILE", "NCCL_RAS_ENABLE",
    ],
)  # fmt: skip
def test_a_setting_of_the_network_slows_no_node(name: str) -> None:
    log = info(f"{name} set by environment to 1", "NCCL_DEBUG_SUBSYS set by environment to ALL")
    assert (set(log.foreign), set(log.slowing)) == ({f"{name}=1"}, set())
    assert info("NCCL_HOSTID set by environment to 1").foreign == frozenset()


def test_the_hint_is_that_of_the_first_transport_between_nodes() -> None:
    assert list(HINTS) == ["NET/Socket", "NET/IB", "SHM"]
    device = "NET/Socket : Using [0]eth0:1"
    lines = [f"Channel 0 : 0[0] -> 1[0] via {kind}" for kind in ("NET/Socket/0", "NET/IB/0", "SHM")]
    where = {0: "a", 1: "b"}
    assert info(device, lines[2]).summary(where) == f"between nodes: SHM ({HINTS['SHM']})"
    assert info(device, *lines[1:]).summary(where) == f"between nodes: NET/IB, SHM (eth0) ({HINTS['NET/IB']})"
    assert info(*lines[:2]).summary(where) == f"between nodes: NET/IB, NET/Socket ({HINTS['NET/IB']})"
    assert info(device, lines[0].replace("Socket", "IB/GDRDMA")).summary(where) == (
        "between nodes: NET/IB/GDRDMA (eth0)"
    )
