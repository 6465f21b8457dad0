"""What signals do: tests are stopped once, and while a run ends signals are only noted."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cluster import signals

if TYPE_CHECKING:
    from collections.abc import Iterator

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in STOPPING]


def set_handlers(*given: Any) -> None:
    for number, handler in zip(STOPPING, given, strict=True):
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Give every test the handlers of a fresh process, and this process its own again."""
    before = handlers()
    set_handlers(signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL)
    yield
    signals.restore_handlers()
    set_handlers(*before)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("pytest_gpucluster.cluster.signals.time.monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("number", "name"), [*zip(STOPPING, ("Ctrl-C", "SIGTERM", "SIGHUP"), strict=True)])
def test_a_signal_stops_the_tests_once(clock: list[float], number: int, name: str) -> None:
    signals.catch()
    assert signals.noted() == ""
    with pytest.raises(KeyboardInterrupt, match=f"^stopped by {name}$"):
        signal.raise_signal(number)
    assert signals.noted() == f"stopped by {name}"
    clock[0] += 9.9
    for other in STOPPING:  # pytest is about to end the run
        signal.raise_signal(other)
    clock[0] += 0.1
    with pytest.raises(KeyboardInterrupt):  # it was not: some code has taken the first
        signal.raise_signal(number)
    clock[0] += 9.9
    signal.raise_signal(number)
    signals.catch()
    assert signals.noted() == ""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_a_signal_beside_the_second_try_does_not_prevent_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Beside(threading.Timer):
        def start(self) -> None:
            signal.raise_signal(signal.SIGTERM)
            super().start()

    monkeypatch.setattr("pytest_gpucluster.cluster.signals.threading.Timer", Beside)
    hook = sys.unraisablehook
    signals.catch()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    try:
        sys.unraisablehook(SimpleNamespace(exc_type=KeyboardInterrupt))
    except KeyboardInterrupt:
        pytest.fail("the hook itself was ended")
    with pytest.raises(KeyboardInterrupt):
        threading.Event().wait(600)
    signals.restore_handlers()
    assert sys.unraisablehook is hook


def test_a_signal_at_the_end_is_noted_and_ends_waits() -> None:
    signals.catch()
    signals.ignore()
    assert signals.pause(0.01)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    assert not signals.pause(60)
    assert signals.noted() == "stopped by Ctrl-C"
    signal.raise_signal(signal.SIGTERM)
    assert signals.noted() == "stopped by Ctrl-C"
    assert not signals.pause(60)


def test_what_is_ignored_stays_so_and_other_handlers_of_ctrl_c_stay() -> None:
    def own(*_args: Any) -> None:
        """Stand for the handler of a program that embeds pytest."""

    set_handlers(own, own, signal.SIG_IGN)
    signals.catch()
    of_int, of_term, of_hup = handlers()
    assert (of_int, of_hup) == (own, signal.SIG_IGN)
    assert of_term not in (own, signal.SIG_DFL, signal.SIG_IGN)
    signals.over()
    assert handlers() == [own, signal.SIG_IGN, signal.SIG_IGN]
    signals.restore_handlers()
    assert handlers() == [own, own, signal.SIG_IGN]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signals.restore_handlers()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_thread_that_is_not_the_main_one_changes_nothing() -> None:
    before = handlers()
    thread = threading.Thread(target=signals.catch)
    thread.start()
    thread.join()
    assert handlers() == before


@pytest.mark.parametrize(
    ("program", "only"),
    [
        ("/usr/bin/pytest", True),
        ("/x/site-packages/pytest/__main__.py", True),
        ("/x/mytests/__main__.py", False),
        ("-c", False),
    ],
)
def test_who_embeds_pytest_is_known(monkeypatch: pytest.MonkeyPatch, program: str, *, only: bool) -> None:
    monkeypatch.setattr(sys, "argv", [program])
    assert signals.is_only_pytest() is only
