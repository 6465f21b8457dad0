"""The tables of the checks against a copy written by hand, and what a single word of them decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kernel_logs import fold

from pytest_gpucluster.kit.gpu import xid
from pytest_gpucluster.kit.gpu import xid_check as xid_checks
from pytest_gpucluster.kit.gpu.xid import Advice

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("", ""),
        ("GPU recovery action changed from 0x0 (None) to 0x1 ()", ""),
        ("changed from 0x0 (None) to 0x1 (GPU Reset Required)", " to GPU Reset Required"),
        ("changed TO 0xA (Drain P2P)", " to Drain P2P"),
        ("changed to x1 (Drain P2P)", ""),
    ],
)
def test_the_words_of_a_recovery_action(text: str, action: str) -> None:
    assert xid.lookup(154, text).meaning == f"the recovery action of the GPU changed{action}"
    assert xid.lookup(153, text).meaning == "DLA timeout"


def test_the_process_of_an_xid_is_no_word_of_the_driver() -> None:
    text = "pid=7, name=NETIR Fatal, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001)"
    assert xid.lookup(149, text).advice is Advice.IGNORE
    for name in ("nonfatal", "NETIR_BER_EVENT Nonfatal", "<unknown>"):
        text = f"pid=7, name={name}, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)"
        assert xid.lookup(149, text).advice is Advice.RESET


def test_a_log_without_an_xid_explains_nothing(tmp_path: Path) -> None:
    assert not xid_checks.explains(fold(tmp_path, "usb 1-1: hello"), 1, None)
