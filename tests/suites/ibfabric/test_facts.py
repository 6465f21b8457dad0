"""What subnet.sh and ports.sh print, and what is said where a tool is absent or may not run."""

from __future__ import annotations

import pytest
from ibfabric_helpers import ERRORS, LEAF, SPINE, WHOLE, shown

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.ibfabric import checks
from pytest_gpucluster.suites.ibfabric.facts import (
    NODE_PORTS,
    BitErrors,
    FabricFacts,
    NodePort,
    PortRecord,
    read_errors,
    read_fabric,
)


def test_everything_that_the_tools_show() -> None:
    found = read_fabric("gpu01", shown(**WHOLE), "")
    assert found.missing == {}
    assert [(it.lid, it.state) for it in found.managers] == [(647, "SMINFO_MASTER"), (73, "SMINFO_STANDBY")]
    assert found.records == {
        (LEAF, 35): PortRecord(2048, 4096, 647, filters=True),
        (SPINE, 32): PortRecord(4096, 4096, 647),
    }
    assert found.pkeys == {(LEAF, 35): (0x2, 0x8001, 0xFFFF), ("e09d7303007a4bd8", 1): (0xFFFF,)}
    assert (found.engine, found.configured) == ("ar_updn", "ar_updn")
    assert found.firmware == {LEAF: ("MT_0000000556", "31.2012.3810")}
    assert found.bit_errors[LEAF, 35] == BitErrors("STD-LL-RS", 3e-11, 2e-11, 812)
    assert (found.seconds, found.rises((LEAF, 35))) == (5.0, {"symbol_error": 73})
    assert found.rises((SPINE, 32)) == {}


def test_what_ibdiagnet_shows_that_is_no_value_is_kept_and_not_available_is_none() -> None:
    def facts(*changed: tuple[str, str]) -> FabricFacts:
        text, status = WHOLE["ibdiagnet"]
        for value, other in changed:
            text = text.replace(value, other, 1)
        return read_fabric("gpu01", shown(**{**WHOLE, "ibdiagnet": (text, status)}), "")

    odd = facts(("0x000007dc", "???"), (": 3e-11 :", ": ERR :"), (": 812 :", ": -1 :"))
    assert odd.unread == {
        (LEAF, 0): "firmware '0x0000001f.???.0x00000ee2'",
        (LEAF, 35): "Effective BER 'ERR', Symbol Err '-1'",
    }
    assert (odd.firmware, (LEAF, 35) in odd.bit_errors) == ({}, False)
    none = facts((": 3e-11 :", ": N/A :"))
    assert (none.unread, (LEAF, 35) in none.bit_errors) == ({}, False)


ALONE = 'Ca\t1 "H-b8e92403009ca838"\t\t# "dgx-gb200-n01-c1 HCA-1"\n'  # NVIDIA/topograph, example-bad.out
FAILED = "ibnetdiscover: iberror: failed: discover failed\n"
NO_PORT = "ibwarn: [4] mad_rpc_open_port: client_register for mgmt 1 failed\nibnetdisc.c:802; can't open MAD port ((null):0)\n"


@pytest.mark.parametrize(
    ("shown_there", "stderr", "words"),
    [
        (("", 127), "sh: 1: ibnetdiscover: not found\n", "install infiniband-diags there, or name a host"),
        (("", 1), "ibwarn: [7] mad_rpc_open_port: can't open UMAD port ((null):0)\n", "needs root: `sudo"),
        (("", 1), "ibpanic: [7] main: Failed to open '(null)' port '0': (Permission denied)\n", "needs root"),
        (("", 1), "src/query_smp.c:240; umad (DR path ...) bad status 110\n", "bad status 110"),
        ((FAILED, 255), NO_PORT, "discover failed: ibnetdisc.c:802.*no InfiniBand port is up there"),
        ((ALONE, 0), "", "its port has no link: name a host in the subnet"),
    ],
)
def test_tool_that_may_not_run_is_advised(shown_there: tuple[str, int], stderr: str, words: str) -> None:
    parts = {**WHOLE, "subnet": shown_there}
    with pytest.raises(NotAvailable, match=words):
        read_fabric("gpu01", shown(**parts), f"= before\n= subnet\n{stderr}= links\n")


def test_a_part_that_is_missing_leaves_the_others() -> None:
    failed = ("sminfo: iberror: failed: query\n", 255)
    parts = {**WHOLE, "before": ("time 100\n", 0), "managers": failed}  # without a subnet manager
    found = read_fabric("gpu01", shown(**parts), "= managers\nibwarn: [5] mad_rpc failed\n= ports\n")
    why = "sminfo on gpu01: sminfo: iberror: failed: query: ibwarn: [5] mad_rpc failed"
    assert found.missing["managers"] == why
    assert len(found.subnet.links) == 3
    with pytest.raises(NotAvailable, match="ibqueryerrors on gpu01"):
        _ = found.seconds


def test_the_subnets_of_a_host_are_one_whose_lids_do_not_collide() -> None:
    other = {
        part: (body.replace("2c5eab03", "2c5eab04").replace("e09d7303", "e09d7304"), status)
        for part, (body, status) in WHOLE.items()
    }
    other["ports"] = ("73 35 Active 4096 4096 9 0\n", 0)
    other["after"] = (ERRORS.format(time=109, errors=90, leaf=LEAF), 1)
    found = read_fabric("gpu01", f"{shown(**WHOLE)}= port mlx5_1 1\n{shown(**other)}", "")
    assert (len(found.parts), len(found.subnet.links), found.missing) == (2, 6, {})
    assert found.records[LEAF, 35].manager == 647
    assert found.records[LEAF.replace("2c5eab03", "2c5eab04"), 35].manager == 9
    assert found.seconds == 9.0  # the longer time, in which a healthy link may show more
    assert checks.unique(found, {}).findings == checks.subnet_manager(found).findings == ()


def test_a_further_subnet_that_does_not_answer_leaves_the_first() -> None:
    silent = f"= port mlx5_1 1\n{shown(subnet=('', 1))}"
    why = "= port mlx5_1 1\n= subnet\nbad status 110\n"
    assert read_fabric("gpu01", shown(**WHOLE) + silent, f"= subnet\n{why}").parts == ()
    with pytest.raises(NotAvailable, match="bad status 110"):
        read_fabric("gpu01", silent, why)


def test_an_answer_that_was_cut_and_counters_that_were_cleared() -> None:
    whole = shown(**WHOLE)
    missing = read_fabric("gpu01", whole[: whole.index("= after")], "").missing
    assert missing.keys() == {"after"}
    assert missing["after"].startswith("ibqueryerrors did not run on gpu01")
    cleared = {**WHOLE, "after": (ERRORS.format(time=105, errors=3, leaf=LEAF), 1)}
    assert read_fabric("gpu01", shown(**cleared), "").rises((LEAF, 35)) == {}


def test_errors_without_their_summary_are_not_understood() -> None:
    with pytest.raises(ProbeError, match="before its summary"):
        read_errors("Errors for 0x1\n")


NODE = """\
tools
/sys/class/infiniband/mlx5_0/ports/1/link_layer:InfiniBand
/sys/class/infiniband/mlx5_0/ports/1/state:4: ACTIVE
/sys/class/infiniband/mlx5_0/ports/1/gids/0:fe80:0000:0000:0000:a088:c203:00d5:7349
/sys/class/infiniband/mlx5_8/ports/1/link_layer:Ethernet
/sys/class/infiniband/mlx5_8/ports/1/state:4: ACTIVE
/sys/class/infiniband/mlx5_8/ports/1/gids/0:fe80:0000:0000:0000:a288:c2ff:fed5:7349
/sys/class/infiniband/mlx5_9/ports/1/link_layer:InfiniBand
path mlx5_0 /sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0
path mlx5_8
end
"""


def test_infiniband_ports_of_a_node_with_guid_and_place() -> None:
    found = NODE_PORTS.parse(Answer("gpu01", 0, NODE.encode()))
    assert found.tools
    port = NodePort("mlx5_0", 1, "a088c20300d57349", "ACTIVE", "0000:18:00.0")
    silent = NodePort("mlx5_9", 1, "", "", "")
    assert found.ports == (port, silent)
    assert (port.place, silent.place) == ("0000:18:00.0 port 1", "mlx5_9 port 1")


def test_a_node_without_adapters_has_no_ports_and_a_cut_answer_is_an_error() -> None:
    assert NODE_PORTS.parse(Answer("gpu01", 0, b"end\n")).ports == ()
    with pytest.raises(ProbeError, match="ended early"):
        NODE_PORTS.parse(Answer("gpu01", 0, b"tools\n"))
