"""The ledger: stays and failures of parts by serial number, over swaps, returned parts and unreadable numbers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.core.finding import Action, Finding
from pytest_gpucluster.core.part import InstalledPart, Part, gpu, nvlink, port
from pytest_gpucluster.report.history import History
from pytest_gpucluster.report.run_snapshot import Recorded, RecordedItem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.report.ledger import KnownPart

DAY = 86_400.0


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with contextlib.closing(History(tmp_path / "h.sqlite", create=True)) as opened:
        yield opened


def card(serial: str, slot: int = 0, firmware: str = "96.00") -> InstalledPart:
    part = gpu(slot, uuid=f"GPU-{serial}" if serial else "", address=f"0000:{slot:02x}:00.0", serial=serial)
    return InstalledPart(part, "NVIDIA", "692", firmware)


def cable(serial: str, adapter: str = "mlx5_0") -> InstalledPart:
    return InstalledPart(Part("cable", None, adapter, serial=serial, of=port(adapter, None)))


def night(
    day: int,
    parts: Mapping[str, Sequence[InstalledPart]],
    *failed: tuple[str, Part],
    action: Action = Action.DRAIN,
) -> Recorded:
    """Return the run of a night: what its nodes list, and which parts failed on which node."""
    bad = {node for node, _ in failed}
    items = [RecordedItem(node, "gpu.count", "passed") for node in parts]
    items += [
        RecordedItem(node, "gpu.ecc", "failed", "m", action.value, (Finding(part, "1", "0", code="errors"),))
        for node, part in failed
    ]
    fit = frozenset(set(parts) - bad)
    return Recorded(
        f"run{day:03}",
        "prod",
        False,
        day * DAY,
        day * DAY + 60,
        1 if bad else 0,
        "",
        tuple(items),
        (),
        fit,
        parts=parts,
    )


def known(history: History, name: str) -> KnownPart:
    (found,) = history.ledger.find(name, simulated=False)
    return found


def stays(history: History, name: str) -> list[tuple[str, str, float, float | None]]:
    return [
        (it.node, it.slot, it.since / DAY, it.until and it.until / DAY) for it in known(history, name).stays
    ]


def test_a_gpu_that_moves_takes_its_record_along_and_is_named_at_once(history: History) -> None:
    history.add(night(1, {"a": [card("1")], "b": [card("2")]}))
    history.add(night(2, {"a": [card("1")], "b": [card("2")]}, ("a", nvlink(7, card("1").part))))
    history.add(night(3, {"a": [card("3")], "b": [card("2")]}))
    moved = night(4, {"a": [card("3")], "b": [card("1")]})
    history.add(moved)
    assert stays(history, "1") == [("a", "gpu 0000:00:00.0", 1, 3), ("b", "gpu 0000:00:00.0", 4, None)]
    assert stays(history, "2") == [("b", "gpu 0000:00:00.0", 1, 4)]
    (line,) = history.ledger.news(moved)
    assert all(word in line for word in ("gpu", "1", "came to b", "on a gpu.ecc failed in run run002"))
    quiet = night(5, moved.parts)
    history.add(quiet)
    assert [*history.ledger.news(quiet)] == []
    again = night(6, {"a": [card("3")], "b": [card("1")]}, ("b", card("1").part))
    history.add(again)
    assert ["the fault moved with the part" in it for it in history.ledger.news(again)] == [True]
    assert (known(history, "1").episodes, known(history, "1").is_lemon) == (2, True)


def test_a_fault_that_stays_with_the_slot_accuses_no_second_part(history: History) -> None:
    bad = port("mlx5_0", 1)
    history.add(night(1, {"a": [cable("C1")]}))
    history.add(night(2, {"a": [cable("C1")]}, ("a", bad), action=Action.MONITOR))
    later = night(3, {"a": [cable("C2")]}, ("a", bad), action=Action.MONITOR)
    history.add(later)
    (line,) = history.ledger.news(later)
    assert "C2" in line
    assert "with cable C1 too: the fault stayed with the slot" in line
    assert [known(history, it).is_lemon for it in ("C1", "C2")] == [False, False]


def test_a_fault_that_lasts_is_one_episode_and_one_that_comes_back_another(history: History) -> None:
    for day, bad in enumerate((True, True, False, True), 1):
        run = night(day, {"a": [card("1")]}, *([("a", card("1").part)] if bad else []))
        history.add(run)
        assert [*history.ledger.news(run)] == [], "no other part failed in its slot"
    assert [it.episode for it in known(history, "1").failures] == [1, 1, 2]
    history.keep(1)
    assert len(known(history, "1").failures) == 3, "failures stay when runs are deleted"


def test_what_cannot_be_read_ends_no_stay_and_two_of_a_number_are_no_part(history: History) -> None:
    history.add(night(1, {"a": [card("1"), cable("C1")]}))
    history.add(night(2, {"a": [cable("C1")]}))  # nvidia-smi failed: no GPU is listed
    assert stays(history, "1") == [("a", "gpu 0000:00:00.0", 1, None)]
    history.add(night(3, {"a": [card("2", 1), cable("C1")], "b": [cable("C1")], "c": [card("")]}))
    assert stays(history, "1") == [("a", "gpu 0000:00:00.0", 1, 3)]
    assert stays(history, "C1") == [("a", "cable mlx5_0", 1, 3)], (
        "of two cables with a number it is unknown which"
    )
    assert not history.ledger.find("c", simulated=False)
    history.add(night(4, {"a": [card("1"), cable("C1")]}))
    assert stays(history, "1") == [("a", "gpu 0000:00:00.0", 1, None)], (
        "it was there again, nowhere else between"
    )


def test_a_setting_is_no_failure_of_a_part_and_a_run_is_entered_once(history: History) -> None:
    history.add(night(1, {"a": [card("1")]}, ("a", card("1").part), action=Action.CONFIGURE))
    assert known(history, "1").failures == ()
    whole = night(2, {"a": [card("1")]}, ("a", card("1").part))
    for _ in range(2):
        history.add(whole)
    assert len(known(history, "1").failures) == 1


def test_the_command_shows_a_part_a_node_and_repeat_offenders(
    history: History, capsys: pytest.CaptureFixture[str]
) -> None:
    for day, bad in enumerate((True, False, True), 1):
        history.add(
            night(day, {"a": [card("165"), card("166", 1)]}, *([("a", card("165").part)] if bad else []))
        )
    file = ["--history", str(history.path)]
    for words, shown in (
        (["parts", "165"], ["gpu 165", "part number: 692", "gpu 0000:00:00.0", "run001", "gpu.ecc"]),
        (["parts", "a"], ["165", "166", "0000:01:00.0"]),
        (["parts", "--lemons"], ["165"]),
        (["parts"], ["gpu", "96.00", "2"]),
    ):
        assert cli.main([*words, *file]) == 0
        printed = capsys.readouterr().out
        assert [word for word in shown if word not in printed] == [], printed
    assert cli.main(["parts", "nope", *file]) == 4
    assert "no part with the serial number" in capsys.readouterr().err
