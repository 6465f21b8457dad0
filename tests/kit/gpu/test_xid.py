"""The tables of the checks against a copy written by hand, and what a single word of them decides."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import pytest
from kernel_logs import fold

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.config.models import EnvironmentConfig
from pytest_gpucluster.core.check import Action
from pytest_gpucluster.kit.fabric.facts import Interfaces
from pytest_gpucluster.kit.gpu import xid
from pytest_gpucluster.kit.gpu import xid_check as xid_checks
from pytest_gpucluster.kit.gpu.xid import Advice
from pytest_gpucluster.kit.node.kernel_log import KernelLog
from pytest_gpucluster.suites.fabric import checks as fabric

if TYPE_CHECKING:
    from pathlib import Path

NO_LOG = KernelLog("dmesg", 0, None, None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "the recovery action of the GPU changed"),
        ("GPU recovery action changed from 0x0 (None) to 0x1 ()", "the recovery action of the GPU changed"),
        ("changed from 0x0 (None) to 0x1 (GPU Reset Required)",
         "the recovery action of the GPU changed to GPU Reset Required"),
        ("changed TO 0xA (Drain P2P)", "the recovery action of the GPU changed to Drain P2P"),
        ("changed to x1 (Drain P2P)", "the recovery action of the GPU changed"),
    ],
)  # fmt: skip
def test_the_words_of_a_recovery_action(text: str, shown: str) -> None:
    assert xid.lookup(154, text).meaning == shown
    assert xid.lookup(153, text).meaning == "DLA timeout"


def test_the_process_of_an_xid_is_no_word_of_the_driver() -> None:
    text = "pid=7, name=NETIR Fatal, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001)"
    assert xid.lookup(149, text).advice is Advice.IGNORE
    for name in ("nonfatal", "NETIR_BER_EVENT Nonfatal", "<unknown>"):
        text = f"pid=7, name={name}, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)"
        assert xid.lookup(149, text).advice is Advice.RESET


def test_what_an_advice_asks_for(tmp_path: Path) -> None:
    assert xid.lookup(159).advice is Advice.SOFTWARE
    actions = {entry.action for entry in xid._catalogue().values()}
    assert {action for action in actions if action not in xid._ADVICE} == {
        "NONE",
        "WORKFLOW_NVLINK5_ERR",
        "XID_154",
    }
    assert not xid_checks.explains(fold(tmp_path, "usb 1-1: hello"), 1, None)
    assert xid_checks.ACTIONS == {
        Advice.SUPPORT: Action.MONITOR, Advice.RESET: Action.RESET_GPU, Advice.REBOOT: Action.REBOOT,
        Advice.INSPECT: Action.DRAIN,
    }  # fmt: skip


# --- the fabric ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("10.1.0.0/16", None), ("192.168.0.0/24", None), ("192.168.0.9/24", None), ("172.16.0.0/12", "172.16.0.0/12"),
        (" ib0 , 10.1.0.0/16,", None),
    ],
)  # fmt: skip
def test_one_address_of_the_node_in_a_subnet_is_enough(value: str, printed: str | None) -> None:
    there = Interfaces(
        frozenset({"eth0", "ib0"}),
        frozenset(),
        {
            "eth0": (ipaddress.IPv4Interface("10.1.2.3/16"), ipaddress.IPv4Interface("192.168.0.1/24")),
            "ib0": (ipaddress.IPv4Interface("10.9.0.1/16"),),
        },
    )
    environment = EnvironmentConfig(exports={"OMPI_MCA_oob_tcp_if_include": value})
    findings = fabric.nic_names(there, {"mpi": environment}).findings
    assert [it.measured for it in findings] == ([f"no address in {printed}"] if printed else [])


@pytest.mark.parametrize(
    ("kernel", "sure"),
    [
        ("5.12.0-x", True), ("5.11.22", False), ("4.18.0", False), ("6.1", True), ("5.2", False), (None, False),
        ("linux-6.1", False), ("10.0", True), ("x", False),
    ],
)  # fmt: skip
def test_from_which_kernel_on_dma_buf_is_sure(kernel: str | None, *, sure: bool) -> None:
    assert fabric._registers_dmabufs(kernel) is sure


# --- the kernel log ------------------------------------------------------------------------------------------------


# --- Slurm ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mig"),
    [
        ("gpu:1g.10gb", True), ("gpu:nvidia_a100_1g.5gb", True), ("gpu:1c.3g.20gb", True), ("gpu:3G.40GB", True),
        ("gpu:h200", False), ("gpu:g.5gb", False), ("gpu:1gx5gb", False), ("gpu:1g.gb", False), ("gpu:1.5gb", False),
    ],
)  # fmt: skip
def test_the_names_of_mig_instances(name: str, *, mig: bool) -> None:
    assert NodeInfo("gpu01", "IDLE", gres={name: 7}).allocates_mig is mig
