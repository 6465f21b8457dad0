"""Lists in messages."""

from __future__ import annotations

from pytest_gpucluster.core.text import listed, some


def test_an_empty_list_has_a_word() -> None:
    assert [listed(values) for values in ([], [1], ["b", 2])] == ["none", "1", "b, 2"]


def test_a_long_list_is_cut_and_counted() -> None:
    assert [some(range(count), 4) for count in (0, 1, 4, 5)] == [
        "none",
        "0",
        "0, 1, 2, 3",
        "0, 1, 2, 3 and 1 more",
    ]
    assert some(iter(range(10))) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
