"""The section of the cluster file: figures with their source, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pytest_gpucluster.suites.storage.config import GIB, FileSystem, LocalLimit, StorageConfig


def section(*systems: dict[str, Any], **keys: Any) -> StorageConfig:
    return StorageConfig.model_validate({"filesystems": list(systems), **keys})


def test_without_figures_nothing_must_be_reached() -> None:
    (system,) = section({"path": "/shared"}).filesystems
    assert system.kind == "shared"
    assert system.figures() == {}


def test_own_figures_precede_those_of_a_preset_and_each_has_its_source() -> None:
    section = {"path": "/s", "preset": "together", "expect": {"read": "30 GB/s"}}
    figures = FileSystem.model_validate(section).figures()
    assert figures["read"] == (30.0, "storage.expect.read")
    assert figures["write"][0] == pytest.approx(5 * GIB)
    assert "Together AI" in figures["write"][1]


def test_rows_of_the_profile_are_for_local_file_systems_on_their_path() -> None:
    row = {"path": "/raid", "read": "20 GB/s", "write": 9, "source": "lab"}
    stated, of_row = (1.0, "storage.expect.write"), (20.0, "the profile's row of storage: lab")
    for path, kind, known in (
        ("/raid", "local", {"read": of_row, "write": stated}),
        ("/raid/acceptance", "local", {"read": of_row, "write": stated}),
        ("/raid2", "local", {"write": stated}),
        ("/raid", "shared", {"write": stated}),
    ):
        system = FileSystem.model_validate({"path": path, "kind": kind, "expect": {"write": "1 GB/s"}})
        assert system.figures([LocalLimit.model_validate(row)]) == known
    row = {"path": "/", "read_iops": 5, "source": "lab"}  # of every local file system
    local = FileSystem.model_validate({"path": "/raid", "kind": "local"})
    assert local.figures([LocalLimit.model_validate(row)]) == {"read_iops": (5.0, of_row[1])}
    assert local.figures() == {}


@pytest.mark.parametrize(
    ("systems", "keys"),
    [
        ([], {}),
        ([{"path": "relative"}], {}),
        ([{"path": "/a"}, {"path": "/a", "kind": "local"}], {}),
        ([{"path": "/a", "preset": "nobody"}], {}),
        ([{"path": "/a", "expect": {"reads": 1}}], {}),
        ([{"path": "/a", "kind": "local", "preset": "together"}], {}),
        ([{"path": "/a", "kind": "local", "expect": {"read_alone": 1}}], {}),
        ([{"path": "/a", "kind": "local", "expect": {"write_alone": 1}}], {}),
        ([{"path": "/a"}], {"max_use": 1.0}),
        ([{"path": "/a"}], {"budget": 0}),
    ],
)
def test_what_makes_no_sense_is_refused(systems: list[dict[str, Any]], keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        section(*systems, **keys)
