"""A kernel log that is read by sudo, and a sudo that does not do it."""

from __future__ import annotations

import pytest

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.node import kernel_log


@pytest.mark.parametrize(
    "printed",
    [
        "sudo: a password is required",
        "sh: 1: sudo: not found",
        "Sorry, user ops is not allowed to execute '/bin/sh -c dmesg' as root on gpu01.",
        "ops is not in the sudoers file.",
    ],
)
def test_a_sudo_that_is_not_ours_is_named(printed: str) -> None:
    with pytest.raises(NotAvailable, match="needs NOPASSWD"):
        kernel_log.kernel_log_of(()).parse(Answer("x", 1, b"", printed.encode()))
