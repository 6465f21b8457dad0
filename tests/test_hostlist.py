"""Bracket lists of nodes."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster import hostlist


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", ()),
        ("gpu01", ("gpu01",)),
        ("gpu[09-11]", ("gpu09", "gpu10", "gpu11")),
        ("b,a,a", ("a", "b")),
        ("rack[1-2]gpu[1-2]", ("rack1gpu1", "rack1gpu2", "rack2gpu1", "rack2gpu2")),
        ("n[1,3-4].site.example", ("n1.site.example", "n3.site.example", "n4.site.example")),
    ],
)
def test_expand(text: str, nodes: tuple[str, ...]) -> None:
    assert hostlist.expand(text) == nodes


def test_ranges_beside_each_other_add_up() -> None:
    assert len(hostlist.expand("gpu[001-300],cpu[001-300]")) == 600


@pytest.mark.parametrize(
    "text",
    [
        "gpu[1-70000]",
        "r[1-300]g[1-300]",
        "gpu[1-99999999999999999999]",
        "gpu[0-" + "9" * 5000 + "]",
        "x," * 70_000,
    ],
)
def test_a_huge_list_is_refused_before_it_is_built(text: str) -> None:
    with pytest.raises(ValueError, match="more than 65536") as caught:
        hostlist.expand(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["gpu[1", "gpu]1[", "@all", "a b", "gpu[5-1]", "../x", "gpu01;reboot", "$(id)"]
)
def test_what_is_no_hostlist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a hostlist"):
        hostlist.expand(text)


@given(st.sets(st.from_regex(r"[a-z]{1,4}[0-9]{1,3}", fullmatch=True), min_size=1, max_size=30))
def test_fold_is_read_back(nodes: set[str]) -> None:
    assert set(hostlist.expand(hostlist.fold(nodes))) == nodes


def test_examples_of_the_docstrings() -> None:
    outcome = doctest.testmod(hostlist)
    assert outcome.attempted
    assert not outcome.failed


@pytest.mark.parametrize(
    "text",
    ["gpu" + "7" * 33 + "[1-20],l", "a[1-9]77777777777[1-9]", "--help", ".hidden", "gpu[" + "9" * 30 + "]"],
)
def test_what_is_no_name_and_no_sane_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="hostlist"):
        hostlist.expand(text)
