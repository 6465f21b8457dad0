"""NCCL_DEBUG=INFO: transports, places, labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpucluster.probes.nccl_log import Channel, read

DATA = Path(__file__).parent / "data" / "nccl"


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
        assert log.channels == {Channel(3, 0, 9, kind)}


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
