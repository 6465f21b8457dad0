"""The tables of the checks against a copy written by hand, and what a single word of them decides."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import pytest
from kernel_logs import fold

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.config.models import EnvironmentConfig
from pytest_gpucluster.core.check import Action, Finding, Outcome
from pytest_gpucluster.kit import port_errors, xid
from pytest_gpucluster.kit import xid_check as xid_checks
from pytest_gpucluster.kit.kernel_log import Event, KernelLog
from pytest_gpucluster.kit.xid import Advice
from pytest_gpucluster.suites.fabric import checks as fabric
from pytest_gpucluster.suites.fabric.facts import Interfaces
from pytest_gpucluster.suites.os.checks import kernel_log
from pytest_gpucluster.suites.slurm import checks as slurm

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


@pytest.mark.parametrize(
    ("text", "nonfatal"),
    [
        ("Nonfatal", True), ("Non-fatal", True), ("a NON-FATAL b", True), ("Fatal", False), ("xnonfatal", False),
        ("nonfatality", False), ("non--fatal", False),
    ],
)  # fmt: skip
def test_nonfatal(text: str, *, nonfatal: bool) -> None:
    assert xid.nonfatal(text) is nonfatal


def test_the_process_of_an_xid_is_no_word_of_the_driver() -> None:
    text = "pid=7, name=NETIR Fatal, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001)"
    assert xid.lookup(149, text).advice is Advice.IGNORE
    for name in ("nonfatal", "NETIR_BER_EVENT Nonfatal", "<unknown>"):
        text = f"pid=7, name={name}, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)"
        assert xid.lookup(149, text).advice is Advice.RESET


def test_what_an_advice_asks_for(tmp_path: Path) -> None:
    assert not xid_checks.explains(fold(tmp_path, "usb 1-1: hello"), 1, None)
    assert xid_checks.ACTIONS == {
        Advice.RESET: Action.RESET_GPU, Advice.REBOOT: Action.REBOOT, Advice.SUPPORT: Action.DRAIN
    }  # fmt: skip


# --- the fabric ----------------------------------------------------------------------------------------------------


def test_the_tables_of_the_fabric() -> None:
    assert (fabric.DMABUF_KERNEL, fabric._registers_dmabufs("5.12")) == ((5, 12), True)
    assert (fabric.ROCE_V2, fabric.GID_BY_NCCL) == ("RoCE v2", "-1")
    assert fabric.NO_PORT == "the node has no port (see fabric.hca_count)"
    assert fabric.NONE_ACTIVE == "no port is active (see fabric.port_state)"
    assert port_errors.USUAL == {
        "symbol_error": 10, "link_error_recovery": 10, "link_downed": 10, "port_rcv_errors": 10,
        "port_rcv_remote_physical_errors": 100, "port_xmit_discards": 100, "local_link_integrity_errors": 10,
        "excessive_buffer_overrun_errors": 10, "VL15_dropped": 100,
    }  # fmt: skip
    assert port_errors.CAUSED_ELSEWHERE == (
        "port_rcv_remote_physical_errors",
        "port_xmit_discards",
        "VL15_dropped",
    )
    assert (port_errors.LINK_LOST, port_errors.BIT_ERRORS) == (
        ("link_downed", "link_error_recovery"),
        ("symbol_error", "local_link_integrity_errors"),
    )
    assert {"nvidia_peermem", "nv_peer_mem", "efa_nv_peermem"} == fabric.PEER_MODULES
    assert (fabric.LINK_UP, fabric.NEAR) == (("LinkUp", "<unknown>", None), ("PIX", "PXB"))
    assert pytest.approx(0.016) == port_errors.ERRORS_PER_GB
    assert set(fabric.RULES) == {
        "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES",
        "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("10.1.0.0/16", None), ("192.168.0.0/24", None), ("192.168.0.9/24", None), ("172.16.0.0/12", "172.16.0.0/12"),
        (" ib0 , 10.1.0.0/16,", None),
    ],
)  # fmt: skip
def test_one_address_of_the_node_in_a_subnet_is_enough(value: str, said: str | None) -> None:
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
    assert [it.measured for it in findings] == ([f"no address in {said}"] if said else [])


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


@pytest.mark.parametrize(
    ("text", "uncorrected"),
    [
        ("1 UE memory", True), ("1 CE memory", False), ("UE", True), ("a|UC|b", True), ("[UC]", True), ("DUE", False),
        ("Uncorrected", True), ("event severity: FATAL", True), ("Deferred error", True), ("recoverable", True),
        ("Machine Check Exception", True), ("Machine Check Exception: 5", False), ("corrected", False),
        ("Machine Check: 0 Bank 7: a000000000000000", True), ("Machine Check: 0 Bank 7: 8000000000000000", False),
        ("Machine Check: Bank 7: 0x2000000000000000 fatal", True),
        ("Machine Check Event: 0x1 Bank 12: dc00000000000000 fatal", False),
        ("machine check: 0 bank 7: bd80000000100134", True), ("Machine Check: 0 Bank 7: bd8 fatal", True),
        ("Machine Check: 0x1f Bank 7: 0xbd80000000100134", True), ("Machine Check: Bank 7: bd80000000100134", True),
        ("Machine Check Exception: from an unknown source", True), ("EDAC MC0: 1 UE", True), ("MC18_STATUS[UE|", True),
        ("Machine Check: 0 Bank x: bd80000000100134", False), ("Machine Check: 0 Bank : bd80000000100134", False),
        ("Machine Check:  Bank 7: bd80000000100134", False), ("EDAC MC0: 1 CE deferred", True), ("QUEUE", False),
    ],
)  # fmt: skip
def test_what_is_an_uncorrected_error(text: str, *, uncorrected: bool) -> None:
    assert kernel_log._uncorrected(text) is uncorrected


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("fallen off the bus", Action.REBOOT), ("GPU is lost", Action.REBOOT), ("lost from the bus", Action.REBOOT),
        ("RmInitAdapter failed", Action.REBOOT), ("Cannot initialize the device", Action.MONITOR),
        ("cannot ATTACH gpu", Action.MONITOR), ("copy vbios", Action.MONITOR),
        ("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:", Action.MONITOR),
        ("NV_ERR_MEMORY_ERROR", Action.RESET_GPU), ("GSP timeout *", Action.RESET_GPU), ("GSP timeout", None),
        ("I/O regions are invalid", None), ("something else", None), ("NV_ERR_RESET_REQUIRED", Action.RESET_GPU),
        ("rm_init_adapter failed", Action.REBOOT), ("probe routine failed", Action.MONITOR),
        ("is probably locked", Action.RESET_GPU), ("likely needs to be reset", Action.RESET_GPU),
        ("Heartbeat timed out", Action.RESET_GPU), ("memory subsystem error detected", Action.RESET_GPU),
    ],
)  # fmt: skip
def test_what_the_drivers_words_ask_for(text: str, action: Action | None) -> None:
    assert kernel_log._of_driver(text) is action


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        ("AER: Corrected error received", True), ("AER: Correctable error", True), ("AER: Uncorrected", False),
        ("Uncorrectable", False), ("first error is reported first", True), ("found no error details", True),
        ("correction", False), ("correctedx", False), ("CORRECTABLE error", True),
    ],
)  # fmt: skip
def test_which_lines_of_pcie_are_of_corrected_errors(text: str, *, corrected: bool) -> None:
    assert kernel_log._harmless(Event("pcie", 1, 0.0, 0.0, text), NO_LOG) is corrected


@pytest.mark.parametrize(
    ("text", "no_medium"),
    [
        ("I/O error, dev sr0", True), ("dev fd0", True), ("device loop3", True), ("dev nbd12", True),
        ("dev sda", False),
        ("udev sr0", False), ("dev srx", False), ("devx sr0", False),
    ],
)  # fmt: skip
def test_devices_without_a_medium(text: str, *, no_medium: bool) -> None:
    assert kernel_log._harmless(Event("io", 1, 0.0, 0.0, text), NO_LOG) is no_medium


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("[NV_ERR_NO_MEMORY]", True),
        ("ctxBufPoolReserve: Failed to reserve memory", True),
        ("NV_ERR_NO", False),
    ],
)
def test_a_gpu_that_is_full(text: str, *, full: bool) -> None:
    assert kernel_log._harmless(Event("nvrm", 1, 0.0, 0.0, text), NO_LOG) is full
    assert kernel_log._harmless(Event("filesystem", 1, 0.0, 0.0, text), NO_LOG) is False


@pytest.mark.parametrize(
    ("text", "aborted"),
    [
        ("nvme nvme0: I/O 5 QID 1 timeout, aborting", True), ("nvme nvme12: I/O timeout, aborting req_op", True),
        ("nvme nvmex: I/O 5 timeout, aborting", False), ("nvme nvme: I/O 5 timeout, aborting", False),
        ("nvme nvme0: I/O 5 QID 1 timeout, reset controller", False), ("nvme nvme0: Admin timeout, aborting", False),
    ],
)  # fmt: skip
def test_which_command_of_a_disk_was_aborted(text: str, *, aborted: bool) -> None:
    words = "no disk command that times out; more lines follow if the abort failed"
    assert kernel_log._warning(Event("io", 1, 0.0, 0.0, text), NO_LOG) == (words if aborted else "")


def test_a_finding_of_the_kernel_log_word_by_word(tmp_path: Path) -> None:
    line = "blk_update_request: I/O error, dev sda, sector 5"
    verdict = kernel_log.kernel_log(fold(tmp_path, line, line))
    assert verdict.findings == (
        Finding("kernel log: io", f"{line} (2 times, last 2 s after boot)", "no I/O error"),
    )
    assert verdict.action is Action.MONITOR


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


def test_the_words_of_slurm() -> None:
    assert slurm.FORGOTTEN == "Slurm no longer knows the job"
    assert pytest.approx(0.85) == slurm.MEMORY_SHARE
    assert slurm.known("n1", None).findings == (Finding("n1", "not known to Slurm", "a node of slurm.conf"),)
    assert slurm.known("n1", None).outcome is Outcome.FAILED
