"""The section of the cluster file: figures with their source, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pytest_gpucluster.suites.storage.config import StorageConfig


def section(*systems: dict[str, Any], **keys: Any) -> StorageConfig:
    return StorageConfig.model_validate({"filesystems": list(systems), **keys})


@pytest.mark.parametrize(
    ("systems", "keys"),
    [
        ([], {}),
        ([{"path": "relative"}], {}),
        ([{"path": "/a"}, {"path": "/a", "kind": "local"}], {}),
        ([{"path": "/a", "expect": {"reads": 1}}], {}),
        ([{"path": "/a"}], {"max_use": 0.9}),
        ([{"path": "/a"}], {"budget": 0}),
    ],
)
def test_what_makes_no_sense_is_refused(systems: list[dict[str, Any]], keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        section(*systems, **keys)
