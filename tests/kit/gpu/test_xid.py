"""The tables of the checks against a copy written by hand, and what a single word of them decides."""

from __future__ import annotations

from pytest_gpucluster.kit.gpu import xid
from pytest_gpucluster.kit.gpu.xid import Advice


def test_the_process_of_an_xid_is_no_word_of_the_driver() -> None:
    text = "pid=7, name=NETIR Fatal, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001)"
    assert xid.lookup(149, text).advice is Advice.IGNORE
    for name in ("nonfatal", "NETIR_BER_EVENT Nonfatal", "<unknown>"):
        text = f"pid=7, name={name}, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)"
        assert xid.lookup(149, text).advice is Advice.RESET
