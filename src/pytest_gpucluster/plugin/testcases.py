"""The testcases of pytest's junit.xml, written out as they end: as elements they would take 4 kB an item to the end.

pytest's LogXML makes them, but for those that `passed` writes by itself. What ends is kept as text, and moved into a
nameless file in large pieces; at the end pytest writes its file with one mark in it, where all of them belong.
"""

from __future__ import annotations

import os
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PIECE = 1 << 20  # characters that are moved at a time
MARK = "gpucluster-testcases"


class Testcases:
    """Satisfies LogXML as its list of reporters: each entry is a reporter, or the text of a testcase that has ended."""

    def __init__(self, xml: Any) -> None:
        self._xml = xml
        self._finalize = xml.finalize
        self._size = 0
        self._file: Any = None
        self._moved: list[Any] = []  # before those of LogXML's list: (begin, length) in the file, or as there
        self._path = ""
        xml.finalize = self._end

    # --- while the run lives

    @property
    def is_plain(self) -> bool:
        """Return True where `passed` writes what LogXML would."""
        says_nothing = self._xml.logging == "no" or not self._xml.log_passing_tests
        return (
            says_nothing and self._xml.family == "xunit2" and self._xml.report_duration in ("total", "call")
        )

    def passed(
        self, classname: str, name: str, seconds: tuple[float, float], properties: Sequence[tuple[str, str]]
    ) -> bool:
        """Write the testcase of an item that passed and printed nothing; False for text that has to be escaped.

        `seconds` are of the whole item and of its call.
        """
        pairs = [f'<property name="{key}" value="{value}" />' for key, value in properties]
        said = "".join((classname, name, *(text for pair in properties for text in pair)))
        if not (said.isascii() and said.isprintable()) or any(char in said for char in '&<>"'):
            return False
        lasted = seconds[self._xml.report_duration == "call"]
        inside = f"><properties>{''.join(pairs)}</properties></testcase>" if pairs else " />"
        self._xml.add_stats("passed")
        self._xml.node_reporters_ordered.append(
            f'<testcase classname="{classname}" name="{name}" time="{lasted:.3f}"{inside}'
        )
        self._grow(len(inside))
        return True

    def _end(self, report: Any) -> None:
        """Stand for LogXML.finalize: what has ended is kept as text."""
        reporter = self._xml.node_reporter(report)
        self._finalize(report)
        text = ET.tostring(reporter.to_xml(), encoding="unicode")
        for entries in (self._xml.node_reporters_ordered, self._moved):
            for at in range(len(entries) - 1, -1, -1):  # it is one of the last
                if entries[at] is reporter:
                    entries[at] = text
                    self._grow(len(text))
                    return

    def _grow(self, characters: int) -> None:
        self._size += characters
        if self._size > PIECE:
            self._size = 0
            self._move()

    def _move(self) -> None:
        """Move what has ended into the file; what has not stays in its place between."""
        entries = self._xml.node_reporters_ordered
        texts: list[str] = []
        for entry in entries:
            if isinstance(entry, str):
                texts.append(entry)
            else:
                self._keep(texts)
                self._moved.append(entry)
        self._keep(texts)
        entries.clear()

    def _keep(self, texts: list[str]) -> None:
        if not texts:
            return
        data = "".join(texts).encode()
        try:
            self._moved.append(self._write(data))
        except OSError:  # a full disk: then it takes memory
            self._moved.append("".join(texts))
        texts.clear()

    def _write(self, data: bytes) -> tuple[int, int]:
        if self._file is None:
            folder = Path(self._xml.logfile).parent
            self._file = tempfile.TemporaryFile(buffering=0, dir=folder if folder.is_dir() else None)  # noqa: SIM115
        begin = self._file.seek(0, os.SEEK_END)
        if self._file.write(data) < len(data):
            raise OSError("the disk is full")
        return begin, len(data)

    # --- the end

    def set_mark(self) -> None:
        """Let LogXML write its file elsewhere, with a mark in place of all testcases."""
        ordered = self._xml.node_reporters_ordered
        self._moved = [entry for entry in (*self._moved, *ordered) if has_name(entry)]
        ordered[:] = [_Mark()]
        handle, around = tempfile.mkstemp(prefix="junit-", suffix=".xml")
        os.close(handle)
        self._path, self._xml.logfile = self._xml.logfile, around

    def take_mark(self) -> str:
        """Return what LogXML has written, '' where it did not come to it; it is as it was before."""
        if not self._path:
            return ""
        around, self._xml.logfile = Path(self._xml.logfile), self._path
        text = around.read_text(encoding="utf-8")
        around.unlink()
        return text

    def fill(self, text: str) -> None:
        """Write the file with the testcases in place of the mark; OSError where it cannot be written."""
        before, mark, after = text.partition(f"<{MARK} />")
        if not mark:
            return
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "w", encoding="utf-8") as file:  # noqa: PTH123 - as pytest: also what is no plain file
            file.write(before)
            file.writelines(self._texts())
            file.write(after)

    def close(self) -> None:
        """Let go of the nameless file; again is harmless."""
        if self._file is not None:
            self._file.close()

    def _texts(self) -> Iterator[str]:
        for entry in self._moved:
            if isinstance(entry, tuple):
                begin, length = entry
                yield os.pread(self._file.fileno(), length, begin).decode()
            else:
                yield entry if isinstance(entry, str) else ET.tostring(entry.to_xml(), encoding="unicode")


def has_name(entry: Any) -> bool:
    """Return False for LogXML's reporter of a test that was stopped before it told anything."""
    attributes = getattr(entry, "attrs", None)  # text, and what has ended, has none
    return attributes is None or "name" in attributes


class _Mark:
    """Satisfies LogXML as a reporter."""

    def to_xml(self) -> ET.Element:
        """Return the mark."""
        return ET.Element(MARK)
