"""NVIDIA's libraries: the command on files of each kind, its reader, and gpu.libraries on machines that were considered."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest
from counter_examples import CONFIGURE, PASSED, WARNING, CounterExample, assert_as_expected, name

from pytest_gpucluster.core.errors import NotApplicable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.gpu.checks.inventory import libraries
from pytest_gpucluster.suites.gpu.libraries import LIBRARIES, Libraries, read_libraries

CACHED = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-nvvm.so.4", "libnvidia-ptxjitcompiler.so.1")
GOOD = b"\x7fELF\x02\x01\x01\n\x00\x7f\n"
EMPTY_140, EMPTY_117 = (f"https://github.com/NVIDIA/libnvidia-container/issues/{n}" for n in (140, 117))


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
    rows = [f"\t{one} (libc6,x86-64, OS ABI: Linux 2.3.99) => {folder}/{one}" for one in CACHED]
    rows += [f"\tlibcuda.so.1 (libc6) => {tmp_path}/lib32/libcuda.so.1", "\tlibc.so.6 (libc6,x86-64) => /lib/libc.so.6"]
    (tmp_path / "ldconfig").write_text("#!/bin/sh\ncat <<'X'\n" + "\n".join(rows) + "\nX\n")
    (tmp_path / "ldconfig").chmod(0o755)
    command = f"PATH={tmp_path}:$PATH; {LIBRARIES.command}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, check=False)
    return Answer("n1", done.returncode, done.stdout, done.stderr)


def test_each_broken_file_is_found(machine: Answer, tmp_path: Path) -> None:
    found = read_libraries(machine)
    assert {Path(path).name for path in found.cached} == {*CACHED}
    none, absent = "", "No such file or directory"
    assert {path.removeprefix(f"{tmp_path}/"): why for path, why in found.bad.items()} == {
        "lib/libnvidia-ml.so.1": absent,
        "lib/libnvidia-nvvm.so.4": none,
        "lib/libnvidia-ptxjitcompiler.so.1": none,
        "lib/libnvidia-fatbinaryloader.so.418.56": none,
        "lib32/libcuda.so.1": absent,
    }
    verdict = libraries(found)
    assert {Path(one.part.name).name for one in verdict.findings} == {*CACHED[1:]}
    assert len(verdict.advisories) == 2
    assert {one.code for one in verdict.findings} == {"no_elf_file", "absent"}


def test_answers_that_cannot_be_judged() -> None:
    with pytest.raises(NotApplicable):  # NixOS, or a node without a driver
        read_libraries(Answer("n1", 0, b"\nbad\nend\n"))
    with pytest.raises(ProbeError):
        read_libraries(Answer("n1", 0, b"\tlibcuda.so.1 (libc6,x86-64) => /lib/libcuda.so.1\nbad\n"))


def test_a_file_that_the_user_may_not_read_is_not_bad() -> None:
    text = (
        b"\tlibcuda.so.1 (libc6,AArch64) => /lib/libcuda.so.1\nbad\ngrep: /lib/libcuda.so.1: Permission denied\nend\n"
    )
    assert read_libraries(Answer("n1", 0, text)) == Libraries({"/lib/libcuda.so.1": True}, {})


# --- machines that were considered

LIB = "/usr/lib/x86_64-linux-gnu"
CUDA, ML, JIT = (f"{LIB}/{one}.so.1" for one in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"))
OLD_CUDA, OLD_JIT = f"{LIB}/libcuda.so.418.56", f"{LIB}/libnvidia-ptxjitcompiler.so.418.56"
OLD_FATBIN, CUDA_32 = f"{LIB}/libnvidia-fatbinaryloader.so.418.56", "/usr/lib32/libcuda.so.1"
NEW = {CUDA: True, ML: True, JIT: True}
EMPTY, ABSENT = "is empty or no ELF file", "No such file or directory"


def considered(
    machine: str, source: str, expected: str, cached: dict[str, bool], bad: dict[str, str]
) -> CounterExample:
    verdict = partial(libraries, Libraries(cached, bad))
    return CounterExample("gpu.libraries", machine, source, expected, verdict, sick=expected == CONFIGURE)


COUNTER_EXAMPLES = (
    considered("all are good", "ldconfig -p", PASSED, NEW, {}),
    considered("empty files of an old driver", EMPTY_140, WARNING, NEW, {OLD_CUDA: EMPTY, OLD_JIT: EMPTY}),
    considered("an empty one that the driver no longer has", EMPTY_140, WARNING, NEW, {OLD_FATBIN: EMPTY}),
    considered("no library of 32 bits", "i386", WARNING, {**NEW, CUDA_32: False}, {CUDA_32: ABSENT}),
    considered("libcuda.so.1 is empty", EMPTY_117, CONFIGURE, NEW, {CUDA: EMPTY}),
    considered("all are empty, ldconfig left them out", EMPTY_140, CONFIGURE, {ML: True}, {OLD_CUDA: EMPTY}),
    considered("a link to a driver that was removed", "aborted upgrade", CONFIGURE, NEW, {ML: ABSENT}),
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_counter_example(example: CounterExample) -> None:
    assert_as_expected(example)
