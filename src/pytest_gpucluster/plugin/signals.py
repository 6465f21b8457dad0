"""SIGTERM and SIGHUP end a run as Ctrl-C does: nodes given back, reports written."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)


def catch() -> None:
    """Raise KeyboardInterrupt at the first SIGTERM or SIGHUP; further ones must not stop the cleaning up."""
    with contextlib.suppress(ValueError):  # not the main thread: whoever embeds pytest keeps its own handlers
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup: a hang-up is not to end the run
                signal.signal(number, _interrupt)


def ignore() -> None:
    """From now on only SIGKILL and Ctrl-C stop us."""
    with contextlib.suppress(ValueError):
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    ignore()
    raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name}")
