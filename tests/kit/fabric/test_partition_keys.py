"""Partition keys: full membership includes limited membership."""

from __future__ import annotations

import doctest

from pytest_gpucluster.kit.fabric import partition_keys


def test_examples() -> None:
    assert doctest.testmod(partition_keys).failed == 0
