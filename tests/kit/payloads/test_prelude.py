"""What payloads share, and how it reaches the nodes: in the text of each payload, under Python 3.6."""

from __future__ import annotations

import ast
import json
import re
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import imported
from sandbox_helpers import free_port

from pytest_gpucluster.kit.framework import payload_step
from pytest_gpucluster.kit.framework.payload_step import PRELUDE, command, sent
from pytest_gpucluster.kit.payloads import prelude
from pytest_gpucluster.suites.ray import payload_node

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(payload_step.__file__).parents[2]
PAYLOADS = [
    path
    for path in sorted(SOURCE.rglob("*.py"))
    if re.search(r"suites/\w+/payload[\w/]*\.py$|kit/payloads/", path.as_posix())
    and path != PRELUDE
    and path.name != "__init__.py"
]
FRAMEWORKS = {"torch", "tensorflow", "horovod", "ray", "mpi4py", "submitit"}
PARTS = (PRELUDE, PRELUDE.with_name("collective_data.py"), PRELUDE.with_name("rendezvous.py"))
# parts that use nothing of the prelude
WITHOUT_PRELUDE = {
    *(PRELUDE.with_name(f"{name}.py") for name in ("c_library", "own_folder", "tensor_bits", "perftest_output")),
    SOURCE / "suites" / "storage" / "payload_rates.py",
    SOURCE / "suites" / "training" / "payload_model.py",
}


def defined(tree: ast.Module) -> set[str]:
    """Return the names that a module defines itself."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            names |= {it.id for it in ast.walk(node) if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)}
    return names


def parts_of(tree: ast.Module) -> Iterator[ast.Module]:
    """Yield the parts of a sent payload in the order in which they run, itself last."""
    for node in tree.body:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name("exec"), args=[ast.Call(args=[ast.Constant(str(text)), *_])])):
                yield from parts_of(ast.parse(text))
    yield tree


def test_prelude_is_python_3_6_and_needs_the_standard_library_alone() -> None:
    assert imported(PRELUDE) <= sys.stdlib_module_names
    assert {"collective.py", "world.py", "payload_node.py"} <= {path.name for path in PAYLOADS}


def test_each_part_of_a_payload_is_sent_once() -> None:
    text = sent(payload_step.COLLECTIVE).replace("\\", "")
    assert [text.count(f'"{part.name}", "exec') for part in PARTS] == [1, 1, 1]
    assert "pytest_gpucluster.kit.payloads" not in text


@pytest.mark.parametrize("path", PAYLOADS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_sent_payload_stands_alone(path: Path) -> None:
    names = imported(path)
    assert names - sys.stdlib_module_names <= FRAMEWORKS
    assert "dataclasses" not in names  # since Python 3.7
    assert "prelude.py" in sent(path) or path in {*PARTS, *WITHOUT_PRELUDE}
    assert len(sent(path).splitlines()) == len(path.read_text().splitlines())


@pytest.mark.parametrize("path", PAYLOADS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_payload_defines_no_name_of_its_parts_again(path: Path) -> None:
    seen: set[str] = set()
    for part in parts_of(ast.parse(sent(path))):
        modules = {alias.name for node in part.body if isinstance(node, ast.Import) for alias in node.names}
        assert not defined(part) & seen
        seen |= defined(part) | modules


def test_traceback_of_a_sent_payload_names_lines_of_its_file() -> None:
    path = Path(payload_node.__file__)
    lines = path.read_text().splitlines()
    call = next(number for number, line in enumerate(lines, 1) if line.startswith("    sys.exit(main("))
    argv = command(sys.executable, path, "alone", "{}")
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert f'File "ray/payload_node.py", line {call}, in <module>' in done.stderr
    assert "KeyError" in done.stderr


def test_phase_that_outlives_its_deadline_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[tuple[str, str, float]] = []
    codes: Queue[int] = Queue()
    monkeypatch.setattr(prelude, "exit_now", codes.put)
    watch = prelude.Watch(60, lambda kind, **facts: reported.append((kind, facts["phase"], facts["seconds"])))
    watch.enter("barrier", 0.1)
    assert codes.get(timeout=60) == prelude.EXIT_STUCK
    ((kind, phase, seconds),) = reported
    assert (kind, phase) == ("stuck", "barrier")
    assert seconds == pytest.approx(0.1)


def test_phase_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[tuple[str, dict[str, Any]]] = []

    def report(kind: str, **facts: Any) -> None:
        reported.append((kind, facts))

    def raises(error: BaseException) -> int:
        raise error

    watch = prelude.Watch(600, report)
    watch.enter("join", 600)
    assert prelude.run_phases(report, watch, lambda: 7) == 7
    assert prelude.run_phases(report, watch, lambda: raises(prelude.Failure("no_library", "none"))) == 1
    assert prelude.run_phases(report, watch, lambda: raises(KeyError("x"))) == 1
    monkeypatch.setattr(prelude, "low_limits_hint", lambda: "; few")
    assert prelude.run_phases(report, watch, lambda: raises(prelude.FewGpus("x")), lambda _error: "y") == 1
    assert reported == [
        ("no_library", {"reason": "none"}),
        ("failed", {"phase": "join", "reason": "KeyError: 'x'", "code": "", "low_limits": False}),
        ("failed", {"phase": "join", "reason": "y; few", "code": "too_few_gpus", "low_limits": True}),
    ]


@pytest.mark.parametrize(
    ("folded", "names"),
    [
        ("gpu[01-02,7]", "gpu01 gpu02 gpu7"),
        ("gpu7", "gpu7"),
        ("a1,b2", "a1 b2"),
        ("rack[3-4]-n", "rack3-n rack4-n"),
        ("gpu[07,01],login,r[1-2]n[08-09]x", "gpu07 gpu01 login r1n08x r1n09x r2n08x r2n09x"),
        ("", ""),
    ],
)
def test_hostlists_keep_slurms_order(folded: str, names: str) -> None:
    assert prelude.expand(folded) == names.split()


@pytest.mark.parametrize("width", [0, 2000])
def test_ports_are_below_those_that_linux_hands_out(width: int) -> None:
    env = {"SLURM_STEP_ID": "3"}
    ports = {prelude.own_port({**env, "SLURM_JOB_ID": str(job)}, width) for job in range(0, 90000, 7)}
    assert min(ports) >= 20000
    assert max(ports) + width < 32768
    assert len(ports) > 9000


def test_interfaces_have_their_addresses() -> None:
    assert prelude.interfaces()["lo"] == prelude.address_of("lo") == prelude.address_towards("127.0.0.1")
    with pytest.raises(prelude.Failure, match=r"interface ib9 .*; there are: .*lo") as caught:
        prelude.address_of("ib9")
    assert caught.value.kind == "interface"


class Version:
    cuda: str | None = None


class FakeTorch:
    """A torch that finds no device, with the reason that CUDA gives."""

    def __init__(self, why: str = "", cuda: str | None = "13.0") -> None:
        self.version, self.why = Version(), why
        self.version.cuda = cuda
        self.cuda = self

    def init(self) -> None:
        if self.why:
            raise RuntimeError(self.why)


STUB = "Unexpected error from cudaGetDeviceCount(). Error 34: CUDA driver is a stub library"


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        (FakeTorch(f"{STUB}\nmore"), STUB),  # recorded on an H200: a stub of libcuda in LD_LIBRARY_PATH
        (FakeTorch("No CUDA GPUs are available"), "No CUDA GPUs are available"),
        (FakeTorch(cuda=None), "it is a CPU build"),
        (FakeTorch(), "no reason is known"),
    ],
)
def test_why_there_is_no_device_is_reported_in_torchs_words(torch: Any, words: str) -> None:
    assert prelude.no_device(torch) == (words, "cpu_build_of_torch" if torch.version.cuda is None else "")


@pytest.mark.parametrize(
    ("files", "space", "words"),
    [
        (1024, -1, ""),
        (-1, -1, ""),
        (40, -1, "; limits of this process: 40 open files"),
        (65536, 32 << 30, "; limits of this process: 32 GiB of address space"),
    ],
)
def test_low_limits_are_reported(monkeypatch: pytest.MonkeyPatch, files: int, space: int, words: str) -> None:
    """Recorded on an H200: with 40 open files CUDA says 'busy or unavailable', with 32 GiB NCCL 'out of memory'."""
    values = {resource.RLIMIT_NOFILE: (files, files), resource.RLIMIT_AS: (space, space)}
    monkeypatch.setattr(resource, "getrlimit", values.__getitem__)
    assert prelude.low_limits_hint() == words


def test_gpus_are_named_as_nvidia_smi_names_them() -> None:
    about = SimpleNamespace(name="H200", uuid="1-2", pci_domain_id=0, pci_bus_id=0x9D, pci_device_id=0)
    assert prelude.gpu_facts(about) == {"name": "H200", "uuid": "GPU-1-2", "bus": "0000:9d:00"}
    old = prelude.gpu_facts(SimpleNamespace(name="K80"))
    assert json.dumps(old) == '{"name": "K80", "uuid": "", "bus": ""}'


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # refused connections
def test_who_lacks_the_steps_secret_stays_outside_and_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(prelude.SECRET, "right")
    port = free_port()
    door = prelude.Door(port)
    strangers = [b"", b"rig", b"\xff" * 300, b"wrong 7\n", b" 7\n", b"right x\n", b"[" * 200 + b"\n"]
    callers = [socket.create_connection(("127.0.0.1", port)) for _ in (*strangers, 1, 2)]
    for caller, said in zip(callers, strangers, strict=False):
        caller.sendall(said)
    callers[3].close()
    monkeypatch.setattr(prelude, "_OUTSIDE", 4)  # more than these are turned away, the oldest first
    for number, caller in enumerate(callers[-2:]):
        prelude.knock(caller, number)
        caller.sendall(b"more")
    found = [door.next(time.monotonic() + 600) for _ in range(2)]
    assert sorted(number for number, _ in found) == [0, 1]
    assert {link.recv(9) for _, link in found} == {b"more"}
    with pytest.raises(OSError, match="in time"):
        door.next(time.monotonic() + 0.05)
    door.close()
    for one in (*callers, *(link for _, link in found)):
        one.close()


@pytest.mark.parametrize("value", ["x", "1.5", "\n", "[[", "²", ""])
def test_a_variable_of_slurm_that_holds_no_number_is_named(value: str) -> None:
    assert prelude.number_of({"B": "2"}, "A", "B") == -prelude.number_of({}, "A", default="-2") == 2
    with pytest.raises(SystemExit, match=r"SLURM_JOB_ID is .*, no number"):
        prelude.number_of({"SLURM_JOB_ID": value}, "SLURM_JOB_ID")
