"""Cluster files: where they are found, what they mean, and how their mistakes are told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest
import yaml
from paths import ROOT

from pytest_gpucluster import config
from pytest_gpucluster.config import json_schema
from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.config import Cluster

VALIDATOR = jsonschema.Draft202012Validator(json_schema.schema())
EXAMPLES = sorted((ROOT / "examples" / "clusters").glob("*.yaml"))


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str | bytes], Cluster]:
    def loaded(content: str | bytes) -> Cluster:
        path = tmp_path / "prod.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return config.load_cluster(path)

    return loaded


def problem(load: Callable[[str | bytes], Cluster], content: str | bytes) -> str:
    """Return what the error says behind the folder of the file."""
    with pytest.raises(ConfigError) as caught:
        load(content)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message.rsplit("/", 1)[-1] if "prod.yaml" not in message else message[message.index("prod.yaml") :]


def test_several_groups_with_their_own_profile_partition_and_thresholds(
    load: Callable[[str | bytes], Cluster], tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("extends: dgx-1-v100\ngpu:\n  driver: 535*\n")
    cluster = load(
        """
profile: dgx-a100
thresholds: [{size: 1G, busbw: 2, source: site}]
groups:
  - {nodes: "a[1-2]"}
  - {nodes: c1, profile: {gpu: {count: 2, name: NVIDIA L4}}}
  - nodes: b1
    partition: old
    profile: {extends: ./mine.yaml, gpu: {count: 4}}
    thresholds: [{size: 1G, busbw: 1, source: group}]
"""
    )
    first, inline, second = cluster.groups
    assert (inline.profile.name, inline.profile.gpu and inline.profile.gpu.count) == ("prod", 2)
    assert cluster.group_of("a2") is first
    with pytest.raises(KeyError):
        cluster.group_of("a3")
    assert load("nodes: cpu1").groups[0].profile == config.load_profile("generic")
    assert first.profile.name == "dgx-a100"
    assert [row.source for row in first.thresholds] == ["site"]
    assert (second.partition, second.profile.gpu and second.profile.gpu.driver) == ("old", "535*")
    assert [row.source for row in second.thresholds] == ["group", "site"]
    assert second.profile.gpu
    assert second.profile.gpu.count == 4
    assert second.profile.gpu.nvlinks == 6  # from the profile below
    assert second.profile.source.endswith("prod.yaml")


def test_mistakes_in_a_profile_file_are_reported(
    load: Callable[[str | bytes], Cluster], tmp_path: Path
) -> None:
    for name, text in (
        ("a", "extends: ./b.yaml"),
        ("b", "extends: ./a.yaml"),
        ("c", "extends: h200-8\ngpu:\n  drivr: 580"),
    ):
        (tmp_path / f"{name}.yaml").write_text(f"{text}\n")
    with pytest.raises(ConfigError, match="in a circle"):
        load("nodes: a\nprofile: ./a.yaml")
    with pytest.raises(ConfigError, match=r"c\.yaml:3: gpu\.drivr: unknown key; did you mean 'driver'\?"):
        load("nodes: a\nprofile: ./c.yaml")


def test_yaml_1_1_has_no_traps(load: Callable[[str | bytes], Cluster]) -> None:
    cluster = load(
        """
nodes: gpu[01-02]
profile: {extends: dgx-a100, gpu: {cuda: 12.10, driver: 535}}
slurm: {time: 01:30:00, queue_wait: 1:30, comment: no, account: 007, exclusive: off}
environments: {x: {exports: {NCCL_IB_DISABLE: 1, A: on, B: 0x10, C: 2024-01-01}}}
settings: {number: 3, switch: true, text: no, date: 2024-01-01, ratio: 1.5e3, quoted: '3', nothing: }
"""
    )
    gpu, slurm = cluster.groups[0].profile.gpu, cluster.slurm
    assert gpu
    assert (gpu.cuda, gpu.driver) == ("12.10", "535")
    assert (slurm.time, slurm.queue_wait, slurm.comment, slurm.account) == (5400, 90, "no", "007")
    assert slurm.exclusive is False
    exports = {"NCCL_IB_DISABLE": "1", "A": "on", "B": "0x10", "C": "2024-01-01"}
    assert cluster.environments["x"].exports == exports
    plain = cluster.settings
    assert [plain[key] for key in ("number", "switch", "text", "date")] == [3, True, "no", "2024-01-01"]
    assert [plain[key] for key in ("ratio", "quoted", "nothing")] == [1500.0, "3", None]


def test_anchors_and_merge_keys_work(load: Callable[[str | bytes], Cluster]) -> None:
    cluster = load(
        "nodes: a\nenvironments:\n  one: &one {python: py1, mpi: pmix}\n  two: {<<: *one, python: py2}\n"
    )
    assert (cluster.environments["two"].python, cluster.environments["two"].mpi) == ("py2", "pmix")
    text = (
        "nodes: a\nenvironments:\n  one: &one {mpi: x}\n  two:\n    <<: *one\n    mpi: [y]\n"  # its own line
    )
    assert problem(load, text).startswith("prod.yaml:6: environments.two.mpi: must be text, not a list")


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{key}: &{key} [{','.join([f'*{below}'] * 10)}]\n"
    for below, key in zip("abcdefgh", "bcdefghi", strict=True)
)

WRONG: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", ": is empty"),
    "unknown key": ("nodez: a\n", ":1: nodez: unknown key; did you mean 'nodes'?"),
    "key of a section": ("nodes: a\npartition: b\n", ":2: partition: unknown key; it belongs under 'slurm'"),
    "deep unknown key": (
        "nodes: a\nos:\n  mounts:\n    - path: /x\n      fstyp: nfs\n",
        ":5: os.mounts[0].fstyp: unknown key; did you mean 'fstype'?",
    ),
    "profile without GPU name": (
        "nodes: a\nprofile:\n gpu: {count: 4}\n",
        ":3: profile.gpu.name: is missing",
    ),
    "wrong type": ("nodes: a\nsudo: maybe\n", ":2: sudo: must be true or false, not 'maybe'"),
    "choice": (
        "nodes: a\nslurm: {scheduler: slrm}\n",
        ":2: slurm.scheduler: must be 'slurm' or 'none', not 'slrm'; did you mean 'slurm'?",
    ),
    "no value": ("nodes: a\nos: {mounts: [{path: }]}\n", ":2: os.mounts[0].path: has no value"),
    "negative": (
        "nodes: a\nos: {interfaces: {eth0: -1}}\n",
        ":2: os.interfaces.eth0: must be greater than or equal to 0, not",
    ),
    "constant": (
        "nodes: a\nburnin: {beat: 3}\n",
        ":2: burnin.beat: unknown key; it is always 5 and cannot be set; remove the key",
    ),
    "switch of a check": (
        "nodes: a\nisolation: {cpus: true}\n",
        ":2: isolation.cpus: unknown key; it is a check: name it under 'required' or 'not_applicable'",
    ),
    "duplicate key": (
        "nodes: a\nsudo: true\nnodes: b\n",
        ":3: nodes: this key is given twice, first on line 1",
    ),
    "tab": ("slurm:\n\tpartition: x\n", ":2: a tab stands where YAML wants spaces"),
    "no nodes": ("description: x\n", ":1: names no nodes: write"),
    "nodes and groups": (
        "nodes: a\ngroups: [{nodes: b}]\n",
        ":2: groups: 'nodes' at the top is for a single",
    ),
    "node twice": (
        "groups:\n - nodes: a[1-3]\n - nodes: a3\n",
        ":3: groups[1].nodes: a3 is in groups[0] already",
    ),
    "bad hostlist": ("nodes: gpu[1\n", ":1: nodes: not a hostlist: 'gpu[1'"),
    "too large": ("# " + "x" * 2**20, ": is larger than 512 KiB"),
    "two documents": ("nodes: a\n---\nnodes: b\n", ":2: a second document starts here"),
    "broken": ("nodes: a: b\n", ":1: not YAML: mapping values are not allowed here"),
    "not UTF-8": (b"nodes: a\ncomment: \xe9\n", ":2: is not UTF-8 text (byte 0xe9)"),
    "binary": (bytes(range(128)), ":1: holds the character"),
    "code": ("nodes: !!python/object/apply:os.system [id]\n", ":1: nodes: the tag tag:yaml.org,2002:python"),
    "bomb": (BOMB, ":5: e: its aliases unfold to more than"),
    "circle": ("nodes: a\nsettings: &a {x: *a}\n", ":2: settings.x: an alias points to what it stands in"),
    "too deep": ("settings: " + "[" * 1500, ": is nested too deeply"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_gives_one_line(load: Callable[[str | bytes], Cluster], name: str) -> None:
    content, expected = WRONG[name]
    assert problem(load, content).startswith(f"prod.yaml{expected}")


def test_a_folder_a_pipe_and_a_missing_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for path, expected in (
        (tmp_path, "is a directory"),
        (tmp_path / "pipe.yaml", "is not a regular file"),
        (Path("/dev/zero"), "is not a regular file"),
        (tmp_path / "none.yaml", "there is no such file"),
    ):
        with pytest.raises(ConfigError, match=expected):
            config.load_cluster(path)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in an empty folder, with an empty configuration folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_the_working_folder_goes_before_the_users_before_the_built_in(home: Path) -> None:
    assert config.load_cluster("local").slurm.scheduler == "none"
    (home / "config/pytest-gpucluster/clusters").mkdir(parents=True)
    (home / "config/pytest-gpucluster/clusters/local.yaml").write_text("nodes: user1\n")
    assert config.load_cluster("local").groups[0].nodes == "user1"
    (home / "here/clusters").mkdir()
    (home / "here/clusters/local.yml").write_text("nodes: here1\n")
    assert config.load_cluster("local").groups[0].nodes == "here1"
    assert config.cluster_names() == ("local", "sandbox")


def test_a_profile_that_is_asked_for_replaces_every_groups(
    load: Callable[[str | bytes], Cluster], tmp_path: Path
) -> None:
    load("groups: [{nodes: a, profile: dgx-a100}, {nodes: b}]")
    cluster = config.load_cluster(tmp_path / "prod.yaml", profile="dgx-h100")
    assert {group.profile.name for group in cluster.groups} == {"dgx-h100"}
    with pytest.raises(ConfigError, match="did you mean 'dgx-h100'"):
        config.load_cluster(tmp_path / "prod.yaml", profile="dgx-h10")


def test_examples_load_and_fit_the_schema() -> None:
    assert len(EXAMPLES) == 4
    for path in EXAMPLES:
        loaded = config.load_cluster(path)
        assert (loaded.name, loaded.warnings) == (path.stem, ())
        VALIDATOR.validate(yaml.safe_load(path.read_text()))
    for text in (
        "environments: {x: {exports: {A: 1}}}",
        "profile: {extends: h200-8, gpu: {driver: 580, count: 4}}",
    ):
        VALIDATOR.validate(yaml.safe_load(f"nodes: a\n{text}"))  # text needs no quotes


def test_a_check_is_stated_by_the_patterns_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "prod.yaml").write_text(
        "nodes: a\nrequired: [isolation.cpus, gpu.count]\nnot_applicable: {gpu.*: there are none}\n"
    )
    found = config.load_cluster(tmp_path / "prod.yaml")
    stated = [
        found.stated(f"{check}") for check in ("isolation.cpus", "isolation.tmp", "gpu.count", "gpu.xid")
    ]
    assert stated == [True, None, False, False]
