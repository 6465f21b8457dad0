"""`gpucluster check` reports an expired waiver as an error, and one that can cover nothing as a warning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

FILE = """\
nodes: gpu[01-04]
waivers:
  - {nodes: gpu03, checks: [gpu.ecc_mode, run.available, nccl.proved, site.mine], reason: r, until: 2999-01-31}
  - {nodes: "gpu[04-05]", checks: [gpu.ecmode, os.drift/kernel, os.drfit/kernel], reason: r, until: 2999-01-31}
"""
OLD = "  - {checks: [gpu.count], reason: r, ticket: OPS-1, until: 2020-02-29}\n"


def test_a_waiver_without_effect_is_a_warning_and_an_expired_one_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prod.yaml"
    path.write_text(FILE)
    assert main(["check", str(path)]) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning:")]
    assert warnings == [
        f"warning: {path}:4: waivers[1].nodes: has no effect on gpu05: the cluster has no such node",
        f"warning: {path}:4: 'gpu.ecmode' of a waiver matches no check; the nearest is 'gpu.ecc_mode'",
        f"warning: {path}:4: 'os.drfit/kernel' of a waiver matches no check; the nearest is 'os.drift'",
    ]
    path.write_text(FILE + OLD)
    assert main(["check", str(path)]) == 4
    out = capsys.readouterr().out
    assert f"{path}:5: waivers[2].until: 2020-02-29 expired (OPS-1): repair" in out
