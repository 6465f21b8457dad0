"""Hostlists of the sandbox's names."""

from __future__ import annotations

import pytest

from slurm_sandbox.hostlist import expand, fold


@pytest.mark.parametrize(
    ("hostlist", "names"),
    [
        ("gpu01", ("gpu01",)),
        ("gpu02,gpu01,gpu02", ("gpu01", "gpu02")),
        ("gpu[03-05,01],login", ("gpu01", "gpu03", "gpu04", "gpu05", "login")),
        ("gpu[1]", ("gpu1",)),
        ("gpu[099-101]", ("gpu099", "gpu100", "gpu101")),
    ],
)
def test_expand(hostlist: str, names: tuple[str, ...]) -> None:
    assert expand(hostlist) == names


@pytest.mark.parametrize(
    "hostlist", ["", "gpu[01", "gpu01,,login", "gpu[a-b]", "gpu[01]x", "gpu[1-99999999]", "gpu[٣]", "a b", "@all"]
)
def test_what_is_no_hostlist_is_refused(hostlist: str) -> None:
    with pytest.raises(ValueError, match="not a hostlist"):
        expand(hostlist)


@pytest.mark.parametrize(
    ("names", "hostlist"),
    [
        ([], ""),
        (["gpu02", "gpu01"], "gpu[01-02]"),
        (["gpu07"], "gpu07"),
        (["gpu01", "gpu03", "gpu04", "login"], "gpu[01,03-04],login"),
        (["gpu9", "gpu10"], "gpu9,gpu10"),
        ([f"leaf{number:02}" for number in range(1, 17)], "leaf[01-16]"),
    ],
)
def test_fold(names: list[str], hostlist: str) -> None:
    assert fold(names) == hostlist
