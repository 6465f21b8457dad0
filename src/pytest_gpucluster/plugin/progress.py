"""Letters of progress, written together: where stdout is unbuffered, as in many CI systems, each is a write of its own.

A write to a pipe wakes its reader, which costs as much as a quarter of an item.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    import pytest

EVERY = 0.1  # seconds that a letter may wait


class BufferedWriter:
    """A text file that holds back pieces of a line for a moment; what it is not asked to do, the file itself does."""

    def __init__(
        self, file: TextIO, *, every: float = EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file, self._every, self._clock = file, every, clock
        self._held: list[str] = []
        self._put_at = clock()

    def write(self, text: str) -> int:
        """Take a text; a line that ends is written at once."""
        self._held.append(text)
        if "\n" in text:
            self.put()
        else:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Write what has waited long enough."""
        if self._clock() - self._put_at >= self._every:
            self.put()

    def put(self) -> None:
        """Write all that is held."""
        text = "".join(self._held)
        self._held.clear()
        self._put_at = self._clock()
        if text:
            self._file.write(text)
        self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def gathered(config: pytest.Config) -> Iterator[BufferedWriter | None]:
    """Gather what pytest's terminal reporter writes, unless somebody looks on, or tests write between its letters."""
    writer = getattr(config.pluginmanager.get_plugin("terminalreporter"), "_tw", None)
    file = getattr(writer, "_file", None)
    if file is None or file.isatty() or config.option.capture == "no" or config.get_verbosity() > 0:
        yield None
        return
    writer._file = together = BufferedWriter(file)  # type: ignore[union-attr] # noqa: SLF001 - pytest has no other door to it
    try:
        yield together
    finally:
        writer._file = file  # type: ignore[union-attr] # noqa: SLF001
        together.put()
