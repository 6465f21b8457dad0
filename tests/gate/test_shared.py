"""Gates of one machine share answers: the second waits for the first, and runs nothing that is young enough."""

from __future__ import annotations

import json
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.gate.shared_answers import SharedAnswers

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def answer(age: float = 0.0, rc: int | None = 0) -> Answer:
    now = time.time() - age
    return Answer("gpu01", rc, b"\xff out", b"err", sent=now, received=now)


def shared(folder: Path, node: str = "gpu01", fresh: float = 60.0, cluster: str = "a") -> SharedAnswers:
    return SharedAnswers(folder / "share", node, fresh, cluster)


def known_to(one: SharedAnswers) -> set[str]:
    with one.locked(60.0) as known:
        return set(known)


def test_young_answers_are_known_and_old_ones_are_not(tmp_path: Path) -> None:
    one = shared(tmp_path)
    with one.locked(60.0) as known:
        assert known == {}
        ages = {"young": 0.0, "old": 61.0, "of the future": -3600.0}
        one.write({"hung": answer(rc=None), **{name: answer(age) for name, age in ages.items()}})
    with one.locked(60.0) as known:
        assert known.keys() == {"young"}
        assert (known["young"].stdout, known["young"].stderr) == (b"\xff out", b"err")
    assert one.problem == ""
    assert known_to(shared(tmp_path, fresh=0.0)) == set()


def test_two_nodes_of_one_machine_share_nothing(tmp_path: Path) -> None:
    one, other = shared(tmp_path), shared(tmp_path, "gpu02")
    with one.locked(60.0):
        one.write({"true": answer()})
        with other.locked(60.0) as known:
            assert (known, other.problem) == ({}, "")


def test_callers_that_may_get_other_answers_share_nothing(tmp_path: Path) -> None:
    one, other_cluster = shared(tmp_path), shared(tmp_path, cluster="b")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        other_limit = shared(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with one.locked(60.0):
        one.write({"true": answer()})
    assert [known_to(it) for it in (one, other_cluster, other_limit)] == [{"true"}, set(), set()]


def test_a_file_of_another_form_is_left_out(tmp_path: Path) -> None:
    one = shared(tmp_path)
    assert known_to(one) == set()
    for text in ("", "[1]", json.dumps({"true": [0]})):
        (tmp_path / "share" / one.file).write_text(text)
        assert known_to(one) == set()


def test_the_second_waits_for_the_first_s_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, go_on = threading.Event(), threading.Event()

    def sleep(_seconds: float) -> None:
        waits.set()
        go_on.wait(60)

    monkeypatch.setattr("pytest_gpucluster.gate.shared_answers.time.sleep", sleep)
    first, second = shared(tmp_path), shared(tmp_path)
    with ThreadPoolExecutor() as pool:
        with first.locked(60.0):
            found = pool.submit(known_to, second)
            assert waits.wait(60)
            first.write({"true": answer()})
        go_on.set()
        assert found.result(60) == {"true"}


def test_without_the_lock_the_reason_is_noted(tmp_path: Path) -> None:
    first, second = shared(tmp_path), shared(tmp_path)
    with first.locked(60.0), second.locked(0.1) as known:
        assert (known, second.problem) == ({}, "another gate has run all this time")
    (tmp_path / "share" / first.file).write_text("")
    foreign = SharedAnswers(tmp_path / "share" / first.file / "x", "gpu01", fresh=60.0)
    assert known_to(foreign) == set()
    assert foreign.problem.startswith("answers are not shared: ")
