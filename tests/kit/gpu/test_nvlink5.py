"""NVLink 5 errors, decoded by NVIDIA's sheet: messages of real drivers, and forms that the sheet does not hold."""

from __future__ import annotations

import pytest

from pytest_gpucluster.kit.gpu import nvlink5, xid
from pytest_gpucluster.kit.gpu.nvlink5 import BEFORE, SINCE
from pytest_gpucluster.kit.gpu.xid import Advice

CABLE, PEER = "examine the cable", "the peer at the other end"


IGNORE, RESET, OWN = Advice.IGNORE, Advice.RESET, Advice.APPLICATION


# GB200, gpud kmsg_test.go and nvlink_logs_test.go; words of R575 and later by the sheet's second form
@pytest.mark.parametrize(
    ("number", "text", "driver", "advice", "says"),
    [
        (149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001)", BEFORE, IGNORE, CABLE),
        (149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)", BEFORE, RESET, PEER),
        (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)", BEFORE, RESET, "another error causes"),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)", BEFORE, IGNORE, "support if"),
        (149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 01 (0x02B02011 0x00000000)", SINCE, RESET, CABLE),
        # the sheet's "Action 2": the promoted form of an error that is otherwise not fatal
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 02 (0x00000006 0x00000001)", SINCE, IGNORE, "RXPIPE"),
        (145, "RLW_RXPIPE Fatal XC0 i0 Link 02 (0x00000086 0x00000001)", SINCE, RESET, "RXPIPE"),
        (145, "RLW_RXPIPE Fatal XC0 i0 Link 02 (0x000004c2 0x00000001)", BEFORE, RESET, "RXPIPE"),
        (146, "TLW_RX_PIPE1 Fatal XC0 i0 Link 02 (0x0000000b 0x00000004)", SINCE, RESET, "TLW_RX_PIPE1"),
        (150, "MSE Degraded Fatal XC0 i0 Link -1 (0x00000000 0xFFFFFFFF)", BEFORE, RESET, "MSE_DEGRADED"),
    ],
)
def test_messages_of_the_sheet(number: int, text: str, driver: str, advice: Advice, says: str) -> None:
    entry = xid.lookup(number, f"pid=876767, name=ray::WorkerDict, {text}")
    assert (entry.advice, says in entry.meaning) == (advice, True), entry
    found = nvlink5.decode(number, text)
    assert found is not None
    assert found.driver == driver


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (144, "SAW_EGR Nonfatal XC0 i0 Link 00 (0x00000001 0x00000001)"),  # no such unit
        (144, "SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000003)"),  # two errors at once
        (144, "SAW_MVB Nonfatal XC0 i0 Link 00 (0x00000003 0x00000001)"),  # the word of another unit
        (144, "SAW_MVB Nonfatal XC0 i0 Link 00 (0x00000001 0x00000002)"),  # Fatal in the sheet
        (149, "NETIR_MFDE_EVENT Nonfatal XC0 i0 Link 00 (0x00000014 0x4)"),  # "Fatal**": here it is not
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x03f025c6 0x00000000)"),  # a reason of a later driver
        (145, "RLW_RXPIPE Fatal XC0 i0 Link 02 (0x00000006 0x00000001)"),  # Fatal, but not promoted
        (150, "MSE_WATCHDOG Fatal XC0 i0 Link 00 (0x00000000)"),  # one register
        (149, ""),
    ],
)
def test_a_form_that_the_sheet_does_not_hold_is_a_warning(number: int, text: str) -> None:
    entry = xid.lookup(number, text)
    assert (entry.fails, entry.warns) == (False, True)
    assert "which NVIDIA's sheet does not hold" in entry.meaning


def test_the_word_shows_the_driver_that_printed_it() -> None:
    rules = [rule for group in nvlink5.rules().values() for rule in group]
    assert len(rules) == 94 + 3 + 2  # the sheet's "Action 2", and both states of "MSE Degraded"
    for rule in rules:
        old, new = (int(rule.subcode + bits.zfill(20), 2) for bits in (rule.before_r575, rule.since_r575))
        assert (rule.driver(old), rule.driver(new)) == (BEFORE, SINCE if old != new else BEFORE)
        assert rule.investigate in nvlink5.ADVICE
    no_bit = {rule.xid for rule in rules if rule.before_r575.endswith(rule.since_r575)}
    assert no_bit == {150}
