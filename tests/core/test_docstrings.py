"""The examples in docstrings of core."""

from __future__ import annotations

import doctest
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core import check, hostlist, part, sanitize, text, units
from pytest_gpucluster.core import part_commands as by_part

if TYPE_CHECKING:
    from types import ModuleType


@pytest.mark.parametrize("module", [by_part, check, hostlist, part, sanitize, text, units])
def test_examples_hold(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert (outcome.attempted > 0, outcome.failed) == (True, 0)
