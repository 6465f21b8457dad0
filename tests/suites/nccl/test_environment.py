"""What NCCL's variables do to a node: deviations, warnings, and images of clouds that are healthy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpucluster.config import load_profile
from pytest_gpucluster.config.models import Group, Profile
from pytest_gpucluster.core.check import Action, Outcome, Verdict
from pytest_gpucluster.kit.nccl.nccl_names import NameFilter
from pytest_gpucluster.suites.nccl import environment as checks
from pytest_gpucluster.suites.nccl.environment_facts import HcaPort, NcclEnvironment, Setting
from pytest_gpucluster.suites.nccl.environment_rules import number
from pytest_gpucluster.suites.nccl.image_environment import image_environment

H200, T4 = load_profile("h200-8"), load_profile("sandbox-t4")
PORTS = tuple(HcaPort(f"mlx5_{n}", 1, "ACTIVE", "InfiniBand") for n in range(8))
STORAGE = HcaPort("mlx5_bond_0", 1, "ACTIVE", "Ethernet")
NODE = NcclEnvironment(ports=(*PORTS, STORAGE), interfaces=frozenset({"lo", "eno1", "docker0"}), libraries=frozenset())


def judged(found: NcclEnvironment, variables: dict[str, str], *, profile: Profile = H200, image: str = "") -> Verdict:
    return checks.environment(replace(found, environment=variables), {}, profile, {}, image)


def levels(verdict: Verdict) -> tuple[list[str], list[str]]:
    """Return the parts of the findings and of the warnings."""
    return [str(it.part) for it in verdict.findings], [str(it.part) for it in verdict.advisories]


def of(
    found: NcclEnvironment, setting: str, *, profile: Profile = H200, image: str = ""
) -> tuple[list[str], list[str]]:
    """Judge one variable, NAME=VALUE."""
    name, _, value = setting.partition("=")
    return levels(judged(found, {name: value}, profile=profile, image=image))


DEVIATIONS = """
NCCL_P2P_DISABLE=1 NCCL_P2P_LEVEL=LOC NCCL_P2P_LEVEL=0 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 NCCL_NET=Socket
NCCL_IB_HCA=mlx5_0 NCCL_IB_HCA==mlx5_0,mlx5_1 NCCL_IB_HCA=^mlx5_3 NCCL_IB_HCA=ibp NCCL_IB_HCA=mlx5_0:2
NCCL_SOCKET_IFNAME=eth NCCL_SOCKET_IFNAME="eno1" NCCL_SOCKET_IFNAME=^eno,docker NCCL_SOCKET_IFNAME==eno
"""
WITHOUT_COST = """
NCCL_P2P_DISABLE=0 NCCL_P2P_LEVEL=NVL NCCL_SHM_DISABLE=0 NCCL_IB_DISABLE=0 NCCL_IB_DISABLE=no NCCL_NET=IB
NCCL_IB_HCA=mlx5 NCCL_IB_HCA=^mlx5_bond NCCL_IB_HCA=
NCCL_IB_HCA==mlx5_0:1,mlx5_1:1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7
NCCL_SOCKET_IFNAME=^docker,lo,veth NCCL_SOCKET_IFNAME==eno1,eth0 NCCL_SOCKET_IFNAME=lo
NCCL_DEBUG=WARN NCCL_DEBUG=version NCCL_NVLS_ENABLE=1 NCCL_NET_GDR_LEVEL=PIX NCCL_NET_GDR_LEVEL=5
NCCL_CUMEM_ENABLE=1 NCCL_IB_TIMEOUT=22 NCCL_NET_PLUGIN=none NCCL_CROSS_NIC=0 NCCL_PXN_DISABLE=0
"""
ON_PURPOSE = """
NCCL_DEBUG=INFO NCCL_DEBUG=trace NCCL_NVLS_ENABLE=0 NCCL_PROTO=LL NCCL_ALGO=Ring NCCL_MIN_NCHANNELS=32
NCCL_NET_GDR_LEVEL=LOC NCCL_NET_PLUGIN=ofi NCCL_CUMEM_ENABLE=0 NCCL_TUNER_PLUGIN=libnccl-ofi-tuner.so
NCCL_PXN_DISABLE=1 NCCL_COMM_ID=10.0.0.1:29500 NCCL_MAX_NCHANNELS=8 NCCL_MIN_CTAS=4 NCCL_MAX_CTAS=8
NCCL_NTHREADS=256 NCCL_BUFFSIZE=1 NCCL_NET_GDR_READ=0 NCCL_DMABUF_ENABLE=0 NCCL_CHECK_POINTERS=1
"""


@pytest.mark.parametrize("setting", DEVIATIONS.split())
def test_a_value_with_which_no_node_of_this_hardware_works_well_is_a_deviation(setting: str) -> None:
    name, _, value = setting.partition("=")
    verdict = judged(NODE, {name: value})
    assert (levels(verdict), verdict.action) == (([setting], []), Action.CONFIGURE)
    assert str(verdict.findings[0].expected).endswith(f"env.html#{name.lower().replace('_', '-')}")


def test_a_value_without_a_cost_is_not_mentioned() -> None:
    for setting in WITHOUT_COST.split():
        assert of(NODE, setting) == ([], []), setting


@pytest.mark.parametrize("setting", ON_PURPOSE.split())
def test_a_value_that_sites_set_on_purpose_is_a_warning(setting: str) -> None:
    assert of(NODE, setting) == ([], [setting])


def test_hardware_without_the_path_is_no_deviation() -> None:
    assert levels(judged(NODE, {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}, profile=T4)) == ([], [])
    assert of(NODE, "NCCL_P2P_DISABLE=1", profile=T4) == ([], ["NCCL_P2P_DISABLE=1"])
    for bare in (load_profile("generic"), H200.model_copy(update={"gpu": None})):
        assert judged(NODE, {"NCCL_P2P_DISABLE": "1"}, profile=bare).outcome is Outcome.NOT_APPLICABLE


def test_ports_that_are_down_are_not_missed() -> None:
    down = replace(NODE, ports=(replace(PORTS[0], state="DOWN"), *PORTS[1:]))
    seven = "NCCL_IB_HCA==" + ",".join(port.device for port in PORTS[1:])
    assert of(down, seven) == ([], [])
    assert of(NODE, seven) == ([seven], [])


def test_names_that_cannot_be_compared_are_not_checked() -> None:
    for name in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"):
        assert judged(NcclEnvironment(), {name: "mlx5"}).outcome is Outcome.NOT_CHECKED


@pytest.mark.parametrize("name", ["NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE"])
def test_a_file_that_tasks_cannot_read(name: str) -> None:
    setting = f"{name}=/opt/topo.xml"
    lost, there = (replace(NODE, readable={"/opt/topo.xml": it}) for it in (False, True))
    assert of(lost, setting) == ([setting], [])
    assert of(lost, setting, image="/img.sqsh") == ([], [setting])
    assert of(there, setting) == ([], [])


@pytest.mark.parametrize("libraries", [frozenset({"libnccl-net-ofi.so"}), frozenset({"libnccl-net-ofi.so.1"}), None])
def test_a_plugin_that_the_loader_finds_or_may_find(libraries: frozenset[str] | None) -> None:
    assert of(replace(NODE, libraries=libraries), "NCCL_NET_PLUGIN=ofi") == ([], [])


# Variables of real images and guides; the files and names that they need exist on the node
AWS = """
NCCL_PROTO=simple NCCL_NET_GDR_LEVEL=LOC NCCL_SOCKET_IFNAME=^docker,lo,veth NCCL_DEBUG=INFO
NCCL_BUFFSIZE=8388608 NCCL_P2P_NET_CHUNKSIZE=524288
NCCL_TUNER_PLUGIN=/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-ofi-tuner.so
"""
AZURE = """
NCCL_IB_PCI_RELAXED_ORDERING=1 NCCL_TOPO_FILE=/opt/microsoft/ndv5/topo.xml NCCL_IGNORE_CPU_AFFINITY=1
NCCL_NET_GDR_LEVEL=5 NCCL_SOCKET_IFNAME=eth0 NCCL_IB_HCA=mlx5_ib NCCL_MIN_NCHANNELS=32
NCCL_IB_QPS_PER_CONNECTION=4 NCCL_PXN_DISABLE=1 NCCL_IB_TIMEOUT=22
"""
TCPXO = """
NCCL_CROSS_NIC=0 NCCL_ALGO=Ring,Tree NCCL_PROTO=Simple NCCL_MIN_NCHANNELS=4 NCCL_FASTRAK_IFNAME=enp6s0,enp7s0
NCCL_NET_GDR_LEVEL=PIX NCCL_NVLS_ENABLE=0 NCCL_BUFFSIZE=8388608 NCCL_SOCKET_IFNAME=enp0s12
NCCL_TUNER_PLUGIN=libnccl-tuner.so NCCL_FASTRAK_CTRL_DEV=enp0s12
"""
GIB = """
NCCL_NET=gIB NCCL_CROSS_NIC=0 NCCL_NET_GDR_LEVEL=PIX NCCL_IB_ADAPTIVE_ROUTING=1 NCCL_IB_TC=52
NCCL_CONF_FILE=/usr/local/gib/configs/nccl.a4xmax.conf NCCL_SOCKET_IFNAME=eth0,eth1 NCCL_IB_GID_INDEX=3
"""


@pytest.mark.parametrize(
    ("profile", "settings", "device", "layer"),
    [
        ("azure-nd96isr-h100-v5", AZURE, "mlx5_ib", "InfiniBand"),
        ("gcp-a3-mega", TCPXO, "", ""),
        ("gcp-a4", GIB, "mlx5_", "Ethernet"),
        ("aws-g4dn", AWS, "", ""),
    ],
)
def test_healthy_images_of_clouds_fail_no_check(profile: str, settings: str, device: str, layer: str) -> None:
    variables = dict(setting.split("=", 1) for setting in settings.split())
    found = NcclEnvironment(
        ports=tuple(HcaPort(f"{device}{n}", 1, "ACTIVE", layer) for n in range(8 if device else 0)),
        interfaces=frozenset({"lo", "eth0", "eth1", "enp0s12", "docker0"}),
        readable={value: True for value in variables.values() if value.startswith("/")},
        libraries=frozenset(),
    )
    verdict = judged(found, variables, profile=load_profile(profile))
    assert (verdict.outcome, verdict.findings) == (Outcome.PASSED, ())


def test_what_the_cluster_file_sets_is_intended() -> None:
    found = replace(NODE, environment={"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "INFO"})
    stated = {"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "WARN"}
    assert levels(checks.environment(found, {}, H200, stated, "")) == ([], ["NCCL_DEBUG=INFO"])


GROUP = Group(nodes="n[1-4]", profile=H200)


def test_a_node_that_differs_from_the_majority_is_named() -> None:
    usual = NcclEnvironment({"NCCL_IB_TC": "106", "NCCL_IB_HCA": "mlx5"}, ports=PORTS)
    nodes = dict.fromkeys(("n1", "n2", "n3", "n4"), usual)
    nodes["n3"] = replace(usual, environment={"NCCL_IB_HCA": "mlx5_"})
    norms = checks.EnvironmentsOfAll(nodes)
    assert norms.usual(GROUP) is norms.usual(GROUP), "computed once"
    parts = {it: levels(checks.environment(nodes[it], norms.usual(GROUP), H200, {}, "")) for it in nodes}
    assert parts == dict.fromkeys(nodes, ([], [])) | {"n3": (["NCCL_IB_TC"], [])}


def test_a_variable_with_a_finding_of_its_own_is_not_compared_too() -> None:
    usual = NcclEnvironment(ports=PORTS)
    nodes = dict.fromkeys(("n1", "n2", "n3", "n4"), usual)
    nodes["n3"] = replace(usual, environment={"NCCL_P2P_DISABLE": "1"})
    norms = checks.EnvironmentsOfAll(nodes).usual(GROUP)
    assert len(checks.environment(nodes["n3"], norms, H200, {}, "").findings) == 1
    assert checks.environment(usual, norms, H200, {}, "").outcome is Outcome.PASSED


def test_a_line_without_effect_is_a_warning() -> None:
    found = replace(NODE, ignored=(("/etc/nccl.conf:2", "export NCCL_IB_TC=106"),))
    assert levels(checks.environment(found, {}, H200, {}, "")) == ([], ["/etc/nccl.conf:2"])


def test_the_image_is_judged_with_its_own_files() -> None:
    setting = Setting("NCCL_TOPO_FILE", "/t.xml", "/etc/nccl.conf:1")
    lost = replace(NODE, files=(setting,), readable={"/t.xml": False})
    (finding,) = image_environment(lost, H200, {}).findings
    assert str(finding.measured).endswith("(/etc/nccl.conf:1)")
    assert image_environment(lost, H200, {"NCCL_TOPO_FILE": "/t.xml"}).outcome is Outcome.PASSED


def test_numbers_are_read_as_strtoll_does() -> None:
    read = {"1": 1, " 1": 1, "0x10": 16, "0X1f": 31, "010": 8, "-1": -1, "true": 0, "": 0, "1abc": 1, "0": 0}
    assert {text: number(text) for text in read} == read


@pytest.mark.parametrize(
    ("value", "name", "port", "chosen"),
    [
        ("", "mlx5_0", 1, True),
        ("mlx5_1", "mlx5_10", 1, True),
        ("=mlx5_1", "mlx5_10", 1, False),
        ("^mlx5_1", "mlx5_10", 1, False),
        ("^=mlx5_1", "mlx5_10", 1, True),
        ("mlx5_0:2", "mlx5_0", 1, False),
        ("mlx5_0:", "mlx5_0", 2, True),
        ("=mlx5_0:1:0:1", "mlx5_0", 1, True),
        ("mlx5_0:x", "mlx5_0", 1, False),
    ],
)
def test_lists_of_names_select_as_nccl_does(value: str, name: str, port: int | None, chosen: bool) -> None:
    assert NameFilter.parse(value).selects(name, port) is chosen
