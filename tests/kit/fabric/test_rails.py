"""Rails: which ports carry the traffic of which GPUs, and what must not stand in for one."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import (
    CONFIGURE,
    DRAIN,
    MONITOR,
    PASSED,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
)
from fabric_helpers import answer

from pytest_gpucluster.config.models import FabricProfile, GpuProfile, Profile, Rail
from pytest_gpucluster.core.check import Action, Check, Metric, Outcome
from pytest_gpucluster.kit.fabric.facts import ADAPTERS, Adapters, GidPort, Port, parse_adapters
from pytest_gpucluster.kit.fabric.rails import (
    Rails,
    _by_card,
    _counted,
    in_use,
    rail_majority,
    rails_of,
    role,
)
from pytest_gpucluster.kit.gpu.nvidia_smi import Topology
from pytest_gpucluster.suites.fabric import checks as fabric

if TYPE_CHECKING:
    from pathlib import Path

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


def count(sick: Adapters, *, peers: bool = True) -> Any:
    fleet = of_three(sick) if peers else {"c": sick}
    return fabric.hca_count(IB, sick, fabric.active_majority(fleet), rails_of(sick, IB, rail_majority(fleet)))


def count_of(sick: Adapters, sound: Adapters) -> Any:
    fleet = of_three(sick, sound)
    return fabric.hca_count(IB, sick, fabric.active_majority(fleet), rails_of(sick, IB, rail_majority(fleet)))


def state(sick: Adapters, *, peers: bool = True) -> Any:
    fleet = of_three(sick) if peers else {"c": sick}
    return fabric.port_state(
        IB, sick, fabric.active_majority(fleet), rails_of(sick, IB, rail_majority(fleet))
    )


def rate(sick: Adapters) -> Any:
    fleet = of_three(sick)
    return fabric.rate(IB, sick, fabric.rate_majority(fleet), rails_of(sick, IB, rail_majority(fleet)))


COUNTER_EXAMPLES = [
    CounterExample("fabric.hca_count", "DGX H100 with two cards for storage", GUIDE, PASSED, lambda: count(node(*rails(), *STORAGE))),
    CounterExample("fabric.hca_count", "DGX B200 with four bridges", "siderolabs/extensions pull request 895", PASSED, lambda: count(node(*rails(), *BRIDGES))),
    CounterExample(
        "fabric.hca_count", "adapters of all nodes at the processor, two near", "NVIDIA/nccl issue 246", PASSED,
        lambda: fabric.hca_count(
            IB, (sound := node(*rails()[:2], *STORAGE[:2])), fabric.active_majority(of_three(sound, sound)),
            rails_of(sound, IB, rail_majority(of_three(sound, sound))),
        ),
    ),
    CounterExample(
        "fabric.hca_count", "the adapter of one GPU at the processor, on all nodes", "NVIDIA/nccl issue 246", PASSED,
        lambda: count_of((sound := node(*rails()[:3], STORAGE[0])), sound),
    ),
    CounterExample("fabric.hca_count", "the driver of the adapters is not loaded", "openibd stopped", CONFIGURE, lambda: count(node()), sick=True),
    CounterExample("fabric.hca_count", "an adapter of another board after a repair", "maintenance of any cluster", PASSED, lambda: count(node(*rails()[:3], rail(3, board="OTHER")))),
    CounterExample("fabric.hca_count", "a node alone that lacks an adapter", GUIDE, CONFIGURE, lambda: count(LOST, peers=False), sick=True),
    CounterExample("fabric.hca_count", "one of three lacks an adapter, storage is up", GUIDE, DRAIN, lambda: count(LOST), sick=True),
    CounterExample("fabric.hca_count", "one of three lacks the adapter beside a card for storage", GUIDE, DRAIN, lambda: count_of(node(CARD, *rails()[1:]), node(CARD, *rails())), sick=True),
    CounterExample("fabric.port_state", "ports for storage without cables", GUIDE, PASSED, lambda: state(node(*rails(), *[replace(port, **DOWN) for port in STORAGE]))),
    CounterExample("fabric.port_state", "bridges down", "siderolabs/extensions pull request 895", PASSED, lambda: state(node(*rails(), *[replace(port, **DOWN) for port in BRIDGES]))),
    CounterExample(
        "fabric.port_state", "second ports of dual-port cards unused", "ConnectX-6 VPI manual", PASSED,
        lambda: state(node(*rails(), *rails(number=2, **DOWN))),
    ),
    CounterExample(
        "fabric.port_state", "a port for storage that is up on the others", GUIDE, WARNING,
        lambda: fabric.port_state(
            IB, (sick := node(*rails(), replace(STORAGE[0], **DOWN))), fabric.active_majority(of_three(sick, node(*rails(), STORAGE[0])))
        ),
    ),
    CounterExample("fabric.port_state", "half of the rails down alone, storage and bridges up", GUIDE, MONITOR, lambda: state(node(*HALF, *STORAGE, *BRIDGES), peers=False), sick=True),
    CounterExample("fabric.port_state", "half of the rails down, storage and bridges up", GUIDE, DRAIN, lambda: state(node(*HALF, *STORAGE, *BRIDGES)), sick=True),
    CounterExample("fabric.rate", "bridges at another rate", "siderolabs/extensions pull request 895", PASSED, lambda: rate(node(*rails(), *BRIDGES))),
    CounterExample("fabric.rate", "storage at 100 Gb/s", GUIDE, PASSED, lambda: rate(node(*rails(), *[replace(port, rate=12.5) for port in STORAGE]))),
    CounterExample("fabric.rate", "a rail down, which fabric.port_state judges", GUIDE, PASSED, lambda: rate(node(*rails()[:3], rail(3, **DOWN), *BRIDGES))),
    CounterExample("fabric.rate", "a rail at half of its rate, storage at the full", GUIDE, DRAIN, lambda: rate(node(*rails()[:3], rail(3, rate=25.0), *STORAGE)), sick=True),
]  # fmt: skip


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_counter_examples(example: CounterExample) -> None:
    assert_as_expected(example)


def test_a_lost_rail_is_named_by_gpu_adapter_and_port() -> None:
    (lost,) = count(LOST).findings
    assert (lost.part, lost.measured) == (
        "GPU 3 (0000:33:00.0)",
        "no rail: adapter 0000:32:00.0 is not there",
    )
    assert lost.expected == "1 port for its traffic"
    assert count(LOST, peers=False).findings[0].measured == "no rail: no adapter is behind its PCIe switch"
    parts = [found.part for found in state(node(*HALF, *STORAGE)).findings]
    assert parts == [
        "mlx5_2 port 1 (0000:22:00.0), rail of GPU 2 (0000:23:00.0)",
        "mlx5_3 port 1 (0000:32:00.0), rail of GPU 3 (0000:33:00.0)",
    ]


def test_other_ports_are_listed_by_name_and_not_counted() -> None:
    verdict = count(node(*rails(), STORAGE[0], BRIDGES[0], rail(0, device="mlx5_9", virtual=True, number=3)))
    counted = {metric.name: metric.value for metric in verdict.metrics if metric.name == "hca_ports"}
    assert counted == {"hca_ports": GPUS}
    assert [
        (it.device, it.unit, it.value, it.detail) for it in verdict.metrics if it.name == "hca_ports_other"
    ] == [
        ("mlx5_10 port 1", "port for storage or management", 1, True),
        ("mlx5_14 port 1", "bridge to NVSwitches", 1, True),
        ("mlx5_9 port 3", "virtual function of an adapter of this host", 1, True),
    ]


def named(*adapters: str, **changes: Any) -> Profile:
    pairs = tuple(Rail(gpu=gpu(index)[-1], adapter=adapter) for index, adapter in enumerate(adapters))
    return IB.model_copy(update={"fabric": IB.fabric.model_copy(update={"rails": pairs, **changes})})


HERE = [rail(index).address for index in range(GPUS)]


def test_rails_that_a_person_names_are_taken_at_their_word() -> None:
    profile = named("mlx5_10", "mlx5_11", "0000:e2:00.0", "0000:e9:00.0")
    found = rails_of(node(*rails(), *STORAGE), profile)
    assert [[port.device for port in one.ports] for one in found] == [
        ["mlx5_10"],
        ["mlx5_11"],
        ["mlx5_12"],
        [],
    ]
    assert found[3].missing == ("0000:e9:00.0",)
    (lost,) = fabric.hca_count(profile, node(*rails(), *STORAGE)).findings
    assert (lost.part, lost.action) == ("GPU 3 (0000:33:00.0)", None)


def test_rails_of_a_shipped_profile_hold_for_its_systems_only() -> None:
    wrong = ("0000:e0:00.0", "0000:e1:00.0", "0000:e2:00.0", "0000:e3:00.0")
    sound = node(*rails(), *STORAGE)
    profile = named(*wrong, systems=("DGX*H100*",))
    assert [one.ports[0].device for one in rails_of(sound, profile)] == [f"mlx5_{i}" for i in range(GPUS)]
    dgx = replace(sound, product="DGXH100")
    assert [one.ports[0].device for one in rails_of(dgx, profile)] == [f"mlx5_{10 + i}" for i in range(GPUS)]
    one_moved = named(*HERE[:3], "0000:f9:00.0", systems=("DGX*",))
    assert [one.ports[0].device for one in rails_of(dgx, one_moved)] == [f"mlx5_{i}" for i in range(GPUS)]
    (lost,) = fabric.hca_count(one_moved, replace(LOST, product="DGXH100")).findings
    assert lost.measured == "no rail: adapter 0000:f9:00.0 is not there"
    (guest,) = rails_of(
        Adapters(dgx.ports, 1.0, (), "DGXH100"), named(*HERE[:1], *["0000:f1:00.0"] * 3, systems=("DGX*",))
    )
    assert guest.need == GPUS, "half of the adapters must be where the profile has them"
    fewer = named(*HERE[:3], systems=("DGX*",))
    assert len(rails_of(dgx, fewer)) == GPUS, "the profile asks for more ports than it names"
    part = rails_of(replace(dgx, gpus=dgx.gpus[:2]), named(*HERE, systems=("DGX*",), hcas=2))
    assert [(one.need, str(one.gpus[0])) for one in part] == [
        (1, "GPU 0 (0000:03:00.0)"),
        (1, "GPU 1 (0000:13:00.0)"),
    ]
    # another BIOS, other buses: the named adapters are not there, and each GPU has one behind its switch
    other_bios = named("0000:f2:00.0", "0000:f6:00.0", "0000:f9:00.0", HERE[3], systems=("DGX*",))
    assert [one.ports[0].device for one in rails_of(dgx, other_bios)] == [f"mlx5_{i}" for i in range(GPUS)]


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
    assert [found.part for found in fabric.port_state(IB, guest).findings] == [
        "mlx5_2 port 1",
        "mlx5_3 port 1",
    ]
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
    "card",
    [{"rate": 12.5, "link_layer": "Ethernet"}, {"rate": 12.5}, {"rate": 50.0, "link_layer": "Ethernet"}],
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
    assert [found.part for found in lost.findings] == (["GPU 3 (0000:33:00.0)"] if len(card) == 2 else [])


def test_a_faster_card_beside_one_gpu_is_not_the_rail_of_all() -> None:
    found = rails_of(node(*rails(), replace(CARD, rate=100.0)), IB)
    assert [[port.board for port in one.ports] for one in found] == [["RAIL"]] * GPUS


def test_a_node_without_any_adapter_may_lack_their_driver() -> None:
    fleet = {**of_three(SOUND), "d": node()}
    verdict = fabric.hca_count(
        IB, node(), fabric.active_majority(fleet), rails_of(node(), IB, rail_majority(fleet))
    )
    assert (verdict.outcome, verdict.action) == (Outcome.FAILED, Action.CONFIGURE)


def test_two_nodes_do_not_show_what_a_third_one_lacks() -> None:
    usual = fabric.active_majority({"a": SOUND, "b": SOUND})
    assert (
        fabric.hca_count(IB, LOST, usual, rails_of(LOST, IB, rail_majority({"a": SOUND, "b": SOUND}))).action
        is Action.CONFIGURE
    )


def test_the_path_from_gpu_to_adapter_is_not_judged_while_an_adapter_is_missing() -> None:
    topology = Topology({}, {0: {"mlx5_0": "PIX"}, 1: dict.fromkeys(("mlx5_1", "mlx5_2", "mlx5_3"), "SYS")})
    assert fabric.gpu_nic_affinity(IB, topology, SOUND).outcome is Outcome.FAILED
    verdict = fabric.gpu_nic_affinity(IB, topology, LOST)
    assert verdict.reason == "the node lacks an adapter (see fabric.hca_count)"


def test_only_rails_need_a_gid_of_roce_v2() -> None:
    roce = IB.model_copy(update={"fabric": FabricProfile(hcas=GPUS, link_layer="Ethernet", rate=50.0)})
    adapters = node(*rails(link_layer="Ethernet"), *[replace(it, link_layer="Ethernet") for it in STORAGE])
    table = [GidPort(it.device, 1, "Ethernet", {0: "RoCE v2"}) for it in adapters.ports]
    table[0] = replace(table[0], types={0: "IB/RoCE v1"})
    (bad,) = fabric.gid(roce, table, (), adapters).findings
    assert bad.part == "mlx5_0 port 1"


def test_the_firmware_of_bridges_is_compared() -> None:
    bridge = replace(BRIDGES[0], board="BRIDGE", firmware="28.2")
    fleet = fabric.firmware_majority(of_three(node(bridge), node(replace(bridge, firmware="28.3"))))
    assert fabric.firmware(IB, node(bridge), fleet).outcome is Outcome.FAILED


def test_a_gpu_that_is_lost_changes_nothing_for_the_rails_of_the_others() -> None:
    found = rails_of(node(*rails(), gpus=3), IB)
    assert [one.need for one in found] == [1, 1, 1]
    assert not fabric.port_state(IB, node(*rails(), gpus=3)).findings


def test_most_gpus_without_an_adapter_are_a_design() -> None:
    (counted,) = rails_of(node(*rails()[:2], *STORAGE[:2]), IB)
    assert (counted.need, len(counted.ports), counted.gpus) == (GPUS, 4, ())


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
    assert [it.location for it in found.ports] == ["0000:18:00.0 port 1", "mlx5_1 port 1"]
    vmbus = "/sys/devices/LNXSYSTM:00/VMBUS:00/1-0/pci0101:00/0101:00:00.0"
    assert listing(f"path mlx5_0 {vmbus}", *port("mlx5_0", 1)).ports[0].path == ("0101:00:00.0",)


def test_a_bridge_is_known_by_its_vital_product_data_or_its_four_functions() -> None:
    marked = listing("/sys/class/infiniband/mlx5_0/device/vpd", *port("mlx5_0", 1), *port("mlx5_1", 1))
    assert [role(it) for it in marked.ports] == ["bridge to NVSwitches", ""]

    def functions(
        number: int, layer: str = "InfiniBand", *, chip: str = "MT4129", more: int = 1
    ) -> list[bool]:
        paths = [f"path mlx5_{i} /sys/devices/pci0000:04/0000:04:01.0/0000:05:00.{i}" for i in range(number)]
        lines = [
            line
            for i in range(number + more)
            for line in port(f"mlx5_{i}", 1, f"/sys/class/infiniband/mlx5_{i}/hca_type:{chip}")
        ]
        return [
            it.bridge for it in listing(*paths, *(line.replace("Ethernet", layer) for line in lines)).ports
        ]

    assert functions(4) == [True] * 4 + [False]
    assert functions(2) == [False] * 3
    assert functions(8) == [False] * 9, "all adapters of a guest in one slot"
    assert functions(4, more=0) == [False] * 4, "all adapters of a guest in one slot"
    assert functions(4, chip="MT4126") == [False] * 5, "virtual functions in a guest"
    assert functions(4, "Ethernet") == [False] * 5, "cards of four ports for Ethernet exist"
    top = [f"path mlx5_{i} /sys/devices/pci0000:04/0000:04:01.0/0000:05:00.{i}" for i in range(4)]
    guests = [
        line.replace(" 1", " 1 virtual") if i in (1, 2, 3) and line.startswith("port ") else line
        for i in range(5)
        for line in (*port(f"mlx5_{i}", 1), f"/sys/class/infiniband/mlx5_{i}/hca_type:MT4129")
    ]
    assert not any(it.bridge for it in listing(*top, *guests).ports), "functions of SR-IOV"


def test_a_representor_is_no_port() -> None:
    top = "/sys/class/infiniband/mlx5_0/ports"
    nets = [
        "net ens0np0 1500 name p0",
        "net ens0pf0vf0 1500 name pf0vf0",
        "net ens0pf0sf1 1500 name c1pf0sf1",
    ]
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
    fleet = of_three(moved)
    verdict = fabric.hca_count(
        IB, moved, fabric.active_majority(fleet), rails_of(moved, IB, rail_majority(fleet))
    )
    assert verdict.findings[0].measured == "no rail: adapter 0000:22:00.0 is not there"
    assert verdict.action is Action.DRAIN
    assert not fabric.port_state(
        IB, moved, fabric.active_majority(fleet), rails_of(moved, IB, rail_majority(fleet))
    ).findings
    assert Metric("hca_ports", 3, "ports") in verdict.metrics


# --- nodes without PCI paths -------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("text", "near"),
    [
        (NEW, {"mlx5_0": "", "mlx5_4": "GPU0", "mlx5_bond_0": "GPU1"}),
        (
            NEW.replace("\t", "    ").replace(" X ", "X"),
            {"mlx5_0": "", "mlx5_4": "GPU0", "mlx5_bond_0": "GPU1"},
        ),
        (OLD, {"mlx5_0": "GPU0 GPU1", "mlx5_1": "GPU2"}),
    ],
)
def test_topo_m_shows_which_adapters_share_a_switch_with_a_gpu(text: str, near: dict[str, str]) -> None:
    found = without_paths(text, *near)
    assert [path[-1] for path in found.gpus] == [f"GPU{index}" for index in range(len(found.gpus))]
    assert {
        port.device: " ".join(path[-1] for path in found.gpus if port.path and path[0] == port.path[0])
        for port in found.ports
    } == near


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver\n",
        NEW.partition("GPU1\tNV18")[0],
    ],
)
def test_topo_m_that_fails_or_is_cut_shows_nothing(text: str) -> None:
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
    found = fabric.hca_count(IB, sick).findings
    assert [(one.part, one.measured) for one in found] == [
        ("GPU 3", "no rail: no adapter is behind its PCIe switch")
    ]
    down = replace(sick, ports=(*sick.ports[:2], replace(sick.ports[2], **DOWN)))
    assert [one.part for one in fabric.port_state(IB, down).findings] == ["mlx5_2 port 1, rail of GPU 2"]


BRIDGE = "pci0000:15/0000:15:01.0"


@pytest.mark.parametrize(
    ("link", "gpu", "asked"), [("", "", 1), ("", BRIDGE, 1), (BRIDGE, "", 1), (BRIDGE, BRIDGE, 0)]
)
def test_nvidia_smi_runs_only_if_no_adapter_or_no_gpu_has_a_pci_path(
    tmp_path: Path, link: str, gpu: str, asked: int
) -> None:
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
    done = subprocess.run(
        ["sh", "-c", command], env={"PATH": path}, capture_output=True, text=True, check=True
    )
    assert (done.stdout.count("asked for topo -m"), done.stdout.splitlines()[-1]) == (asked, "end")


def card(number: int, guid: int | None, board: str = "A", **changes: Any) -> Port:
    name = "" if guid is None else f"0:{guid}"
    port = replace(RAIL, device=f"mlx5_{number}", card=name or None, board=board, path=())
    return replace(port, **changes)


SINGLES = [card(index, index) for index in range(8)]
PAIR = [card(8, 8), card(9, 8)]


@pytest.mark.parametrize(
    ("ports", "need"),
    [
        ([*SINGLES, *PAIR], 8),
        ([*SINGLES[:7], *PAIR], 7),
        # healthy, or not certain: the number decides
        ([*SINGLES[:7], PAIR[0], replace(PAIR[1], **DOWN)], 0),  # replaced by a card of two ports
        ([*SINGLES[:7], card(7, 7, "B"), *PAIR], 0),  # replaced by another board
        ([*SINGLES[:6], *PAIR], 0),  # mixed: six cards of one port, one of two
        (
            [card(index, index // 2) for index in range(8)] + [card(8, 8), card(9, 9)],
            0,
        ),  # rails on cards of two ports
        (
            [*SINGLES[:7], *(card(index, index // 2 * 2) for index in range(8, 16))],
            0,
        ),  # as many ports there as GPUs
        ([card(index, None) for index in range(10)], 0),  # no GUIDs
        ([*SINGLES, card(8, 8)], 0),  # nine cards of one port
        ([*SINGLES[:7], replace(SINGLES[7], device="mlx5_bond_0"), *PAIR], 0),
        (SINGLES, 0),  # a guest
        ([card(index, 1) for index in range(17)], 0),  # virtual functions have the GUID of their adapter
    ],
)
def test_cards_show_the_rails_where_that_is_certain(ports: list[Port], need: int) -> None:
    found = _by_card(Adapters(tuple(ports), 1.0), eight())
    assert (0 if found is None else len(found.ports)) == need
    assert found is None or all(port in SINGLES for port in found.ports)


def eight(name: str = "site") -> Profile:
    gpu_profile = GpuProfile(name="NVIDIA H100 80GB HBM3", count=8)
    return IB.model_copy(
        update={
            "name": name,
            "gpu": gpu_profile,
            "fabric": FabricProfile(hcas=8, link_layer="InfiniBand", rate=50.0),
        }
    )


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
def test_names_of_the_guide_hold_for_a_whole_dgx(
    profile: str, product: str, number: int, guid: int | None, named: bool
) -> None:
    found = _by_card(Adapters(tuple(card(n, guid) for n in range(number)), 1.0, (), product), eight(profile))
    assert (found is not None and {int(port.device[5:]) for port in found.ports} == H100) is named


def test_names_of_the_guide_need_one_board() -> None:
    ports = [card(n, None, "A" if n < 8 else "B") for n in range(12)]
    assert _by_card(Adapters(tuple(ports), 1.0), eight("dgx-h100")) is None


def test_hcas_alone_count_efa_devices_and_none_switches_them_off() -> None:
    profile = IB.model_copy(update={"fabric": FabricProfile(hcas=2)})
    ports = [replace(RAIL, device=f"rdmap{n}s0", link_layer="Unknown", card=None) for n in (79, 80)]
    other_port = replace(RAIL, device="mlx5_0")
    assert not fabric.hca_count(profile, node(*ports, other_port)).findings
    assert [one.measured for one in fabric.hca_count(profile, node(ports[0], other_port)).findings] == [
        "1 ports (rdmap79s0)"
    ]
    assert not fabric.port_state(profile, node(*ports)).findings
    assert [
        one.part for one in fabric.port_state(profile, node(ports[0], replace(ports[1], **DOWN))).findings
    ] == ["rdmap80s0 port 1"]
    assert not FabricProfile(hcas=2, link_layer="none").has_adapters
    assert not FabricProfile().has_adapters


def test_the_checks_share_the_rails_of_a_node() -> None:
    own = [one for one in vars(fabric).values() if isinstance(one, Check)]
    assert [one.name for one in own if "rail_majority" in one.facts] == []
    assert len([one for one in own if "node_rails" in one.facts]) == 7
    # what the fact gives goes before what the check could compute
    assert fabric.hca_count(IB, LOST, {}, rails_of(SOUND, IB)).outcome is Outcome.PASSED
    assert fabric.hca_count(IB, LOST).outcome is Outcome.FAILED


def test_a_slower_port_is_of_another_network_only_beside_enough_rails() -> None:
    ports = [replace(port, board=f"board {n}", rate=IB.fabric.rate) for n, port in enumerate(rails())]
    slow = replace(STORAGE[0], board="other", state="ACTIVE", rate=(IB.fabric.rate or 0) / 4)
    assert _counted(node(*ports, slow), IB).ports == tuple(ports)
    down = [replace(port, state="DOWN") for port in ports]
    assert _counted(node(*down, slow), IB).ports == (*down, slow)
    assert _counted(node(*ports[1:], slow), IB).ports == (*ports[1:], slow)
    three = IB.model_copy(update={"fabric": IB.fabric.model_copy(update={"hcas": 3})})
    assert _counted(node(ports[0], *down[1:3], slow), three).ports == (ports[0], *down[1:3], slow)
    assert _counted(node(*ports[:2], down[2], slow), three).ports == (*ports[:2], down[2])


def test_a_rail_that_no_node_has_takes_no_node_out_of_service() -> None:
    """Also where the node lacks a port for storage that the others have."""
    profile, sick = named(*HERE[:3], "0000:e9:00.0"), node(*rails())
    majority = fabric.active_majority(of_three(sick, node(*rails(), STORAGE[0])))
    (lost,) = fabric.hca_count(profile, sick, majority, rails_of(sick, profile)).findings
    assert (lost.measured, lost.action) == ("no rail: adapter 0000:e9:00.0 is not there", None)


SECOND = replace(RAIL, device="mlx5_1")


@pytest.mark.parametrize(
    ("need", "spare", "kept"),
    [
        (1, {"state": "DOWN", "rate": 1.25}, False),  # the second port of a card, without a cable
        (1, {"link_layer": "Ethernet"}, False),
        (1, {"rate": 12.5}, False),
        (1, {}, True),
        (1, {"state": None, "rate": None, "link_layer": None}, True),  # unknown
        (2, {"state": "DOWN", "rate": 1.25}, True),  # a rail that is down must be tested, and fail
        (0, {"state": "DOWN"}, False),
    ],
)
def test_spare_ports_carry_no_traffic(need: int, spare: dict[str, Any], kept: bool) -> None:
    ports = (RAIL, replace(SECOND, **spare))
    assert in_use(Rails(need, ports), IB.fabric) == (ports if kept else (RAIL,))
