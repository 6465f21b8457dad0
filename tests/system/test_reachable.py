"""Nodes that cannot be reached by the names that Slurm gives, on nodes with a network and files of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from paths import ROOT
from plugin_helpers import Run, on, run_pytest
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.sandbox import Sandbox
from slurm_sandbox import namespaces
from slurm_sandbox.daemons import search_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUITE = ROOT / "suites" / "os" / "test_os.py"
WHY_NOT = namespaces.why_not(search_path())
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """Four nodes with a network each."""
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=4, gpus_per_node=0, kind="namespaced")
        yield sandbox


def inside(box: Sandbox, node: str, script: str) -> None:
    """Run a shell script as the administrator of a node would."""
    state = box._state()
    assert state is not None
    spaces = box._namespaces(state)
    assert spaces is not None
    done = LocalTransport(box.env).run([*spaces.on_node(node), "sh", "-euc", script], timeout=1200)
    assert done.rc == 0, done.stderr


def judged(box: Sandbox, folder: Path) -> tuple[Run, dict[str, str]]:
    """Return the run and {node: outcome} of os.reachable."""
    run = run_pytest(folder, on(box), "-k", "reachable or responds", where=[str(SUITE)])
    return run, {event["node"]: event["outcome"] for event in run.events if event.get("check") == "os.reachable"}


@pytest.mark.parametrize(
    ("node", "put", "heal"),
    [
        # a route that loses what goes to other nodes; the login node, and with it Slurm, is reached
        ("gpu02", "ip route add blackhole 10.1.0.0/24", "ip route del blackhole 10.1.0.0/24"),
        ("gpu03", "ip route add prohibit 10.1.0.0/24", "ip route del prohibit 10.1.0.0/24"),
        (
            "gpu04",
            "sed 's/^10.1.0.1\\t/10.1.0.77\\t/' /etc/hosts >/tmp/hosts; mount --bind /tmp/hosts /etc/hosts",
            "umount /etc/hosts; rm /tmp/hosts",
        ),
        (
            "gpu01",
            "grep -v gpu02 /etc/hosts >/tmp/hosts; mount --bind /tmp/hosts /etc/hosts",
            "umount /etc/hosts; rm /tmp/hosts",
        ),
    ],
)
def test_the_node_at_fault_is_the_one_that_fails(box: Sandbox, tmp_path: Path, node: str, put: str, heal: str) -> None:
    inside(box, node, put)
    try:
        run, ends = judged(box, tmp_path)
    finally:
        inside(box, node, heal)
    assert ends == {name: "failed" if name == node else "passed" for name in box.nodes}, run.out
    assert run.rc == 1
    assert "action:       configure" in run.out
