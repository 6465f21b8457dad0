"""Changes of a cluster file for one run, KEY=VALUE: the option --set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.config import Cluster

FILE = """
groups:
  - {nodes: "gpu[01-02]", partition: batch}
  - {nodes: "gpu[03-04]", partition: batch}
slurm: {partition: batch, reservation: maint, extra_args: [--qos=low, --nice]}
required: [gpu.count]
settings: {least: 200}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prod.yaml"
    path.write_text(FILE)
    return path


def changed(file: Path, *changes: str) -> Cluster:
    return load_cluster(file, changes=changes)


def refused(file: Path, *changes: str) -> str:
    with pytest.raises(ConfigError) as caught:
        changed(file, *changes)
    return str(caught.value)


def test_a_value_is_replaced_as_if_the_file_had_it(file: Path) -> None:
    slurm = changed(file, "slurm.partition=debug", "slurm.time=90m", "slurm.account=ops").slurm
    assert (slurm.partition, slurm.time, slurm.account, slurm.reservation) == ("debug", 5400, "ops", "maint")
    more = changed(
        file, "slurm.reservation=null", "drain.max=3", "reports.keep=4", "reports.keep=5", "required=[]"
    )
    assert (more.slurm.reservation, more.drain.max, more.reports.keep) == (None, "3", 5)
    assert (more.required, more.warnings) == ((), ())  # the empty list of a change is meant
    typed = changed(file, "settings.least=300", "settings.name='300'", "settings.on=true")
    assert typed.settings == {"least": 300, "name": "300", "on": True}


def test_a_value_is_yaml_and_a_list_has_indices(file: Path) -> None:
    cluster = changed(
        file, "groups[1].partition=debug", "required=[os.time_sync, gpu.xid]", "slurm.extra_args[0]=--qos=a=b"
    )
    assert [group.partition for group in cluster.groups] == ["batch", "debug"]
    assert cluster.required == ("os.time_sync", "gpu.xid")
    assert cluster.slurm.extra_args == ("--qos=a=b", "--nice")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slurm.partitoin=debug", "slurm.partitoin: unknown key; did you mean 'partition'?"),
        ("slurm.time=soon", "slurm.time: "),
        ("reports.keep=0", "reports.keep: must be greater than or equal to 1, not '0'"),
        ("groups[1].partion=x", "groups[1].partion: unknown key; did you mean 'partition'?"),
        ("groups[2].partition=x", "has no groups[2] with keys"),
        ("slurm.extra_args[2]=x", "has no slurm.extra_args[2]"),
        ("slurm.extra_args=[--qos=a, --no-shell]", ": slurm.extra_args[1]: "),  # not a line of the file
        ("slurm.reservation=", "must be KEY=VALUE, like slurm.reservation=maint (null removes a value)"),
        ("=x", "must be KEY=VALUE"),
        ("required=[a", "not YAML"),
        ("required=!!python/object:a b", "is not supported; write the plain value"),
        ("slurm.reservation=# none", "has no value: write one, or null"),
        ("nodes=gpu01", "groups: 'nodes' at the top is for a single group; use one of the two"),
    ],
)
def test_a_wrong_change_is_one_line_that_names_the_option(file: Path, text: str, said: str) -> None:
    line = refused(file, text)
    assert "\n" not in line
    assert said in line
    if "groups: " not in said:  # the key of the file, not that of the option, is wrong there
        assert line.startswith(f"--set {text}: ")


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("slurm.partition=debug", "access=ssh"),
        ("slurm.reservation=x", "slurm.scheduler=none"),
        ("ssh.user=me", "slurm.time=1h"),
    ],
)
def test_a_change_without_effect_is_refused(file: Path, text: str, more: str) -> None:
    assert "has no effect" in refused(file, text, more)
    assert changed(file, "access=ssh").warnings == ()  # what the file has for the other access is none
    file.write_text(f"{FILE}access: ssh\n")
    assert len(load_cluster(file).warnings) == 3
    file.write_text(FILE.replace("required:", "requird:"))
    line = refused(file, "slurm.partition=debug")
    assert line.startswith(f"{file}:6: requird: unknown key")  # errors of the file keep their lines
