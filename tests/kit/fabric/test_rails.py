"""Rails: which ports carry the traffic of which GPUs, and what must not stand in for one."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CONFIGURE, DRAIN, MONITOR, PASSED, STAYS, WARNING, CounterExample, result
from fabric_helpers import answer
from judged import parts
from suite_helpers import considered

from pytest_gpucluster.config.models import FabricProfile, GpuProfile, Profile, Rail
from pytest_gpucluster.core.check import Metric
from pytest_gpucluster.kit.fabric.facts import ADAPTERS, Adapters, GidPort, Port, parse_adapters
from pytest_gpucluster.kit.fabric.rails import Rails, in_use, rail_majority, rails_of, role
from pytest_gpucluster.kit.gpu.nvidia_smi import Topology
from pytest_gpucluster.suites.fabric import checks as fabric

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.core.check import Verdict

GPUS = 4
RAIL = Port("mlx5_0", 1, "28.1", "MT4129", "RAIL", "ACTIVE", "LinkUp", 50.0, "InfiniBand")
DOWN: dict[str, Any] = {"state": "DOWN", "phys_state": "Polling", "rate": 1.25}
IB = Profile(
    name="ib",
    description="",
    source="",
    gpu=GpuProfile(name="NVIDIA H100 80GB HBM3", count=GPUS),
    fabric=FabricProfile(hcas=GPUS, link_layer="InfiniBand", rate=50.0),
)


def gpu(index: int) -> tuple[str, ...]:
    return (f"0000:{index}0:01.0", f"0000:{index}1:00.0", f"0000:{index}3:00.0")


def rail(index: int, **changes: Any) -> Port:
    """Return the port behind the switch of a GPU."""
    path = (*gpu(index)[:2], f"0000:{index}2:00.0")
    return replace(RAIL, **{"device": f"mlx5_{index}", "path": path, **changes})


def other(index: int, **changes: Any) -> Port:
    """Return a port at the processor."""
    address = f"0000:e{index}:00.0"
    path = (f"0000:d{index}:01.0", address)
    return replace(RAIL, **{"device": f"mlx5_{10 + index}", "path": path, "board": "STORAGE", **changes})


def node(*ports: Port, gpus: int = GPUS) -> Adapters:
    return Adapters(ports, 1.0, tuple(gpu(index) for index in range(gpus)))


def rails(**changes: Any) -> list[Port]:
    return [rail(index, **changes) for index in range(GPUS)]


STORAGE = [other(index) for index in range(4)]
BRIDGES = [other(index, bridge=True, board=None, rate=25.0) for index in range(4, 8)]
SOUND = node(*rails())
CARD = rail(0, device="mlx5_9", path=(*gpu(0)[:2], "0000:05:00.0"), board="CARD")
LOST = node(*rails()[:3], *STORAGE)
HALF = [*rails()[:2], rail(2, **DOWN), rail(3, **DOWN)]
GUIDE = "NVIDIA DGX H100/H200 User Guide, network ports"


def of_three(sick: Adapters, sound: Adapters = SOUND) -> dict[str, Adapters]:
    return {"a": sound, "b": sound, "c": sick}


def judge(check: Any, sick: Adapters, sound: Adapters = SOUND, *, peers: bool = True) -> Verdict:
    """Judge a node beside two sound ones, or alone."""
    fleet = of_three(sick, sound) if peers else {"c": sick}
    usual: Any = fabric.rate_majority(fleet) if check is fabric.rate else fabric.active_majority(fleet)
    verdict: Verdict = check(IB, sick, usual, rails_of(sick, IB, rail_majority(fleet)))
    return verdict


def machine(check: Any, what: str, source: str, expected: str, sick: Adapters, **more: Any) -> CounterExample:
    judged = partial(judge, check, sick, **more)
    return CounterExample(check.name, what, source, expected, judged, sick=expected not in STAYS)


def down(*ports: Port) -> list[Port]:
    return [replace(port, **DOWN) for port in ports]


B200, FAR = "siderolabs/extensions pull request 895", "NVIDIA/nccl issue 246"
COUNT, STATE, RATE = fabric.hca_count, fabric.port_state, fabric.rate
AT_CPU, ONE_AT_CPU = node(*rails()[:2], *STORAGE[:2]), node(*rails()[:3], STORAGE[0])
OTHER_BOARD = node(*rails()[:3], rail(3, board="OTHER"))
CARDS = {"sick": node(CARD, *rails()[1:]), "sound": node(CARD, *rails())}
ONE_STORAGE, STORAGE_DOWN = node(*rails(), STORAGE[0]), node(*rails(), *down(STORAGE[0]))
HALF_DOWN = node(*HALF, *STORAGE, *BRIDGES)
SLOW_STORAGE = node(*rails(), *[replace(port, rate=12.5) for port in STORAGE])
COUNTER_EXAMPLES = [
    machine(COUNT, "DGX H100 with two cards for storage", GUIDE, PASSED, node(*rails(), *STORAGE)),
    machine(COUNT, "DGX B200 with four bridges", B200, PASSED, node(*rails(), *BRIDGES)),
    machine(COUNT, "adapters of all nodes at the processor, two near", FAR, PASSED, AT_CPU, sound=AT_CPU),
    machine(COUNT, "one adapter at the processor, on all nodes", FAR, PASSED, ONE_AT_CPU, sound=ONE_AT_CPU),
    machine(COUNT, "the driver of the adapters is not loaded", "openibd stopped", CONFIGURE, node()),
    machine(COUNT, "an adapter of another board after a repair", "maintenance", PASSED, OTHER_BOARD),
    machine(COUNT, "a node alone that lacks an adapter", GUIDE, CONFIGURE, LOST, peers=False),
    machine(COUNT, "one of three lacks an adapter, storage is up", GUIDE, DRAIN, LOST),
    machine(COUNT, "one of three lacks the adapter beside a card for storage", GUIDE, DRAIN, **CARDS),
    machine(STATE, "ports for storage without cables", GUIDE, PASSED, node(*rails(), *down(*STORAGE))),
    machine(STATE, "bridges down", B200, PASSED, node(*rails(), *down(*BRIDGES))),
    machine(STATE, "unused ports", "ConnectX-6 manual", PASSED, node(*rails(), *rails(number=2, **DOWN))),
    machine(STATE, "storage that is up on the others", GUIDE, WARNING, STORAGE_DOWN, sound=ONE_STORAGE),
    machine(STATE, "half of the rails down alone", GUIDE, MONITOR, HALF_DOWN, peers=False),
    machine(STATE, "half of the rails down, storage and bridges up", GUIDE, DRAIN, HALF_DOWN),
    machine(RATE, "bridges at another rate", B200, PASSED, node(*rails(), *BRIDGES)),
    machine(RATE, "storage at 100 Gb/s", GUIDE, PASSED, SLOW_STORAGE),
    machine(RATE, "a rail is down", GUIDE, PASSED, node(*rails()[:3], rail(3, **DOWN), *BRIDGES)),
    machine(RATE, "a rail at half its rate", GUIDE, DRAIN, node(*rails()[:3], rail(3, rate=25.0), *STORAGE)),
]
test_counter_examples = considered(COUNTER_EXAMPLES)


def devices(found: tuple[Rails, ...]) -> list[str]:
    """Return the adapters of each rail."""
    return [" ".join(port.device for port in one.ports) for one in found]


NEAR, AWAY = [f"mlx5_{i}" for i in range(GPUS)], [f"mlx5_{10 + i}" for i in range(GPUS)]


def test_a_lost_rail_is_named_by_gpu_adapter_and_port() -> None:
    (lost,) = judge(COUNT, LOST).findings
    assert (str(lost.part), str(lost.measured)) == (GPU_3, "no rail: adapter 0000:32:00.0 is not there")
    assert "no adapter is behind its PCIe switch" in str(judge(COUNT, LOST, peers=False).findings[0].measured)
    assert parts(judge(STATE, node(*HALF, *STORAGE))) == [
        "mlx5_2 port 1 (0000:22:00.0), rail of GPU 2 (0000:23:00.0)",
        "mlx5_3 port 1 (0000:32:00.0), rail of GPU 3 (0000:33:00.0)",
    ]


def named(*adapters: str, **changes: Any) -> Profile:
    pairs = tuple(Rail(gpu=gpu(index)[-1], adapter=adapter) for index, adapter in enumerate(adapters))
    return IB.model_copy(update={"fabric": IB.fabric.model_copy(update={"rails": pairs, **changes})})


GPU_3 = "GPU 3 (0000:33:00.0)"
HERE = [rail(index).address for index in range(GPUS)]


def test_rails_that_a_person_names_are_taken_at_their_word() -> None:
    profile = named("mlx5_10", "mlx5_11", "0000:e2:00.0", "0000:e9:00.0")
    found = rails_of(node(*rails(), *STORAGE), profile)
    assert devices(found) == ["mlx5_10", "mlx5_11", "mlx5_12", ""]
    assert found[3].missing == ("0000:e9:00.0",)
    (lost,) = fabric.hca_count(profile, node(*rails(), *STORAGE)).findings
    assert (str(lost.part), lost.action) == ("GPU 3 (0000:33:00.0)", None)


def test_rails_of_a_shipped_profile_hold_for_its_systems_only() -> None:
    sound = node(*rails(), *STORAGE)
    dgx = replace(sound, product="DGXH100")
    profile = named(*(f"0000:e{i}:00.0" for i in range(GPUS)), systems=("DGX*H100*",))
    assert devices(rails_of(sound, profile)) == NEAR
    assert devices(rails_of(dgx, profile)) == AWAY
    one_moved = named(*HERE[:3], "0000:f9:00.0", systems=("DGX*",))
    assert devices(rails_of(dgx, one_moved)) == NEAR
    (lost,) = fabric.hca_count(one_moved, replace(LOST, product="DGXH100")).findings
    assert str(lost.measured) == "no rail: adapter 0000:f9:00.0 is not there"
    mostly_moved = named(HERE[0], *["0000:f1:00.0"] * 3, systems=("DGX*",))
    (guest,) = rails_of(Adapters(dgx.ports, 1.0, (), "DGXH100"), mostly_moved)
    assert guest.need == GPUS, "half of the adapters must be where the profile has them"
    fewer = named(*HERE[:3], systems=("DGX*",))
    assert len(rails_of(dgx, fewer)) == GPUS, "the profile asks for more ports than it names"
    part = rails_of(replace(dgx, gpus=dgx.gpus[:2]), named(*HERE, systems=("DGX*",), hcas=2))
    assert [one.need for one in part] == [1, 1]
    assert [str(one.gpus[0].part) for one in part] == ["GPU 0 (0000:03:00.0)", "GPU 1 (0000:13:00.0)"]
    # another BIOS, other buses: the named adapters are not there, and each GPU has one behind its switch
    other_bios = named("0000:f2:00.0", "0000:f6:00.0", "0000:f9:00.0", HERE[3], systems=("DGX*",))
    assert devices(rails_of(dgx, other_bios)) == NEAR


def test_a_site_with_cables_at_some_ports_states_their_number() -> None:
    two = named(*HERE, hcas=2)
    (pooled,) = rails_of(node(*HALF, *STORAGE), two)
    assert (pooled.need, len(pooled.ports)) == (2, GPUS)
    assert not fabric.port_state(two, node(*HALF, *STORAGE)).findings
    few = node(*rails()[:2], *STORAGE[:1])
    assert [(one.need, len(one.ports)) for one in rails_of(few, named(hcas=3))] == [(3, 3)], "all ports"
    three = named(*HERE, hcas=3)
    assert len(fabric.port_state(three, node(*HALF, *STORAGE)).findings) == 2


def test_without_a_tree_one_board_that_has_enough_is_counted() -> None:
    guest = Adapters(tuple(replace(port, path=()) for port in (*HALF, *STORAGE[:3])), 1.0)
    assert parts(fabric.port_state(IB, guest)) == ["mlx5_2 port 1", "mlx5_3 port 1"]
    mixed = [replace(port, board=f"RAIL{index % 2}") for index, port in enumerate(rails())]
    unplaced = Adapters(tuple(replace(port, path=()) for port in (*mixed, *STORAGE[:2])), 1.0)
    assert not fabric.port_state(IB, unplaced).findings, "no board has enough: all ports may be rails"


def test_two_gpus_share_a_switch_and_a_card_for_storage_stands_beside_them() -> None:
    shared = (gpu(0), (*gpu(0)[:2], "0000:04:00.0"), gpu(1), (*gpu(1)[:2], "0000:14:00.0"))
    near = [rail(0), rail(0, device="mlx5_8", number=2), rail(1), rail(1, device="mlx5_9", number=2)]
    card = rail(0, device="mlx5_7", number=3, hca_type="MT4125", board="CARD", link_layer="Ethernet")
    found = rails_of(Adapters((*near, card), 1.0, shared), IB)
    assert [(one.need, len(one.ports), len(one.gpus)) for one in found] == [(2, 2, 2), (2, 2, 2)]


@pytest.mark.parametrize(
    "card", [{"rate": 12.5, "link_layer": "Ethernet"}, {"rate": 12.5}, {"rate": 50.0, "link_layer": "Ethernet"}]
)
def test_cards_of_two_ports_beside_each_gpu_are_not_the_rails(card: dict[str, Any]) -> None:
    cards = [
        rail(index, device=f"mlx5_{10 * number + index}", number=number, board="CARD", **card)
        for index in range(GPUS)
        for number in (2, 3)
    ]
    found = rails_of(node(*rails(), *cards), IB)
    assert [[port.board for port in one.ports] for one in found] == [["RAIL"]] * GPUS
    assert not fabric.rate(IB, node(*rails(), *cards)).findings
    lost = fabric.hca_count(IB, node(*rails()[:3], *cards))
    assert [one.ports[0].board for one in rails_of(node(*rails()[:3], *cards), IB)[:3]] == ["RAIL"] * 3
    assert [str(it.part) for it in lost.findings] == (["GPU 3 (0000:33:00.0)"] if len(card) == 2 else [])


def test_a_faster_card_beside_one_gpu_is_not_the_rail_of_all() -> None:
    found = rails_of(node(*rails(), replace(CARD, rate=100.0)), IB)
    assert [[port.board for port in one.ports] for one in found] == [["RAIL"]] * GPUS


def test_two_nodes_do_not_show_what_a_third_one_lacks_and_most_have_a_driver() -> None:
    two = {"a": SOUND, "b": SOUND}
    own = rails_of(LOST, IB, rail_majority(two))
    assert result(fabric.hca_count(IB, LOST, fabric.active_majority(two), own)) == CONFIGURE
    fleet = {**of_three(SOUND), "d": node()}
    own = rails_of(node(), IB, rail_majority(fleet))
    assert result(fabric.hca_count(IB, node(), fabric.active_majority(fleet), own)) == CONFIGURE


def test_the_path_from_gpu_to_adapter_is_not_judged_while_an_adapter_is_missing() -> None:
    topology = Topology({}, {0: {"mlx5_0": "PIX"}, 1: dict.fromkeys(("mlx5_1", "mlx5_2", "mlx5_3"), "SYS")})
    assert fabric.gpu_nic_affinity(IB, topology, SOUND).findings
    verdict = fabric.gpu_nic_affinity(IB, topology, LOST)
    assert (verdict.findings, "fabric.hca_count" in verdict.reason) == ((), True)


def test_only_rails_need_a_gid_of_roce_v2() -> None:
    roce = IB.model_copy(update={"fabric": FabricProfile(hcas=GPUS, link_layer="Ethernet", rate=50.0)})
    adapters = node(*rails(link_layer="Ethernet"), *[replace(it, link_layer="Ethernet") for it in STORAGE])
    table = [GidPort(it.device, 1, "Ethernet", {0: "RoCE v2"}) for it in adapters.ports]
    table[0] = replace(table[0], types={0: "IB/RoCE v1"})
    assert parts(fabric.gid(roce, table, (), adapters)) == ["mlx5_0 port 1"]


def test_a_gpu_that_is_lost_changes_nothing_for_the_rails_of_the_others() -> None:
    found = rails_of(node(*rails(), gpus=3), IB)
    assert [one.need for one in found] == [1, 1, 1]
    assert not fabric.port_state(IB, node(*rails(), gpus=3)).findings


def listing(*lines: str) -> Adapters:
    return parse_adapters(answer("uptime 1.0 1.0\n" + "\n".join((*lines, "end")) + "\n"))


def port(device: str, number: int, *rest: str) -> list[str]:
    top = f"/sys/class/infiniband/{device}"
    layer = "Ethernet" if rest else "InfiniBand"
    return [f"port {device} {number}", f"{top}/ports/{number}/link_layer:{layer}", *rest]


def test_paths_and_products_are_read() -> None:
    found = listing(
        "product DGXH100",
        "gpu /sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:1b:00.0",
        "gpu",
        "path mlx5_0 /sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:18:00.0",
        "path mlx5_1 /sys/class/infiniband/mlx5_1/device",
        *port("mlx5_0", 1),
        *port("mlx5_1", 1),
    )
    assert found.product == "DGXH100"
    assert found.gpus == (("0000:15:01.0", "0000:16:00.0", "0000:1b:00.0"),)
    assert [str(it.location) for it in found.ports] == ["0000:18:00.0 port 1", "mlx5_1 port 1"]
    vmbus = "/sys/devices/LNXSYSTM:00/VMBUS:00/1-0/pci0101:00/0101:00:00.0"
    assert listing(f"path mlx5_0 {vmbus}", *port("mlx5_0", 1)).ports[0].path == ("0101:00:00.0",)


SLOT = "/sys/devices/pci0000:04/0000:04:01.0/0000:05:00"


def test_a_bridge_is_known_by_its_vital_product_data_or_its_four_functions() -> None:
    marked = listing("/sys/class/infiniband/mlx5_0/device/vpd", *port("mlx5_0", 1), *port("mlx5_1", 1))
    assert [role(it) for it in marked.ports] == ["bridge to NVSwitches", ""]

    def functions(number: int, layer: str = "InfiniBand", *, chip: str = "MT4129", more: int = 1) -> list[Any]:
        paths = [f"path mlx5_{i} {SLOT}.{i}" for i in range(number)]
        lines = [
            line.replace("Ethernet", layer)
            for i in range(number + more)
            for line in port(f"mlx5_{i}", 1, f"/sys/class/infiniband/mlx5_{i}/hca_type:{chip}")
        ]
        return [it.bridge for it in listing(*paths, *lines).ports]

    assert functions(4) == [True] * 4 + [False]
    assert functions(2) == [False] * 3
    assert functions(8) == [False] * 9, "all adapters of a guest in one slot"
    assert functions(4, more=0) == [False] * 4, "all adapters of a guest in one slot"
    assert functions(4, chip="MT4126") == [False] * 5, "virtual functions in a guest"
    assert functions(4, "Ethernet") == [False] * 5, "cards of four ports for Ethernet exist"
    top = [f"path mlx5_{i} {SLOT}.{i}" for i in range(4)]
    guests = [
        line.replace(" 1", " 1 virtual") if i in (1, 2, 3) and line.startswith("port ") else line
        for i in range(5)
        for line in (*port(f"mlx5_{i}", 1), f"/sys/class/infiniband/mlx5_{i}/hca_type:MT4129")
    ]
    assert not any(it.bridge for it in listing(*top, *guests).ports), "functions of SR-IOV"


def test_a_representor_is_no_port() -> None:
    top = "/sys/class/infiniband/mlx5_0/ports"
    names = {"ens0np0": "p0", "ens0pf0vf0": "pf0vf0", "ens0pf0sf1": "c1pf0sf1"}
    nets = [f"net {interface} 1500 name {name}" for interface, name in names.items()]
    found = listing(
        *port("mlx5_0", 1, f"{top}/1/gid_attrs/ndevs/0:ens0np0", *nets),
        *port("mlx5_0", 2, f"{top}/2/gid_attrs/ndevs/0:ens0pf0vf0", *nets),
        *port("mlx5_0", 3, *nets),
    )
    assert [role(it) for it in found.ports] == ["", "representor of a function", "representor of a function"]
    unnamed = listing(*port("mlx5_0", 1, *nets))
    assert role(unnamed.ports[0]) == "", "the cable of a switch, whose interface cannot be read"
    two = listing(*port("mlx4_0", 1, "net ib0 2044 name"), *port("mlx4_0", 2, "net ib0 2044 name"))
    assert [role(it) for it in two.ports] == ["", ""], "two cables at one adapter"
    assert two.ports[0].interfaces == {"ib0": 2044}


def test_the_same_place_is_compared_although_names_move_up() -> None:
    """One adapter is missing, so the driver numbers the others from one less."""
    moved = node(rail(0), rail(1), rail(3, device="mlx5_2"))
    verdict = judge(COUNT, moved)
    assert result(verdict) == DRAIN
    assert str(verdict.findings[0].measured) == "no rail: adapter 0000:22:00.0 is not there"
    assert Metric("hca_ports", 3, "ports") in verdict.metrics
    assert not judge(STATE, moved).findings


NEW = """\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tNODE\tPIX\tSYS\t0-55\t0
GPU1\tNV18\t X \tSYS\tSYS\tPXB\t56-111\t1
NIC0\tNODE\tSYS\t X \tNODE\tSYS
NIC1\tPIX\tSYS\tNODE\t X \tSYS
NIC2\tSYS\tPXB\tSYS\tSYS\t X

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_4
  NIC2: mlx5_bond_0
"""
# nccl-tests issue 78: the names stand in the header; copied from a terminal
OLD = """        GPU0    GPU1    GPU2    mlx5_0  mlx5_1  CPU Affinity
GPU0     X      NV6     NV6     PIX     NODE    0-23,48-71
GPU1    NV6      X      NV6     PXB     NODE    0-23,48-71
GPU2    NV6     NV6      X      NODE    PIX     0-23,48-71
mlx5_0  PIX     PXB     NODE     X      NODE
mlx5_1  NODE    NODE    PIX     NODE     X
"""


def without_paths(topology: str, *names: str, **changes: str) -> Adapters:
    """Return what is read of ports without a link to their PCI device."""
    files = {"link_layer": "InfiniBand", "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"}
    blocks = [
        f"path {name} /sys/class/infiniband/{name}/device\nport {name} 1\n"
        + "".join(f"/sys/class/infiniband/{name}/ports/1/{file}:{text}\n" for file, text in files.items())
        + "".join(f"/sys/class/infiniband/{name}/{file}:{text}\n" for file, text in changes.items())
        for name in names
    ]
    return parse_adapters(answer(f"uptime 1.0 1.0\n{''.join(blocks)}topology\n{topology}end\n"))


NEAR_GPU = {"mlx5_0": "", "mlx5_4": "GPU0", "mlx5_bond_0": "GPU1"}


@pytest.mark.parametrize(
    ("text", "near"),
    [
        (NEW, NEAR_GPU),
        (NEW.replace("\t", "    ").replace(" X ", "X"), NEAR_GPU),
        (OLD, {"mlx5_0": "GPU0 GPU1", "mlx5_1": "GPU2"}),
    ],
)
def test_topo_m_shows_which_adapters_share_a_switch_with_a_gpu(text: str, near: dict[str, str]) -> None:
    found = without_paths(text, *near)
    assert [path[-1] for path in found.gpus] == [f"GPU{index}" for index in range(len(found.gpus))]
    for port in found.ports:
        mine = [path[-1] for path in found.gpus if port.path and path[0] == port.path[0]]
        assert " ".join(mine) == near[port.device]


def test_topo_m_that_fails_or_is_cut_shows_nothing() -> None:
    for text in ("", "NVIDIA-SMI has failed\n", NEW.partition("GPU1\tNV18")[0]):
        found = without_paths(text, "mlx5_0")
        assert (found.gpus, [port.path for port in found.ports]) == ((), [()])


def test_more_than_ten_gpus_keep_their_order() -> None:
    header = "".join(f"\tGPU{index}" for index in range(12))
    rows = [f"GPU{row}" + "\t X " * 12 for row in range(12)]
    found = without_paths("\n".join([header, *rows]) + "\n", "mlx5_0")
    assert [path[-1] for path in found.gpus] == [f"GPU{index}" for index in range(12)]


def test_a_rail_from_topo_m_is_named_by_gpu_and_adapter() -> None:
    rows = [f"\t{chr(9).join(f'GPU{n}' for n in range(GPUS))}\tmlx5_0\tmlx5_1\tmlx5_2"]
    for at in range(GPUS):
        cells = ["PIX" if nic == at else "SYS" for nic in range(3)]
        rows.append("\t".join([f"GPU{at}", *([" X "] * GPUS), *cells]))
    sick = without_paths("\n".join(rows) + "\n", "mlx5_0", "mlx5_1", "mlx5_2")
    (lost,) = fabric.hca_count(IB, sick).findings
    assert (str(lost.part), str(lost.measured)) == ("GPU 3", "no rail: no adapter is behind its PCIe switch")
    port_down = replace(sick, ports=(*sick.ports[:2], *down(sick.ports[2])))
    assert parts(fabric.port_state(IB, port_down)) == ["mlx5_2 port 1, rail of GPU 2"]


BRIDGE = "pci0000:15/0000:15:01.0"


@pytest.mark.parametrize(("link", "gpu", "asked"), [("", "", 1), ("", BRIDGE, 1), (BRIDGE, "", 1), (BRIDGE, BRIDGE, 0)])
def test_nvidia_smi_runs_only_without_pci_paths(tmp_path: Path, link: str, gpu: str, asked: int) -> None:
    device, tools = tmp_path / "sys/class/infiniband/mlx5_0", tmp_path / "bin"
    (device / "ports/1").mkdir(parents=True)
    tools.mkdir()
    (tools / "nvidia-smi").write_text('#!/bin/sh\necho asked for "$@"\n')
    (tools / "nvidia-smi").chmod(0o755)
    if link:
        (tmp_path / link).mkdir(parents=True)
        (device / "device").symlink_to(tmp_path / link)
    driver = tmp_path / "sys/bus/pci/drivers/nvidia"
    driver.mkdir(parents=True)
    if gpu:
        (tmp_path / gpu).mkdir(parents=True, exist_ok=True)
        (driver / "0000:16:00.0").symlink_to(tmp_path / gpu)
    command = ADAPTERS.command.replace("/sys/", f"{tmp_path}/sys/")
    path = f"{tools}:{os.environ['PATH']}"
    done = subprocess.run(command, shell=True, env={"PATH": path}, capture_output=True, text=True, check=True)
    assert (done.stdout.count("asked for topo -m"), done.stdout.splitlines()[-1]) == (asked, "end")


def card(number: int, guid: int | None, board: str = "A", **changes: Any) -> Port:
    name = "" if guid is None else f"0:{guid}"
    port = replace(RAIL, device=f"mlx5_{number}", card=name or None, board=board, path=())
    return replace(port, **changes)


SINGLES = [card(index, index) for index in range(8)]
PAIR = [card(8, 8), card(9, 8)]


TWO_PORTS, LAST_TWO = (
    [card(index, index // 2) for index in range(8)],
    [card(index, index // 2 * 2) for index in range(8, 16)],
)


@pytest.mark.parametrize(
    ("ports", "certain"),
    [
        ([*SINGLES, *PAIR], True),
        # healthy, or not certain: the number decides
        ([*SINGLES[:7], PAIR[0], *down(PAIR[1])], False),  # replaced by a card of two ports
        ([*SINGLES[:7], card(7, 7, "B"), *PAIR], False),  # replaced by another board
        ([*SINGLES[:6], *PAIR], False),  # mixed: six cards of one port, one of two
        ([*TWO_PORTS, card(8, 8), card(9, 9)], False),  # rails on cards of two ports
        ([*SINGLES[:7], *LAST_TWO], False),  # as many ports there as GPUs
        ([card(index, None) for index in range(10)], False),  # no GUIDs
        ([*SINGLES[:7], replace(SINGLES[7], device="mlx5_bond_0"), *PAIR], False),
        ([card(index, 1) for index in range(17)], False),  # virtual functions have the GUID of their adapter
    ],
)
def test_cards_show_the_rails_where_that_is_certain(ports: list[Port], *, certain: bool) -> None:
    (found,) = rails_of(Adapters(tuple(ports), 1.0), eight())
    alone = tuple(port for port in ports if port in SINGLES)
    assert (found.ports == alone) is certain


def eight(name: str = "site") -> Profile:
    of_eight = {"gpu": GpuProfile(name="NVIDIA H100 80GB HBM3", count=8)}
    adapters = FabricProfile(hcas=8, link_layer="InfiniBand", rate=50.0)
    return IB.model_copy(update={"name": name, **of_eight, "fabric": adapters})


H100 = {0, 3, 4, 5, 6, 9, 10, 11}


@pytest.mark.parametrize(
    ("profile", "product", "number", "guid", "named"),
    [
        ("dgx-h100", "", 12, None, True),
        ("dgx-h100", "DGXH100", 12, None, True),
        ("dgx-h100", "PowerEdge XE9680", 12, None, False),
        ("h200-8", "", 12, None, False),
        ("h200-8", "DGXH200", 12, None, True),
        ("dgx-h100", "", 11, None, False),
        ("dgx-h100", "", 12, 1, False),  # the GUIDs contradict the guide
    ],
)
def test_names_of_a_whole_dgx(profile: str, product: str, number: int, guid: int | None, named: bool) -> None:
    (one,) = rails_of(Adapters(tuple(card(n, guid) for n in range(number)), 1.0, (), product), eight(profile))
    assert ({int(port.device[5:]) for port in one.ports} == H100) is named


def test_names_of_the_guide_need_one_board() -> None:
    ports = tuple(card(n, None, "A" if n < 8 else "B") for n in range(12))
    (found,) = rails_of(Adapters(ports, 1.0), eight("dgx-h100"))
    assert found.ports == ports[:8]


def test_hcas_alone_count_efa_devices_and_none_switches_them_off() -> None:
    profile = IB.model_copy(update={"fabric": FabricProfile(hcas=2)})
    ports = [replace(RAIL, device=f"rdmap{n}s0", link_layer="Unknown", card=None) for n in (79, 80)]
    other_port = replace(RAIL, device="mlx5_0")
    assert not fabric.hca_count(profile, node(*ports, other_port)).findings
    (lost,) = fabric.hca_count(profile, node(ports[0], other_port)).findings
    assert str(lost.measured) == "1 port (rdmap79s0)"
    assert not fabric.port_state(profile, node(*ports)).findings
    assert parts(fabric.port_state(profile, node(ports[0], *down(ports[1])))) == ["rdmap80s0 port 1"]
    assert not FabricProfile(hcas=2, link_layer="none").has_adapters
    assert not FabricProfile().has_adapters


def test_a_slower_port_is_of_another_network_only_beside_enough_rails() -> None:
    def counted(*ports: Port, need: int = GPUS) -> tuple[Port, ...]:
        profile = IB.model_copy(update={"fabric": IB.fabric.model_copy(update={"hcas": need})})
        (found,) = rails_of(Adapters(ports, 1.0), profile)
        return found.ports

    up = [replace(port, board=f"board {n}") for n, port in enumerate(rails())]
    off = [replace(port, state="DOWN") for port in up]
    slow = replace(STORAGE[0], board="other", rate=12.5)
    assert counted(*up, slow) == tuple(up)
    assert counted(*off, slow) == (*off, slow)
    assert counted(*up[1:], slow) == (*up[1:], slow)
    assert counted(up[0], *off[1:3], slow, need=3) == (up[0], *off[1:3], slow)
    assert counted(*up[:2], off[2], slow, need=3) == (*up[:2], off[2])


def test_a_rail_that_no_node_has_takes_no_node_out_of_service() -> None:
    """Also where the node lacks a port for storage that the others have."""
    profile, sick = named(*HERE[:3], "0000:e9:00.0"), node(*rails())
    majority = fabric.active_majority(of_three(sick, node(*rails(), STORAGE[0])))
    (lost,) = fabric.hca_count(profile, sick, majority, rails_of(sick, profile)).findings
    assert (str(lost.measured), lost.action) == ("no rail: adapter 0000:e9:00.0 is not there", None)


SECOND = replace(RAIL, device="mlx5_1")


@pytest.mark.parametrize(
    ("need", "spare", "kept"),
    [
        (1, {"state": "DOWN", "rate": 1.25}, False),  # the second port of a card, without a cable
        (1, {"link_layer": "Ethernet"}, False),
        (1, {}, True),
        (1, {"state": None, "rate": None, "link_layer": None}, True),  # unknown
        (2, {"state": "DOWN", "rate": 1.25}, True),  # a rail that is down must be tested, and fail
        (0, {"state": "DOWN"}, False),
    ],
)
def test_spare_ports_carry_no_traffic(need: int, spare: dict[str, Any], kept: bool) -> None:
    ports = (RAIL, replace(SECOND, **spare))
    assert in_use(Rails(need, ports), IB.fabric) == (ports if kept else (RAIL,))
