"""Ctrl-C, SIGTERM and SIGHUP stop a run alike: its tests end at once, nodes are released, reports are written.

Meanwhile further signals raise nothing: they are noted, end waits (`pause`), and make the run exit with 2.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# another KeyboardInterrupt would break what the first has begun
SAME = 10.0  # seconds in which further signals mean the first

STEP = 0.1  # seconds until a wait that a signal ends has ended


@dataclass
class _State:
    """What signals do now. `before`: the handlers that were there."""

    before: dict[int, Any] = field(default_factory=dict)
    noted: str = ""
    ending: bool = False
    raised: float = -math.inf
    hook: Any = None  # of exceptions that Python drops


_state = _State()


def catch() -> None:
    """Raise KeyboardInterrupt at a signal while tests run."""
    vars(_state).update(vars(_State()))
    with contextlib.suppress(ValueError):  # not the main thread: whoever embeds pytest keeps its own handlers
        for number in STOPPING:
            known = signal.getsignal(number)
            ctrl_c_of_others = number == signal.SIGINT and known is not signal.default_int_handler
            if known is not signal.SIG_IGN and not ctrl_c_of_others:  # nohup: a hang-up is not to end the run
                _state.before[number] = signal.signal(number, _arrived)


def ignore() -> None:
    """From now on signals are only noted."""
    _state.ending = True


def noted() -> str:
    """Return what has stopped the run, '' where nothing has."""
    return _state.noted


def pause(seconds: float) -> bool:
    """Sleep while a run ends; False, soon, where a signal wants no more waiting."""
    end = time.monotonic() + seconds
    while not _state.noted and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, STEP))
    return not _state.noted


def over() -> None:
    """Ignore signals: the run is over, and the process has only to exit."""
    for number in _state.before:
        signal.signal(number, signal.SIG_IGN)


def restore_handlers() -> None:
    """Install the handlers that were there before the run: for whoever embeds pytest and lives on."""
    for number, handler in _state.before.items():
        signal.signal(number, handler or signal.SIG_DFL)
    _state.before.clear()
    if sys.unraisablehook is _dropped:
        sys.unraisablehook = _state.hook


def is_only_pytest() -> bool:
    """Return True for a process of the command `pytest` or of `python -m pytest`, which ends with its run."""
    program = Path(sys.argv[0])
    return program.name in {"pytest", "py.test"} or program.parts[-2:] == ("pytest", "__main__.py")


def _arrived(number: int, _frame: FrameType | None) -> None:
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    _state.noted = _state.noted or f"stopped by {name}"
    now = time.monotonic()
    if not _state.ending and now - _state.raised >= SAME:
        _state.raised = now
        if sys.unraisablehook is not _dropped:
            _state.hook, sys.unraisablehook = sys.unraisablehook, _dropped
        raise KeyboardInterrupt(_state.noted)  # of the first signal, also where Python dropped that


def _dropped(error: Any) -> None:
    """Stop the run a moment later, if Python has dropped the KeyboardInterrupt in a finalizer or beside the garbage collector."""
    if error.exc_type is KeyboardInterrupt and _state.noted and not _state.ending:
        again = threading.Timer(STEP, _again, (next(iter(_state.before)),))
        again.daemon = True
        again.start()
    elif _state.hook is not None:
        _state.hook(error)


def _again(number: int) -> None:
    # until now another signal raises nothing: it would be dropped as well, and no timer started
    _state.raised = -math.inf
    os.kill(os.getpid(), number)
