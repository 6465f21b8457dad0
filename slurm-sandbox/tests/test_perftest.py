"""The simulated perftest: the messages of the real one, the forms of its output, and the faults of the link model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from sandbox_helpers import free_port

from slurm_sandbox import perftest

if TYPE_CHECKING:
    from pathlib import Path

RAIL = {
    "rate": 400.0, "state": "ACTIVE", "link_layer": "InfiniBand", "mtu": 4096, "lid": 1, "speed": 1.0, "latency": 1.0, "gids": 8,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    (tmp_path / "nodes").mkdir()
    (tmp_path / "base/perftest.json").write_text(json.dumps({"mlx5_0": RAIL}))
    (tmp_path / "base/network.json").write_text('{"links": {}, "leaf": [], "uplink": 1.0}')
    return tmp_path


def argv(model: Path, name: str, node: str, *words: str) -> list[str]:
    places = (str(model / "nodes"), str(model / "base"))
    return [sys.executable, "-I", "-S", perftest.__file__, *places, name, node, *words]


def alone(model: Path, *words: str, name: str = "ib_write_bw") -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv(model, name, "a", *words), capture_output=True, text=True, timeout=30, check=False)


def pair(model: Path, name: str, *words: str) -> tuple[str, str]:
    """Return what server and client print."""
    port = ("-p", str(free_port()))
    server = subprocess.Popen(argv(model, name, "b", *port, *words), stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    for line in server.stdout:  # it listens soon after this line
        if "Waiting" in line:
            break
    for _ in range(50):
        client = alone(model, *port, *words, "127.0.0.1", name=name)
        if "Couldn't connect" not in client.stderr:
            break
    return server.communicate(timeout=30)[0], client.stdout


@pytest.mark.parametrize("name", ["ib_write_bw", "ib_send_bw"])
def test_both_sides_of_a_bandwidth_test_print_the_same_row(model: Path, name: str) -> None:
    server, client = pair(model, name, "-d", "mlx5_0", "--report_gbits", "-s", "1048576", "-n", "5000")
    rows = [[line for line in text.splitlines() if line.startswith(" 1048576 ")] for text in (server, client)]
    assert [len(found) for found in rows] == [1, 1]
    assert 380 < float(rows[1][0].split()[3]) < 400
    assert "BW average[Gb/sec]" in client


def test_only_the_client_of_a_latency_test_prints_a_row(model: Path) -> None:
    server, client = pair(model, "ib_read_lat", "-d", "mlx5_0")
    assert "t_typical[usec]" in client
    assert [line for line in server.splitlines() if line.startswith(" 2 ")] == []
    (row,) = [line.split() for line in client.splitlines() if line.startswith(" 2 ")]
    assert len(row) == 9


def test_the_report_is_json_in_the_stated_file(model: Path) -> None:
    _, client = pair(model, "ib_write_bw", "--report_gbits", "--out_json", "--out_json_file=/dev/stdout")
    report: dict[str, Any] = json.loads(client[client.index("{") : client.rindex("}") + 1])
    assert report["test_info"]["Device"] == "mlx5_0"
    assert 380 < report["results"]["BW_average"] < 400


@pytest.mark.parametrize(
    ("network", "share"),
    [
        ({"links": {"b": 0.5}}, 0.5),
        ({"leaf": ["a"], "uplink": 0.25}, 0.25),
        ({"leaf": ["a", "b"], "uplink": 0.25}, 1.0),
    ],
)
def test_a_slow_cable_or_leaf_slows_the_pair(model: Path, network: dict[str, Any], share: float) -> None:
    (model / "nodes/a").mkdir()
    (model / "nodes/a/network.json").write_text(json.dumps({"links": {}, "leaf": [], "uplink": 1.0, **network}))
    _, client = pair(model, "ib_write_bw", "--report_gbits")
    (row,) = [line.split() for line in client.splitlines() if line.startswith(" 65536 ")]
    assert float(row[3]) == pytest.approx(394 * share, rel=0.03)


def test_a_server_that_does_not_listen_and_a_missing_adapter_have_perftests_words(model: Path) -> None:
    port = str(free_port())
    refused = alone(model, "-p", port, "127.0.0.1")
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (1, f"Couldn't connect to 127.0.0.1:{port}")
    assert alone(model, "-d", "mlx5_9").stderr.startswith("IB device mlx5_9 not found\n")


@pytest.mark.skipif(shutil.which("ib_write_bw") is None, reason="the package perftest is not installed")
@pytest.mark.parametrize("words", [("--bogus",), ("-d", "mlx5_0")])
def test_the_real_tool_prints_the_same_errors_on_a_machine_without_adapters(
    model: Path, words: tuple[str, ...]
) -> None:
    real = subprocess.run(["ib_write_bw", *words], capture_output=True, text=True, timeout=30, check=False)
    if "-d" in words and "Did not detect devices" not in real.stderr:
        pytest.skip("this machine has adapters")
    (model / "base/perftest.json").write_text("{}")
    mine = alone(model, *words)
    assert (mine.returncode, mine.stderr) == (real.returncode, real.stderr)
