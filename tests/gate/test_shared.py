"""Gates of one machine share answers: the second waits for the first, and runs nothing that is young enough."""

from __future__ import annotations

import json
import resource
import threading
import time
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.gate.shared import SharedAnswers

if TYPE_CHECKING:
    from pathlib import Path


def answer(age: float = 0.0, rc: int | None = 0) -> Answer:
    now = time.time() - age
    return Answer("gpu01", rc, b"\xff out", b"err", sent=now, received=now)


def test_young_answers_are_known_and_old_ones_are_not(tmp_path: Path) -> None:
    shared = SharedAnswers(tmp_path / "share", "gpu01", fresh=60.0)
    with shared.locked(1.0) as known:
        assert known == {}
        shared.write({"young": answer(), "old": answer(age=61.0), "hung": answer(rc=None)})
    with shared.locked(1.0) as known:
        assert known.keys() == {"young"}
        assert (known["young"].stdout, known["young"].stderr) == (b"\xff out", b"err")
    assert shared.problem == ""
    with SharedAnswers(tmp_path / "share", "gpu01", fresh=0.0).locked(1.0) as known:
        assert known == {}


def test_two_nodes_of_one_machine_share_nothing(tmp_path: Path) -> None:
    one, other = (SharedAnswers(tmp_path / "share", node, fresh=60.0) for node in ("gpu01", "gpu02"))
    with one.locked(1.0):
        one.write({"true": answer()})
        with other.locked(0.1) as known:
            assert (known, other.problem) == ({}, "")


@pytest.mark.parametrize("change", ["cluster", "limit"])
def test_callers_that_may_get_other_answers_share_nothing(tmp_path: Path, change: str) -> None:
    one = SharedAnswers(tmp_path / "share", "gpu01", fresh=60.0, cluster="a")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - (change == "limit"), hard))
    try:
        other = SharedAnswers(
            tmp_path / "share", "gpu01", fresh=60.0, cluster="b" if change == "cluster" else "a"
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with one.locked(1.0):
        one.write({"true": answer()})
    with other.locked(1.0) as known:
        assert known == {}


def test_an_answer_of_the_future_is_none(tmp_path: Path) -> None:
    shared = SharedAnswers(tmp_path / "share", "gpu01", fresh=60.0)
    with shared.locked(1.0):
        shared.write({"true": answer(age=-3600.0)})
    with shared.locked(1.0) as known:
        assert known == {}


def test_a_file_of_another_form_is_left_out(tmp_path: Path) -> None:
    shared = SharedAnswers(tmp_path / "share", "gpu01", fresh=60.0)
    with shared.locked(1.0):
        pass
    for text in ("", "[1]", json.dumps({"true": [0]})):
        (tmp_path / "share" / shared.file).write_text(text)
        with shared.locked(1.0) as known:
            assert known == {}


def test_the_second_waits_for_the_first_and_has_its_answers(tmp_path: Path) -> None:
    first, second = (SharedAnswers(tmp_path / "share", "gpu01", fresh=60.0) for _ in range(2))
    has, found = threading.Event(), []

    def begin() -> None:
        has.wait(10)
        with second.locked(10.0) as known:
            found.append(set(known))

    thread = threading.Thread(target=begin)
    thread.start()
    with first.locked(1.0):
        has.set()
        time.sleep(0.3)
        first.write({"true": answer()})
    thread.join(10)
    assert found == [{"true"}]


def test_without_the_lock_the_reason_is_noted(tmp_path: Path) -> None:
    first, second = (SharedAnswers(tmp_path / "share", "gpu01", fresh=60.0) for _ in range(2))
    with first.locked(1.0), second.locked(0.1) as known:
        assert known == {}
        assert second.problem == "another gate has run all this time"
    foreign = SharedAnswers(tmp_path / "share" / first.file / "x", "gpu01", fresh=60.0)
    (tmp_path / "share" / first.file).write_text("")
    with foreign.locked(0.1) as known:
        assert known == {}
        assert foreign.problem.startswith("answers are not shared: ")
