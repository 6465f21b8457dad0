"""NVIDIA's libraries: the command on files of each kind, its reader, and gpu.libraries on machines that were considered."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from counter_examples import CONFIGURE, PASSED, WARNING, CounterExample, assert_as_expected, name

from pytest_gpucluster.core.errors import NotApplicable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.gpu.libraries import LIBRARIES, Libraries, read_libraries
from pytest_gpucluster.suites.gpu.checks.inventory import libraries

GOOD = b"\x7fELF\x02\x01\x01\n\x00\x7f\n"
EMPTY_140 = "https://github.com/NVIDIA/libnvidia-container/issues/140"


@pytest.fixture
def machine(tmp_path: Path) -> Answer:
    """A machine with an empty library, a broken link, one of 32 bits without its file, and an old one."""
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libcuda.so.535.1").write_bytes(GOOD)
    (folder / "libcuda.so.1").symlink_to("libcuda.so.535.1")
    (folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.535.1")
    (folder / "libnvidia-nvvm.so.4").write_bytes(b"")
    (folder / "libnvidia-ptxjitcompiler.so.1").write_bytes(b"<html>not found</html>\n")
    (folder / "libnvidia-fatbinaryloader.so.418.56").write_bytes(b"")
    names = (
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "libnvidia-nvvm.so.4",
        "libnvidia-ptxjitcompiler.so.1",
    )
    rows = [f"\t{one} (libc6,x86-64, OS ABI: Linux 2.3.99) => {folder}/{one}" for one in names]
    rows += [
        f"\tlibcuda.so.1 (libc6) => {tmp_path}/lib32/libcuda.so.1",
        "\tlibc.so.6 (libc6,x86-64) => /lib/libc.so.6",
    ]
    (tmp_path / "ldconfig").write_text("#!/bin/sh\ncat <<'X'\n" + "\n".join(rows) + "\nX\n")
    (tmp_path / "ldconfig").chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", f"PATH={tmp_path}:$PATH; {LIBRARIES.command}"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    return Answer("n1", done.returncode, done.stdout, done.stderr)


def test_each_broken_file_is_found(machine: Answer, tmp_path: Path) -> None:
    found = read_libraries(machine)
    assert {Path(path).name for path in found.cached} == {
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "libnvidia-nvvm.so.4",
        "libnvidia-ptxjitcompiler.so.1",
    }
    none, absent = "is empty or no ELF file", "No such file or directory"
    assert {path.removeprefix(f"{tmp_path}/"): why for path, why in found.bad.items()} == {
        "lib/libnvidia-ml.so.1": absent,
        "lib/libnvidia-nvvm.so.4": none,
        "lib/libnvidia-ptxjitcompiler.so.1": none,
        "lib/libnvidia-fatbinaryloader.so.418.56": none,
        "lib32/libcuda.so.1": absent,
    }
    verdict = libraries(found)
    assert {Path(one.part).name for one in verdict.findings} == {
        "libnvidia-ml.so.1",
        "libnvidia-nvvm.so.4",
        "libnvidia-ptxjitcompiler.so.1",
    }
    assert len(verdict.advisories) == 2


def test_answers_that_cannot_be_judged() -> None:
    with pytest.raises(NotApplicable):  # NixOS, or a node without a driver
        read_libraries(Answer("n1", 0, b"\nbad\nend\n"))
    with pytest.raises(ProbeError):
        read_libraries(Answer("n1", 0, b"\tlibcuda.so.1 (libc6,x86-64) => /lib/libcuda.so.1\nbad\n"))


def test_a_file_that_the_user_may_not_read_is_not_bad() -> None:
    text = b"\tlibcuda.so.1 (libc6,AArch64) => /lib/libcuda.so.1\nbad\ngrep: /lib/libcuda.so.1: Permission denied\nend\n"
    assert read_libraries(Answer("n1", 0, text)) == Libraries({"/lib/libcuda.so.1": True}, {})


# --- machines that were considered

LIB = "/usr/lib/x86_64-linux-gnu"
NEW = {
    f"{LIB}/libcuda.so.1": True,
    f"{LIB}/libnvidia-ml.so.1": True,
    f"{LIB}/libnvidia-ptxjitcompiler.so.1": True,
}
EMPTY = "is empty or no ELF file"
ROWS: tuple[tuple[str, str, str, dict[str, bool], dict[str, str], bool], ...] = (
    ("all are good", "ldconfig -p", PASSED, NEW, {}, False),
    ("empty files of an earlier driver beside good ones", EMPTY_140, WARNING, NEW, {f"{LIB}/libcuda.so.418.56": EMPTY, f"{LIB}/libnvidia-ptxjitcompiler.so.418.56": EMPTY}, False),
    ("an empty library that the present driver no longer has", EMPTY_140, WARNING, NEW, {f"{LIB}/libnvidia-fatbinaryloader.so.418.56": EMPTY}, False),
    ("the library of 32 bits was removed", "libnvidia-compute:i386", WARNING, {**NEW, "/usr/lib32/libcuda.so.1": False}, {"/usr/lib32/libcuda.so.1": "No such file or directory"}, False),
    ("libcuda.so.1 is empty", "https://github.com/NVIDIA/libnvidia-container/issues/117", CONFIGURE, NEW, {f"{LIB}/libcuda.so.1": EMPTY}, True),
    ("all are empty, and ldconfig has left them out", EMPTY_140, CONFIGURE, {f"{LIB}/libnvidia-ml.so.1": True}, {f"{LIB}/libcuda.so.418.56": EMPTY}, True),
    ("the link points to a driver that was removed", "aborted upgrade", CONFIGURE, NEW, {f"{LIB}/libnvidia-ml.so.1": "No such file or directory"}, True),
)  # fmt: skip
COUNTER_EXAMPLES = tuple(
    CounterExample(
        "gpu.libraries",
        machine,
        source,
        expected,
        lambda cached=cached, bad=bad: libraries(Libraries(cached, bad)),  # type: ignore[misc]
        sick=sick,
    )
    for machine, source, expected, cached, bad, sick in ROWS
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_counter_example(example: CounterExample) -> None:
    assert_as_expected(example)
