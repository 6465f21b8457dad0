"""Bracket lists of nodes."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.core import hostlist


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


def refusal(text: str) -> str:
    with pytest.raises(ValueError, match="hostlist") as caught:
        hostlist.expand(text)
    return str(caught.value)


def test_what_is_printed_of_a_list_that_is_refused() -> None:
    long = "n" * 90
    assert refusal(f"{long}[0-65536]") == f"hostlist '{'n' * 60}' names 65537 nodes, more than 65536"
    assert refusal(long + "7" * 19) == f"not a hostlist: '{'n' * 60}': a number of more than 18 digits"
    assert refusal("gpu 01") == "not a hostlist: 'gpu 01' ('gpu 01' is no node name)" or "(" in refusal(
        "gpu 01"
    )
    assert refusal(f"{long};") == f"not a hostlist: '{'n' * 80}' ('{'n' * 40}' is no node name)"
    assert refusal(f"{long}[1").startswith(f"not a hostlist: '{'n' * 80}' (")
    assert refusal("g[1-٣]" + long) == f"not a hostlist: 'g[1-٣]{'n' * 54}': node names are ASCII"
    assert refusal("g[5-1]").startswith("not a hostlist: 'g[5-1]' (")


def test_how_many_nodes_a_list_may_name() -> None:
    """Ranges and commas in a bracket add up, brackets of a name multiply, names add up."""
    for text, count in (
        ("g[1-4,7,9-10]", 7),
        ("r[1-3]g[1-4,6]", 15),
        ("r[1-3]g[1-4],l,m[5-6]", 15),
        ("g[007]", 1),
        ("g", 1),
    ):
        assert len(hostlist.expand(text)) == count
        assert hostlist._span(text) >= count
    spans = {
        "g[1-4,7,9-10]": 3 + 1 + 2 + 1,  # an upper bound
        "r[1-3]g[1-4,6]": 3 * 5,
        "r[1-3]g[1-4],l,m[5-6]": 12 + 1 + 2,
        "g[5-1]": 1,
        "g,h": 2,
        "g[1-65536]": 65536,
        f"g[0-{'9' * 19}]": 999999999999999999 + 1,
    }
    assert {text: hostlist._span(text) for text in spans} == spans


def test_a_list_of_as_many_nodes_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostlist, "MAX_NODES", 6)
    assert len(hostlist.expand("g[1-6]")) == 6
    assert refusal("g[1-7]") == "hostlist 'g[1-7]' names 7 nodes, more than 6"


def test_names_of_nodes() -> None:
    for text in ("a", "_a", "0", "A-b_c.d9", "n" * 253, "gpu" + "1" * 18):
        assert hostlist.is_name(text)
        assert hostlist.expand(text) == (text,)
    assert hostlist.is_name("n" * 254) is False
    for text in ("", "-a", ".a", "a b", "a/b", "a\n", "é", "a@b"):
        assert hostlist.is_name(text) is False


def test_a_blank_list_names_no_node() -> None:
    assert hostlist.expand(" \n") == ()


@pytest.mark.parametrize("text", ["gpu[01", "gpu[x]", "a[1-"])
def test_what_is_no_name_is_not_folded(text: str) -> None:
    with pytest.raises(ValueError, match=r"^no names of nodes: "):
        hostlist.fold([text, "b"])


def test_names_for_a_message_are_folded_or_listed() -> None:
    cases: tuple[list[str], ...] = ([], ["n2", "n1"], ["b[", "a["])
    assert [hostlist.shown(names) for names in cases] == ["none", "n[1-2]", "a[, b["]
    assert hostlist.shown(set(), none="") == ""
