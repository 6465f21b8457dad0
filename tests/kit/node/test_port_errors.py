from __future__ import annotations

import pytest

from pytest_gpucluster.kit.node import port_errors


@pytest.mark.parametrize(
    ("counter", "rate", "seconds", "expected"),
    [
        ("symbol_error", 50.0, 8 * 3600, 10 + 2 * 11_520),  # IBTA: 1e-12 of 400 Gb/s
        ("symbol_error", 25.0, 60, 10 + 24),
        ("port_rcv_errors", 50.0, 0, 10),
        ("link_downed", 50.0, 8 * 3600, 0),
    ],
)
def test_bit_errors_by_rate_and_time(counter: str, rate: float, seconds: float, expected: float) -> None:
    assert port_errors.allowed(counter, rate, seconds) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("counter", "rises", "proved"),
    [
        ("symbol_error", {}, True),
        ("local_link_integrity_errors", {"link_downed": 0}, True),
        ("symbol_error", {"link_downed": 1}, False),
        ("symbol_error", {"link_error_recovery": 1}, False),
        ("link_downed", {}, False),
        ("port_rcv_errors", {}, False),
    ],
)
def test_only_bit_errors_of_a_link_that_stayed_up_prove_a_fault(
    counter: str, rises: dict[str, float], *, proved: bool
) -> None:
    assert port_errors.proves_fault(counter, rises) is proved
