"""Letters of progress: written together, none lost, none late where a line ends."""

from __future__ import annotations

import io

from pytest_gpucluster.plugin.progress import BufferedWriter


class Written(io.StringIO):
    """Remembers each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


def test_letters_wait_for_each_other_a_moment() -> None:
    now = [0.0]
    file = Written()
    letters = BufferedWriter(file, every=0.1, clock=lambda: now[0])
    for step in range(250):
        now[0] = step / 1000
        assert letters.write(".") == 1
        letters.flush()
    assert [len(text) for text in file.writes] == [101, 100]
    letters.put()
    assert file.getvalue() == "." * 250


def test_the_end_of_a_line_is_written_at_once_with_what_waited() -> None:
    file = Written()
    letters = BufferedWriter(file, clock=lambda: 0.0)
    letters.write("F")
    letters.write(" [100%]\n")
    assert file.writes == ["F [100%]\n"]
    letters.put()
    assert file.writes == ["F [100%]\n"], "nothing is written where nothing waited"


def test_what_else_a_file_can_is_the_files() -> None:
    assert not BufferedWriter(io.StringIO()).isatty()
