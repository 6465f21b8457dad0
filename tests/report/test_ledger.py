"""The ledger: stays and failures of parts by serial number, over swaps, returned parts and unreadable numbers."""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.core.finding import Action, Finding
from pytest_gpucluster.core.part import InstalledPart, Part, gpu, nvlink, port
from pytest_gpucluster.report.history.run_snapshot import Recorded, RecordedItem
from pytest_gpucluster.report.history.store import History

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.report.history.ledger import KnownPart

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
    day: int, parts: Mapping[str, Sequence[InstalledPart]], *failed: tuple[str, Part], action: Action = Action.DRAIN
) -> Recorded:
    """Return the run of a night: what its nodes list, and which parts failed on which node."""
    bad = {node for node, _ in failed}
    items = [RecordedItem(node, "gpu.ecc", "passed") for node in parts if node not in bad]
    items += [
        RecordedItem(node, "gpu.ecc", "failed", "m", action.value, (Finding(part, "1", "0", code="errors"),))
        for node, part in failed
    ]
    at, fit = day * DAY, frozenset(set(parts) - bad)
    return Recorded(f"run{day:03}", "prod", False, at, at + 60, int(bool(bad)), "", tuple(items), (), fit, parts=parts)


def known(history: History, name: str) -> KnownPart:
    (found,) = history.ledger.find(name, simulated=False)
    return found


def stays(history: History, name: str) -> list[tuple[str, str, float, float | None]]:
    return [(it.node, it.slot, it.since / DAY, it.until and it.until / DAY) for it in known(history, name).stays]


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
    again = night(5, {"a": [card("3")], "b": [card("1")]}, ("b", card("1").part))
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
        history.add(night(day, {"a": [card("1")]}, *([("a", card("1").part)] if bad else [])))
    assert [it.episode for it in known(history, "1").failures] == [1, 1, 2]
    history.keep(1)
    assert len(known(history, "1").failures) == 3, "failures stay when runs are deleted"
    history.add(replace(night(5, {"a": [card("1")]}), items=(RecordedItem("a", "os.drift", "passed"),)))
    history.add(night(6, {"a": [card("1")]}, ("a", card("1").part)))
    assert known(history, "1").episodes == 2, "a run without the check shows no repair"


def test_what_cannot_be_read_ends_no_stay_and_two_of_a_number_are_no_part(history: History) -> None:
    history.add(night(1, {"a": [card("1"), cable("C1")]}))
    history.add(night(2, {"a": [cable("C1")]}))  # nvidia-smi failed: no GPU is listed
    assert stays(history, "1") == [("a", "gpu 0000:00:00.0", 1, None)]
    history.add(night(3, {"a": [card("2", 1), cable("C1")], "b": [cable("C1")], "c": [card("")]}))
    assert stays(history, "1") == [("a", "gpu 0000:00:00.0", 1, 3)]
    assert stays(history, "C1") == [("a", "cable mlx5_0", 1, 3)], "of two cables with a number it is unknown which"
    assert not history.ledger.find("c", simulated=False)
    history.add(night(4, {"a": [card("1"), cable("C1")]}))
    assert stays(history, "1") == [("a", "gpu 0000:00:00.0", 1, None)], "it was there again, nowhere else between"


def test_a_lost_part_fails_in_its_slot_and_its_own_cluster(history: History) -> None:
    rest = {"a": [card("2", 1)]}
    history.add(night(1, {"a": [card("1"), *rest["a"]]}))
    history.add(replace(night(1, {"a": [card("9")]}), cluster="other"))
    for day, part in enumerate((gpu(None, address="0000:00:00.0"), card("1").part), 2):
        history.add(night(day, rest, ("a", part)))
    assert not known(history, "9").failures
    assert [(it.slot, it.episode) for it in known(history, "1").failures] == [("gpu 0000:00:00.0", 1)] * 2
    assert history.ledger.rates(simulated=False, now=3 * DAY)[0][6] == 1


def test_a_log_that_is_imported_later_moves_nothing(history: History) -> None:
    usual = {"a": [card("1")]}
    for day, parts in ((1, usual), (5, usual), (3, {"a": [card("2")], "b": [card("1")]})):
        history.add(night(day, parts))
    assert stays(history, "1") == [("a", "gpu 0000:00:00.0", 1, None)]
    assert stays(history, "2") == [("a", "gpu 0000:00:00.0", 3, 5)]


def test_a_disk_whose_name_changed_at_a_boot_has_not_moved(history: History) -> None:
    for day, names in enumerate(("ab", "ba"), 1):
        disks = [InstalledPart(Part("disk", None, it, f"{n}:0:0:0", f"S{n}7")) for n, it in enumerate(names)]
        history.add(night(day, {"a": disks}, ("a", disks[0].part)))
    assert [len(known(history, it).failures) for it in ("S07", "S17")] == [2, 0]


def test_a_setting_is_no_failure_of_a_part_and_a_run_is_entered_once(history: History) -> None:
    history.add(night(1, {"a": [card("1")]}, ("a", card("1").part), action=Action.CONFIGURE))
    assert known(history, "1").failures == ()
    whole = night(2, {"a": [card("1")]}, ("a", card("1").part))
    for _ in range(2):
        history.add(whole)
    assert len(known(history, "1").failures) == 1


def test_over_a_year_of_swaps_each_stay_is_right_and_each_lemon_is_named_at_its_return(history: History) -> None:
    """Runs of nodes x GPUs; the expectation is kept beside, by hand of the technician."""
    draw, nodes = random.Random(50), [f"n{it:02}" for it in range(12)]
    serial = iter(range(1000, 9999))
    installed = {(node, slot): str(next(serial)) for node in nodes for slot in range(4)}
    expected: dict[str, list[list[Any]]] = defaultdict(list)
    for place, name in installed.items():
        expected[name].append([place, 1, None])
    shelf: list[str] = []
    named = wanted = 0
    for day in range(1, 121):
        failed: list[tuple[str, Part]] = []
        returned: set[str] = set()
        for _ in range(draw.randrange(3) if day > 1 else 0):
            place = draw.choice(sorted(installed))
            out = installed[place]
            if expected[out][-1][1] == day:  # one exchange per slot and night
                continue
            new = shelf.pop(0) if shelf and draw.random() < 0.3 else str(next(serial))
            if new in expected:
                returned.add(new)
            expected[out][-1][2] = day
            expected[new].append([place, day, None])
            installed[place] = new
            shelf.append(out)
        bad = draw.choice(sorted(installed)) if day % 3 == 0 else None
        parts = {
            node: [card(name, slot) for (at, slot), name in sorted(installed.items()) if at == node] for node in nodes
        }
        if bad:
            failed = [(bad[0], card(installed[bad], bad[1]).part)]
        before = {it.serial for it in history.ledger.failed(simulated=False)}
        run = night(day, parts, *failed)
        history.add(run)
        news = [*history.ledger.news(run)]
        lemons = {name for name in returned & before if len({str(it[0]) for it in expected[name]}) > 1}
        wanted += len(lemons)
        named += sum(any(f" {name}:" in line for line in news) for name in lemons)
    assert (named, wanted > 3) == (wanted, True)
    for name, own in expected.items():
        merged: list[list[Any]] = []
        for place, since, until in own:
            if merged and merged[-1][0] == place:
                merged[-1][2] = until  # it came back into the slot that it had last
            else:
                merged.append([place, since, until])
        found = [[it.node, it.slot, it.since / DAY, it.until and it.until / DAY] for it in known(history, name).stays]
        assert found == [[node, f"gpu 0000:{slot:02x}:00.0", since, until] for (node, slot), since, until in merged]


def test_the_command_shows_a_part_a_node_and_repeat_offenders(
    history: History, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["parts", "--lemons", "--history", str(history.path)]) == 0
    assert capsys.readouterr().out == "no part failed again\n"
    for day, bad in enumerate((True, False, True), 1):
        history.add(night(day, {"a": [card("165"), card("166", 1)]}, *([("a", card("165").part)] if bad else [])))
    history.add(night(4, {"a": [card("166", 1)], "b": [card("165")]}))
    file = ["--history", str(history.path)]
    for words, shown in (
        (["parts", "165"], ["gpu 692 165", "part number: 692", "gpu 0000:00:00.0", "run001", "gpu.ecc"]),
        (["parts", "a"], ["165", "166", "0000:01:00.0", "then b gpu 0000:00:00.0"]),
        (["parts", "--lemons"], ["165"]),
        (["parts"], ["gpu", "96.00", "2"]),
    ):
        assert cli.main([*words, *file]) == 0
        printed = capsys.readouterr().out
        assert [word for word in shown if word not in printed] == [], printed
    assert cli.main(["parts", "nope", *file]) == 4
    assert "no part with the serial number" in capsys.readouterr().err
