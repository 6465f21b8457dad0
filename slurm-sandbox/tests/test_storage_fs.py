"""The FUSE file system of the faults: healthy processes see the folder as it is, those of a faulty node its fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from slurm_sandbox import processes, storage_faults
from slurm_sandbox.layout import Layout
from slurm_sandbox.storage_fs import FAULT_FILE, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    storage_faults.why_no_fuse() != "", reason=storage_faults.why_no_fuse() or "FUSE works here"
)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    made = Layout(tmp_path_factory.mktemp("state"))
    for folder in (made.shared, made.log, made.node("gpu01"), made.node("gpu02")):
        folder.mkdir(parents=True)
    (made.shared / "before").write_text("as it was")
    storage_faults._mount(made)
    yield made
    storage_faults.unmount(made)


@pytest.fixture
def faulty(layout: Layout) -> Iterator[Callable[..., None]]:
    """Give the node gpu01 a fault."""
    path = layout.node("gpu01") / FAULT_FILE

    def inject(kind: str, **options: float) -> None:
        path.write_text(json.dumps({"kind": kind, **options}))

    yield inject
    path.unlink(missing_ok=True)


def python(node: str, layout: Layout, code: str) -> str:
    """Run code in a process of a node, in the shared folder; return what it prints, or its last error."""
    command = (sys.executable, "-c", f"import fcntl, os, time\n{code}")
    environment = {**os.environ, "SLURMD_NODENAME": node}
    done = subprocess.run(command, env=environment, cwd=layout.shared, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]


def test_what_is_in_the_folder_is_seen_and_changed_through_the_file_system(layout: Layout) -> None:
    assert (layout.shared / "before").read_text() == "as it was"
    folder = layout.shared / "folder"
    folder.mkdir()
    (folder / "a").write_bytes(bytes(3 * MIB))
    (folder / "a").rename(folder / "b")
    assert [path.name for path in folder.iterdir()] == ["b"]
    assert (folder / "b").stat().st_size == 3 * MIB
    (folder / "b").write_text("short")
    assert (folder / "b").read_text() == "short"
    os.truncate(folder / "b", 2)
    assert os.statvfs(folder).f_blocks > 0
    (folder / "b").chmod(0o600)
    (folder / "b").unlink()
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        (folder / "b").read_text()


def test_locks_hold_between_processes_except_those_of_a_faulty_node(
    layout: Layout, faulty: Callable[..., None]
) -> None:
    attempt = "with open('before') as f: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print('taken')"
    attempt_fcntl = "with open('before', 'r+') as f: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print('taken')"
    hold = "import fcntl, sys; f = open('before', 'r+'); fcntl.flock(f, 2); fcntl.lockf(f, 2); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        (sys.executable, "-c", hold), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=layout.shared
    ) as holder:
        assert holder.stdin
        assert holder.stdout
        holder.stdout.readline()
        assert "BlockingIOError" in python("gpu01", layout, attempt)
        assert "BlockingIOError" in python("gpu01", layout, attempt_fcntl)
        faulty("storage_locks")
        assert python("gpu01", layout, attempt) == python("gpu01", layout, attempt_fcntl) == "taken"
        assert "BlockingIOError" in python("gpu02", layout, attempt)
        holder.stdin.close()
    assert python("gpu02", layout, attempt) == "taken"


def test_a_corrupt_node_reads_another_byte_and_others_do_not(layout: Layout, faulty: Callable[..., None]) -> None:
    (layout.shared / "data").write_bytes(bytes(4 * MIB))
    faulty("storage_corrupt")
    count = "print(sum(open('data', 'rb').read()))"
    assert (python("gpu01", layout, count), python("gpu02", layout, count)) == ("1", "0")


def test_a_full_file_system_takes_the_first_part_and_a_failing_one_syncs_nothing(
    layout: Layout, faulty: Callable[..., None]
) -> None:
    write = "f = open('big', 'wb', 0); f.write(bytes(1 << 20)); print('first', flush=True); f.write(bytes(1 << 20)); print('all')"
    faulty("storage_full", mib=1)
    assert python("gpu01", layout, write) == "first"
    assert python("gpu02", layout, write) == "first\nall"
    faulty("storage_error")
    sync = "f = open('big', 'wb', 0); f.write(b'x'); os.fsync(f.fileno()); print('synced')"
    assert "Input/output error" in python("gpu01", layout, sync)
    assert python("gpu02", layout, sync) == "synced"


def test_a_stale_node_does_not_see_a_replaced_file_for_some_time(layout: Layout, faulty: Callable[..., None]) -> None:
    (layout.shared / "file").write_text("one")
    faulty("storage_stale", seconds=0.7)
    python("gpu02", layout, "open('file', 'w').write('two')")
    read = "print(open('file').read())"
    assert "No such file" in python("gpu01", layout, read)
    assert python("gpu02", layout, read) == "two"
    time.sleep(0.7)
    assert python("gpu01", layout, read) == "two"


def test_a_slow_node_waits_for_each_access(layout: Layout, faulty: Callable[..., None]) -> None:
    faulty("storage_slow", ms=300)
    timed = "t = time.monotonic(); open('before').read(); print(time.monotonic() - t > 0.3)"
    assert (python("gpu01", layout, timed), python("gpu02", layout, timed)) == ("True", "False")


@pytest.mark.parametrize(
    ("kind", "least"), [("storage_server_slow", 0.8), ("storage_client_slow", 0.4)], ids=["server", "client"]
)
def test_nodes_share_the_rate_of_a_slow_server_and_each_slow_client_has_its_own(
    kind: str, least: float, layout: Layout
) -> None:
    fault = json.dumps({"kind": kind, "mb_s": 10})
    for node in ("gpu01", "gpu02"):
        (layout.node(node) / FAULT_FILE).write_text(fault)
    code = "import time; t = time.monotonic(); open('NAME', 'wb', 0).write(bytes(4 << 20)); print(time.monotonic() - t)"
    tasks = []
    for node in ("gpu01", "gpu02"):
        command = (sys.executable, "-c", code.replace("NAME", f"of-{node}"))
        environment = {**os.environ, "SLURMD_NODENAME": node}
        tasks.append(subprocess.Popen(command, env=environment, cwd=layout.shared, stdout=subprocess.PIPE, text=True))
    slowest = max(float(task.communicate()[0]) for task in tasks)
    for node in ("gpu01", "gpu02"):
        (layout.node(node) / FAULT_FILE).unlink()
    assert least < slowest < least + 0.35


def test_the_server_ends_with_the_mount(tmp_path: Path) -> None:
    made = Layout(tmp_path)
    for folder in (made.shared, made.log, made.nodes):
        folder.mkdir()
    storage_faults._mount(made)
    storage_faults._mount(made)  # once
    assert len(list(processes.of_command(storage_faults._MODULE, str(made.shared)))) == 1
    storage_faults.unmount(made)
    assert not made.shared.is_mount()
    assert list(processes.of_command(storage_faults._MODULE, str(made.shared))) == []
    storage_faults.unmount(made)
