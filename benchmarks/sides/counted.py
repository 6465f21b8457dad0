"""Run a command as all that there is in a PID namespace, and write how many processes and threads it started.

    unshare --pid --fork --kill-child --mount-proc python counted.py FILE COMMAND...

This is process 1 there: the kernel's last number counts what was started, and whatever is left (masters of ssh
connections) ends with it. Exits as the command does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

LAST = Path("/proc/sys/kernel/ns_last_pid")
RESERVED = 300  # the kernel's numbers begin there after the greatest has been given
LOOK = 0.2  # seconds


class Counter:
    """Follows the last number over its turns."""

    def __init__(self, greatest: int) -> None:
        self.greatest, self.last, self.total = greatest, 0, 0

    def see(self, last: int) -> None:
        """Take the number of now."""
        if last >= self.last:
            self.total += last - self.last
        else:
            self.total += self.greatest - self.last + last - RESERVED
        self.last = last


def main() -> int:
    """Run the command and reap what it leaves."""
    counter = Counter(int(Path("/proc/sys/kernel/pid_max").read_text()))
    counter.see(int(LAST.read_text()))  # this process itself
    own, ended = counter.total, threading.Event()

    def follow() -> None:
        while not ended.wait(LOOK):
            counter.see(int(LAST.read_text()))

    thread = threading.Thread(target=follow)
    thread.start()
    command = subprocess.Popen(sys.argv[2:])
    status = None
    while status is None:
        pid, code = os.wait()
        if pid == command.pid:
            status = os.waitstatus_to_exitcode(code)
    command.returncode = status
    ended.set()
    thread.join()
    counter.see(int(LAST.read_text()))
    Path(sys.argv[1]).write_text(str(counter.total - own - 1))  # without the thread that follows
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
