"""junit.xml: pytest's LogXML writes it into memory; it appears in its place whole, and without secrets.

At scale the testcases are written out as they end: as elements they would take 4 kB per item to the end. LogXML makes
them, except those that `passed` writes by itself. What ends is kept as text, and moved into a nameless file in large
pieces; at the end LogXML writes its document with one mark in it, where all of them belong.
"""

from __future__ import annotations

import os
import tempfile
import threading
import xml.etree.ElementTree as ET
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.plugin.item_result import clean, clean_pair
from pytest_gpucluster.report.atomic_write import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PIECE = 1 << 20  # characters that are moved at a time
PATIENCE = 60.0  # seconds for what LogXML has written to be read; it takes none
MARK = "gpucluster-testcases"


class JUnitFile:
    """Lets LogXML write into memory, and writes the file itself."""

    def __init__(self, xml: Any, testcases: Testcases | None = None) -> None:
        self._xml, self.testcases = xml, testcases
        self._writing = -1
        self._read: Future[bytes] = Future()
        self.path = Path(xml.logfile)

    def catch(self) -> None:
        """Let LogXML write into memory from now on."""
        if self.testcases is not None:
            self.testcases.set_mark()
        reading, self._writing = (
            os.pipe()
        )  # not a file in memory: a limit on the size of files is for those, too
        self._xml.logfile = f"/proc/self/fd/{self._writing}"
        threading.Thread(target=_read_all, args=(reading, self._read), name="junit", daemon=True).start()

    def write(self, group: int | None) -> bool:
        """Write the file; False where LogXML has written nothing. GpuClusterError where it cannot be written."""
        if self._writing < 0:
            return False
        os.close(self._writing)
        self._writing, self._xml.logfile = -1, str(self.path)
        text = self._read.result(PATIENCE)
        if text:
            try:
                root = cleaned(ET.fromstring(text))  # noqa: S314 - LogXML's own
            except ET.ParseError as error:
                raise GpuClusterError(f"{self.path}: cannot be written (invalid XML: {error})") from error
            write_whole(self.path, self._pieces(ET.tostring(root, encoding="unicode")), group=group)
        return bool(text)

    def _pieces(self, text: str) -> Iterator[bytes]:
        before, mark, after = text.partition(f"<{MARK} />")
        yield f'<?xml version="1.0" encoding="utf-8"?>{before}'.encode()
        if mark and self.testcases is not None:
            yield from self.testcases.pieces()
        yield after.encode()

    def close(self) -> None:
        """Close the nameless file; again is harmless."""
        if self.testcases is not None:
            self.testcases.close()


def _read_all(reading: int, read: Future[bytes]) -> None:
    with os.fdopen(reading, "rb") as pipe:
        read.set_result(pipe.read())


def cleaned(root: ET.Element) -> ET.Element:
    """Take secrets out of an element and all below it."""
    for element in root.iter():
        for name, value in element.attrib.items():
            element.set(name, clean(value))
        if element.tag == "property":
            element.set("value", clean_pair(element.get("name", ""), element.get("value", "")))
        element.text, element.tail = clean(element.text or ""), clean(element.tail or "")
    return root


class Testcases:
    """Satisfies LogXML as its list of reporters: each entry is a reporter, or the text of a testcase that has ended."""

    def __init__(self, xml: Any) -> None:
        self._xml = xml
        self._finalize = xml.finalize
        self._size = 0
        self._file: Any = None
        self._moved: list[Any] = []  # before those of LogXML's list: (begin, length) in the file, or as there
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
        text = _text(reporter)
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
        """Let LogXML write a mark in place of all testcases."""
        ordered = self._xml.node_reporters_ordered
        self._moved = [entry for entry in (*self._moved, *ordered) if has_name(entry)]
        ordered[:] = [_Mark()]

    def close(self) -> None:
        """Let go of the nameless file; again is harmless."""
        if self._file is not None:
            self._file.close()

    def pieces(self) -> Iterator[bytes]:
        """Yield all testcases, in their order."""
        for entry in self._moved:
            if isinstance(entry, tuple):
                begin, length = entry
                yield os.pread(self._file.fileno(), length, begin)
            else:
                yield (entry if isinstance(entry, str) else _text(entry)).encode()


def _text(reporter: Any) -> str:
    return ET.tostring(cleaned(reporter.to_xml()), encoding="unicode")


def has_name(entry: Any) -> bool:
    """Return False for LogXML's reporter of a test that was stopped before it told anything."""
    attributes = getattr(entry, "attrs", None)  # text, and what has ended, has none
    return attributes is None or "name" in attributes


class _Mark:
    """Satisfies LogXML as a reporter."""

    def to_xml(self) -> ET.Element:
        """Return the mark."""
        return ET.Element(MARK)
