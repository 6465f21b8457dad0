"""Cabling plans in the forms that exist, from the pages that define them."""

from __future__ import annotations

import doctest
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from paths import DATA, ROOT

from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.suites.ibfabric import plan
from pytest_gpucluster.suites.ibfabric.config import IbFabricConfig
from pytest_gpucluster.suites.ibfabric.plan import parse_plan, read_plan

if TYPE_CHECKING:
    from pathlib import Path


EXAMPLES = ROOT / "src/pytest_gpucluster/examples/clusters"


def recorded(name: str) -> str:
    return (DATA / "ibfabric" / name).read_bytes().decode("utf-8-sig")


# NVIDIA UFM Cable Validation Tool 1.5, "P2P File": the example for Ethernet, and the one for InfiniBand with its columns named
ETHERNET = recorded("plan-cvt-1.5.csv")
# 1.7, sheet "Links": other names of the columns, in any case and order; here as a German Excel writes CSV
LINKS = recorded("plan-cvt-1.7.csv")
CONF = recorded("plan-topology.conf")
# topology.yaml(5) of Slurm 25.05
YAML = recorded("plan-topology.yaml")


@pytest.mark.parametrize(
    ("text", "cables"),
    [
        (ETHERNET, ["gpu01 rail5 - leaf05 swp1s0", "gpu01 rail6 - leaf06 swp1s1"]),
        (LINKS, ["gpu01 mlx5_0 - leaf01 1/1"]),
        (CONF, ["gpu00 - s0", "gpu01 - s0", "gpu02 - s1"]),
        (YAML, ["gpu01 - leaf01", "gpu02 - leaf01"]),
        ("A-Node\tA-Port\tZ-Node\tZ-Port\n0x200000\t33\t0x200001\t1\n", ["0x200000 33 - 0x200001 1"]),
        (
            "switchname=s0 \\\n  nodes=gpu[00-01],\\\ngpu03 # rack 1 \\\nSwitchName=s1 Nodes=gpu02\n",
            ["gpu00 - s0", "gpu01 - s0", "gpu03 - s0", "gpu02 - s1"],
        ),
    ],
    ids=["CVT 1.5", "CVT 1.7", "conf", "yaml", "tabs", "continued lines"],
)
def test_each_form_is_known_by_its_content(text: str, cables: list[str]) -> None:
    assert labels(text) == cables


NET = (DATA / "ibfabric/ibnetdiscover-ibsim.txt").read_text()


def labels(text: str) -> list[str]:
    return [cable.label for cable in parse_plan("plan", text).cables]


def test_record_of_ibnetdiscover_has_each_cable_once() -> None:
    rails = {f"gpu0{n} mlx5_{rail - 1}/P1 - leaf0{rail} {n}" for n in (1, 2) for rail in (1, 2)}
    assert sorted(labels(NET)) == sorted({*rails, "leaf01 33 - spine01 1", "leaf02 33 - spine01 2"})


def test_aggregation_node_of_a_switch_is_no_cable() -> None:
    text = """Switch	65 "S-0000000000200001"		# "MF0;leaf01:MQM9700/U1" enhanced port 0 lid 3 lmc 0
[1]	"H-0000000000100002"[1](100003) 		# "gpu01 mlx5_1" lid 8 4xNDR
[65]	"H-0000000000200002"[1](200003) 		# "Mellanox Technologies Aggregation Node" lid 9 4xNDR
"""
    assert labels(text) == ["gpu01 mlx5_1/P1 - leaf01 1"]


def test_rows_with_a_remark_in_place_of_a_device_are_no_cables() -> None:
    remarks = enumerate(("SPARE,,", "-,-,-", "not connected,,"), 9)
    rows = "".join(f"R2,11,leaf05,Switch,swp{n},,,{it}\n" for n, it in remarks)
    assert labels(ETHERNET + rows) == labels(ETHERNET)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_sheet_that_excel_has_saved_as_unicode_text_reads_the_same(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "p2p.txt").write_bytes(ETHERNET.replace(",", "\t").replace("\n", "\r\n").encode(encoding))
    assert len(read_plan([tmp_path / "p2p.txt"]).cables) == 2


def test_node_name_map_and_hca_mapping_have_names_and_no_cables(tmp_path: Path) -> None:
    # names need no quotes
    names = '# comment\n0x200A00 "leaf 3"  # rack 1\n0x0000000000200001\tleaf-2 # rack 2\n'
    (tmp_path / "names").write_text(names)
    (tmp_path / "cables.csv").write_text(ETHERNET)
    (tmp_path / "hcas.csv").write_text("port,hca-name\n2, mlx5_3\n")
    found = read_plan([tmp_path / "names", tmp_path / "cables.csv", tmp_path / "hcas.csv"])
    assert found.adapters == {"2": "mlx5_3"}
    assert found.names == {"0000000000200a00": "leaf 3", "0000000000200001": "leaf-2"}
    assert len(found.cables) == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "plan: no known form of a cabling plan"),
        ('0xf452140300f55051 "g7" 37 1[  ] ==( 4X Active)==>  0xf4521403 5 1[ ] "sw" ( )\n', "no known form"),
        (ETHERNET.replace("rail6", "rail5"), "plan:3: the port rail5 of gpu01 is already .* at plan:2"),
        ("A-Node Name,A-Port,Z-Node Name,Z-Port\n", "plan: the plan has no cables"),
        ('A-Node,A-Port,Z-Node,Z-Port\n"a,1,b,2\n' + "x" * 200_000, "plan:3: not CSV"),
        ('graph G {\n"a1":"p1" -- "b1":"p10"\n}\n', "no known form"),  # a .dot of PTM
        ("BlockName=b1 Nodes=gpu[01-18]\nBlockSizes=18\n", "plan: the plan has no cables"),
        (CONF.replace("gpu02", "gpu0[2"), "plan:3: not a hostlist"),
        (YAML.replace("children: leaf[01-02]", "\tchildren"), "plan:7: not YAML"),
        ("port,hca-name\n1 mlx5_0\n", "plan:2: must be PORT,HCA-NAME"),
    ],
)
def test_error_names_file_and_line(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse_plan("plan", text)


def test_file_that_cannot_be_a_plan_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MAX_BYTES", 10)
    (tmp_path / "p2p.xlsx").write_bytes(b"PK\x03\x04")
    (tmp_path / "big.csv").write_text(ETHERNET)
    for name, why in (
        ("p2p.xlsx", "is a workbook; save the sheet with the cables as CSV"),
        ("absent.csv", "no such file"),
        ("big.csv", "the file exceeds the limit of"),
    ):
        with pytest.raises(ConfigError, match=f"{name}: {why}"):
            read_plan([tmp_path / name])


def test_plan_of_the_example_has_every_rail_of_its_nodes() -> None:
    section = load_cluster(EXAMPLES / "dgx-a100-basepod.yaml").section(IbFabricConfig)
    assert section is not None
    found = read_plan(EXAMPLES / path for path in section.plan).cables
    rails = Counter(cable.a_node for cable in found if cable.z_node.startswith("ib"))
    assert [rails[node] for node in hostlist.expand("dgx[01-04]")] == [8] * 4


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(plan).failed == 0


@pytest.mark.parametrize("again", ["leaf01 P2", "gpu04 mlx5_0/P1"])
def test_cable_that_stands_twice_is_one(again: str) -> None:
    row = "gpu04,mlx5_0,leaf01,2" if again.startswith("gpu") else "leaf01,2,gpu04,mlx5_0"
    text = f"A-Node,A-Port,Z-Node,Z-Port\nleaf01,2,gpu04,mlx5_0\n{row}\n"
    assert len(parse_plan("p", text).cables) == 1
