"""NCCL_DEBUG=INFO: transports, places, labels."""

from __future__ import annotations

import re

import pytest
from paths import DATA

from pytest_gpucluster.kit.mpi import mpi_errors
from pytest_gpucluster.kit.nccl import nccl_failures, nccl_tests
from pytest_gpucluster.kit.nccl.nccl_log import HINTS, NcclConnection, NcclLog, read


def test_one_node_recording() -> None:
    log = read((DATA / "nccl" / "nccl-debug-info.txt").read_text())
    assert (log.ranks, log.nodes, log.network, log.interfaces) == (8, 1, "Socket", ("eth0",))
    assert not log.nvls
    paths = log.paths()
    assert dict(paths.within) == {"P2P/direct": 192}
    assert not paths.between
    assert paths.pairs["within P2P/direct"] == tuple((rank, (rank + 1) % 8) for rank in range(8))


def test_whole_lines_count_with_and_without_labels() -> None:
    assert 5 in read((DATA / "nccl" / "torch-net-socket-debug.txt").read_text()).hosts
    for label in LABELS:
        assert read(f"{label}vm:1:2 [0] NCCL INFO comm 0x1 rank 3 nranks 8\n").hosts == {3: "vm"}
    assert not read(CHANNEL.removesuffix("\n")).channels


CHANNEL = "vm:1:2 [0] NCCL INFO Channel 03/0 : 0[1b] -> 9[3] [send] via NET/IB/0\n"


LABELS = {"3: ": "3", " 03:": "3", "[4] ": "4", "[1,12]<stdout>: ": "12", "[prterun-n1-77@1,0]<stderr>:": "0"}


def test_the_label_of_a_task_is_cut_off() -> None:
    for start, label in LABELS.items():
        assert nccl_tests.labelled(f"{start}vm") == (label, "vm")
    for start in ("", "x3: ", "3 ", "[x] ", "[4 ", "[1,x]<stdout>: ", "[a,b,3]<stdout>: ", "[1,3]<x>: "):
        assert nccl_tests.labelled(f"{start}vm") == ("", f"{start}vm")


def info(*lines: str) -> NcclLog:
    return printed(*(f"INFO {line}" for line in lines))


def printed(*lines: str) -> NcclLog:
    return read("".join(f"vm:1:2 [0] NCCL {line}\n" for line in lines))


def test_collnet() -> None:
    assert info("CollNet 00/1 : 3 [send] via COLLNET/SHARP/0/GDRDMA").collnet
    assert info("CollNet 00/1 : 3 [receive] via COLLNET/SHARP/12").collnet
    assert not info("CollNet 00/1 : 3 [receive] via NET/IB/12").collnet


OF_NETWORK = "IB_HCA SOCKET_IFNAME NET_GDR_LEVEL COLLNET_ENABLE CROSS_NIC PXN_DISABLE OOB_NET_ENABLE TOPO_FILE COMM_ID"
WITHOUT_EFFECT = "ASYNC_ERROR_HANDLING IGNORE_CPU_AFFINITY CONF_FILE RAS_ENABLE"


@pytest.mark.parametrize("name", f"{OF_NETWORK} {WITHOUT_EFFECT}".split())
def test_a_setting_of_the_network_slows_no_node(name: str) -> None:
    log = info(f"NCCL_{name} set by environment to 1", "NCCL_DEBUG_SUBSYS set by environment to ALL")
    assert (set(log.foreign), set(log.slowing)) == ({f"NCCL_{name}=1"}, set())
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


def test_each_line_of_a_log() -> None:
    assert printed() == NcclLog()
    assert printed("WARN Using network IB") == NcclLog()
    assert printed("INFO Using network IB", "INFO Assigned NET plugin Socket to comm").network == "IB, Socket"
    assert printed("INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB").interfaces == ("mlx5_0", "mlx5_1")
    for line in ("Connected NVLS tree", "Channel via NVLS", "NVLS comm 0x1"):
        assert printed(f"INFO {line}").nvls
    ranks = printed("INFO comm 0x1a rank 3 nranks 8 nNodes 2", "INFO comm 0x1a rank 1 nRanks 4")
    assert (ranks.hosts, ranks.ranks, ranks.nodes) == ({3: "vm", 1: "vm"}, 8, 2)


@pytest.mark.parametrize(
    ("via", "kind"),
    [
        ("P2P/CUMEM/read", "P2P/CUMEM"),
        ("P2P/direct pointer", "P2P/direct"),
        ("P2P/indirect/3[3]", "P2P/indirect"),
        ("SHM", "SHM"),
        ("SHM/direct/direct", "SHM"),
        ("NET/Socket/0", "NET/Socket"),
        ("NET/IB/0(1)/GDRDMA/Shared", "NET/IB/GDRDMA"),
        ("NET/IB/0", "NET/IB"),
        ("NVLS/x", "NVLS"),
    ],
)
def test_channels(via: str, kind: str) -> None:
    log = printed(f"INFO Channel 01/0 : 0[3] -> 1[a] [send] via {via}", f"INFO Ring 2 : 1[3] -> 0[a] via {via}")
    assert log.channels == {NcclConnection(1, 0, 1, kind), NcclConnection(2, 1, 0, kind)}
    for where, place in (({0: "a", 1: "b"}, "between"), ({0: "a", 1: "a"}, "within"), ({0: "a"}, "unplaced")):
        paths = log.paths(where)
        none: dict[str, dict[str, int]] = {key: {} for key in ("between", "within", "unplaced")}
        assert {it: dict(getattr(paths, it)) for it in none} == {**none, place: {kind: 2}}
        assert paths.pairs == {f"{place} {kind}": ((0, 1), (1, 0))}


def test_settings() -> None:
    values = {"NCCL_PROTO": ["LL.", "LL128"], "NCCL_DEBUG": ["INFO."], "NCCL_IB_HCA": ["mlx5."]}
    log = info(*(f"{name} set by environment to {value}" for name, them in values.items() for value in them))
    assert log.settings == {"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5", "NCCL_PROTO": "LL or LL128"}
    assert log.foreign == {"NCCL_IB_HCA=mlx5", "NCCL_PROTO=LL or LL128"}
    assert log.slowing == {"NCCL_PROTO=LL or LL128"}
    assert log.set_by == "set in the environment or nccl.conf: NCCL_IB_HCA=mlx5, NCCL_PROTO=LL or LL128"
    assert NcclLog().set_by == ""


def test_the_lines_of_a_process_that_nccl_tests_cut() -> None:
    """2 threads of 2 GPUs: four ranks a process, of which the third and fourth line were cut."""
    text = (
        "# Collective test starting: broadcast_perf\n# nThread 2 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) "
        "iters: 1 validation: 1\n# Rank 0 Pid 1 on vm device 0 [0x06] H200\n# Rank 1 Pid 1 on vm device 1 [0x07] H200\n"
        "# Rank 2 Pid 1 on ...\n# size count type redop root time algbw busbw #wrong\n"
    )
    (run,) = nccl_tests.read(text).runs
    assert run.world == 4
    assert run.reasons[:2] == (
        "line 5: Rank line not understood: '# Rank 2 Pid 1 on ...'",
        "Rank lines of 2 of 4 ranks are missing",
    )


def test_deadlines_that_passed_for_want_of_a_silent_rank_are_not_named() -> None:
    late = "rank 1 (gpu02 GPU 0): failed: timeout after 30 s"
    silent = mpi_errors.LaunchFailure("a rank failed", "gpu01", "rank 0: odd", "", silent=True)
    timeout = mpi_errors.LaunchFailure("timeout", "gpu02", late, "")
    assert nccl_failures.merge_ranks([silent, timeout]) == [silent]
    assert nccl_failures.merge_ranks([timeout]) == [timeout]


@pytest.mark.parametrize("place", [0, 6, 9, 11, 14, 18])
def test_a_row_whose_time_of_day_is_damaged_is_refused(place: int) -> None:
    text = (DATA / "nccl" / "derived-2.17.6-stamps.txt").read_text()
    stamp = re.search(r"2026-11-20 \d\d:\d\d:\d\d", text)
    assert stamp is not None
    damaged = f"{stamp[0][:place]}x{stamp[0][place + 1 :]}"
    texts = text, text.replace(stamp[0], damaged, 1), text.replace(stamp[0], stamp[0][:-3], 1)
    assert [nccl_tests.read(it, rc=0).runs[0].complete for it in texts] == [True, False, False]
