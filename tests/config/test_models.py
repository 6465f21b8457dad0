"""Cluster files: where they are found, what they mean, and how their mistakes are told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def test_one_group_in_short(load: Callable[[str | bytes], Cluster]) -> None:
    cluster = load("nodes: gpu[01-16]\nprofile: dgx-a100\n")
    assert cluster.name == "prod"
    assert len(cluster.groups) == 1
    assert cluster.groups[0].names[::15] == ("gpu01", "gpu16")
    assert cluster.groups[0].profile == config.load_profile("dgx-a100")
    assert cluster.group_of("gpu07") is cluster.groups[0]
    with pytest.raises(KeyError):
        cluster.group_of("gpu17")


def test_several_groups_with_their_own_profile_partition_and_thresholds(
    load: Callable[[str | bytes], Cluster],
) -> None:
    cluster = load(
        """
profile: dgx-a100
thresholds: [{size: 1G, busbw: 2, source: site}]
groups:
  - {nodes: "a[1-2]"}
  - nodes: b1
    partition: old
    profile: {extends: dgx-1-v100, gpu: {driver: '535*', count: 4}}
    thresholds: [{size: 1G, busbw: 1, source: group}]
"""
    )
    first, second = cluster.groups
    assert first.profile.name == "dgx-a100"
    assert [row.source for row in first.thresholds] == ["site"]
    assert (second.partition, second.profile.gpu and second.profile.gpu.driver) == ("old", "535*")
    assert [row.source for row in second.thresholds] == ["group", "site"]
    assert second.profile.gpu
    assert second.profile.gpu.count == 4
    assert second.profile.gpu.nvlinks == 6  # from the profile below
    assert second.profile.source.endswith("prod.yaml")


def test_a_group_without_a_profile_demands_nothing_of_the_hardware(
    load: Callable[[str | bytes], Cluster],
) -> None:
    assert load("nodes: cpu1").groups[0].profile == config.load_profile("generic")


def test_an_inline_profile_needs_nothing_below_it(load: Callable[[str | bytes], Cluster]) -> None:
    profile = load("nodes: a\nprofile: {gpu: {count: 2, name: NVIDIA L4}}").groups[0].profile
    assert (profile.name, profile.gpu and profile.gpu.count) == ("prod", 2)


def test_a_profile_file_is_found_beside_the_cluster_file(
    load: Callable[[str | bytes], Cluster], tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("extends: h200-8\ngpu:\n  driver: 580.*\n")
    profile = load("nodes: a\nprofile: ./mine.yaml").groups[0].profile
    assert profile.gpu
    assert (profile.gpu.driver, profile.gpu.count) == ("580.*", 8)


def test_a_wrong_key_in_a_profile_file_is_reported_with_that_file(
    load: Callable[[str | bytes], Cluster], tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("extends: h200-8\ngpu:\n  drivr: 580.*\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml:3: gpu\.drivr: unknown key; did you mean 'driver'\?"):
        load("nodes: a\nprofile: ./mine.yaml")


def test_profiles_that_extend_each_other_end(load: Callable[[str | bytes], Cluster], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: ./b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: ./a.yaml\n")
    with pytest.raises(ConfigError, match="in a circle"):
        load("nodes: a\nprofile: ./a.yaml")


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
    assert cluster.settings == {
        "number": 3,
        "switch": True,
        "text": "no",
        "date": "2024-01-01",
        "ratio": 1500.0,
        "quoted": "3",
        "nothing": None,
    }


def test_anchors_and_merge_keys_work(load: Callable[[str | bytes], Cluster]) -> None:
    cluster = load(
        "nodes: a\nenvironments:\n  one: &one {python: py1, mpi: pmix}\n  two: {<<: *one, python: py2}\n"
    )
    assert (cluster.environments["two"].python, cluster.environments["two"].mpi) == ("py2", "pmix")


def test_a_merged_key_does_not_move_the_line_of_the_mappings_own(
    load: Callable[[str | bytes], Cluster],
) -> None:
    text = "nodes: a\nenvironments:\n  one: &one {mpi: x}\n  two:\n    <<: *one\n    mpi: [y]\n"
    assert problem(load, text).startswith("prod.yaml:6: environments.two.mpi: must be text, not a list")


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{key}: &{key} [{','.join([f'*{below}'] * 10)}]\n"
    for below, key in zip("abcdefgh", "bcdefghi", strict=True)
)

WRONG: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "prod.yaml: is empty"),
    "only a comment": ("# x\n", "prod.yaml: is empty"),
    "unknown key": ("nodez: a\n", "prod.yaml:1: nodez: unknown key; did you mean 'nodes'?"),
    "key of a section": (
        "nodes: a\npartition: b\n",
        "prod.yaml:2: partition: unknown key; it belongs under 'slurm'",
    ),
    "deep unknown key": (
        "nodes: a\nos:\n  mounts:\n    - path: /x\n      fstyp: nfs\n",
        "prod.yaml:5: os.mounts[0].fstyp: unknown key; did you mean 'fstype'?",
    ),
    "profile key": (
        "nodes: a\nprofile:\n  extends: h200-8\n  gpu:\n    cout: 4\n",
        "prod.yaml:5: profile.gpu.cout: unknown key; did you mean 'count'?",
    ),
    "profile key in a group": (
        "groups:\n - nodes: a\n - nodes: b\n   profile: {extends: h200-8, gpu: {count: many}}\n",
        "prod.yaml:4: groups[1].profile.gpu.count: must be a whole number, not 'many'",
    ),
    "profile without GPU name": (
        "nodes: a\nprofile:\n gpu: {count: 4}\n",
        "prod.yaml:3: profile.gpu.name: is missing",
    ),
    "profile unknown": (
        "nodes: a\nprofile: dgx-a10\n",
        "prod.yaml:2: profile: no profile is called 'dgx-a10'; did you mean",
    ),
    "wrong type": ("nodes: a\nsudo: maybe\n", "prod.yaml:2: sudo: must be true or false, not 'maybe'"),
    "list for text": ("nodes: [a, b]\n", "prod.yaml:1: nodes: must be text, not a list"),
    "text for mapping": ("nodes: a\nslurm: x\n", "prod.yaml:2: slurm: must be a mapping, not 'x'"),
    "choice": (
        "nodes: a\nslurm: {scheduler: slrm}\n",
        "prod.yaml:2: slurm.scheduler: must be 'slurm' or 'none', not 'slrm'; did you mean 'slurm'?",
    ),
    "no value": ("nodes: a\nos: {mounts: [{path: }]}\n", "prod.yaml:2: os.mounts[0].path: has no value"),
    "bad duration": (
        "nodes: a\nslurm: {time: soon}\n",
        "prod.yaml:2: slurm.time: not a duration: 'soon' (write it like",
    ),
    "negative": (
        "nodes: a\nos: {hugepages: -1}\n",
        "prod.yaml:2: os.hugepages: must be greater than or equal to 0, not",
    ),
    "not a number": (
        "nodes: a\nburnin: {max_temperature: nan}\n",
        "prod.yaml:2: burnin.max_temperature: must be a finite number",
    ),
    "constant": (
        "nodes: a\nburnin: {beat: 3}\n",
        "prod.yaml:2: burnin.beat: unknown key; it is always 5 and cannot be set; remove the key",
    ),
    "constant of a shared part": (
        "nodes: a\ntransport: {alive: 3s}\n",
        "prod.yaml:2: transport.alive: unknown key; it is always 60 and cannot be set; remove the key",
    ),
    "switch of a check": (
        "nodes: a\nisolation: {cpus: true}\n",
        "prod.yaml:2: isolation.cpus: unknown key; it is a check: name it under 'required' or 'not_applicable'",
    ),
    "no key, but an attribute": (
        "nodes: a\nburnin: {order: 3}\n",
        "prod.yaml:2: burnin.order: unknown key; valid here: ",
    ),
    "several": (
        "nodes: a\nsudo: maybe\nnodez: b\n",
        "prod.yaml:2: sudo: must be true or false, not 'maybe' (and 1 more)",
    ),
    "duplicate key": (
        "nodes: a\nsudo: true\nnodes: b\n",
        "prod.yaml:3: nodes: this key is given twice, first on line 1",
    ),
    "tab": ("slurm:\n\tpartition: x\n", "prod.yaml:2: a tab stands where YAML wants spaces"),
    "no nodes": ("description: x\n", "prod.yaml:1: names no nodes: write"),
    "no groups": ("groups: []\n", "prod.yaml:1: names no nodes: write"),
    "nodes and groups": (
        "nodes: a\ngroups: [{nodes: b}]\n",
        "prod.yaml:2: groups: 'nodes' at the top is for a single",
    ),
    "node twice": (
        "groups:\n - nodes: a[1-3]\n - nodes: a3\n",
        "prod.yaml:3: groups[1].nodes: a3 is in groups[0] already",
    ),
    "empty hostlist": ("nodes: ''\n", "prod.yaml:1: nodes: names no node"),
    "bad hostlist": ("nodes: gpu[1\n", "prod.yaml:1: nodes: not a hostlist: 'gpu[1'"),
    "huge hostlist": (
        "nodes: gpu[1-999999999]\n",
        "prod.yaml:1: nodes: hostlist 'gpu[1-999999999]' names 999999999",
    ),
    "a list": ("- a\n", "prod.yaml:1: must be a mapping"),
    "plain text": ("hello\n", "prod.yaml:1: must be a mapping"),
    "two documents": ("nodes: a\n---\nnodes: b\n", "prod.yaml:2: a second document starts here"),
    "broken": ("nodes: a: b\n", "prod.yaml:1: not YAML: mapping values are not allowed here"),
    "unclosed": ("nodes: [a\n", "prod.yaml:2: not YAML: "),
    "list as key": ("nodes: a\n? [x]\n: y\n", "prod.yaml:2: a key must be plain text"),
    "not UTF-8": (b"nodes: a\ncomment: \xe9\n", "prod.yaml:2: is not UTF-8 text (byte 0xe9)"),
    "binary": (bytes(range(128)), "prod.yaml:1: holds the character"),
    "ELF": (b"\x7fELF\x02\x01\x01" + bytes(9), "prod.yaml:1: holds the character"),
    "code": (
        "nodes: !!python/object/apply:os.system [id]\n",
        "prod.yaml:1: nodes: the tag tag:yaml.org,2002:python",
    ),
    "bomb": (BOMB, "prod.yaml:5: e: its aliases unfold to more than"),
    "circle": (
        "nodes: a\nsettings: &a {x: *a}\n",
        "prod.yaml:2: settings.x: an alias points to what it stands in",
    ),
    "too deep": ("settings: " + "[" * 5000, "prod.yaml: is nested too deeply"),
    "too large": ("# " + "x" * 2**20, "prod.yaml: is larger than 512 KiB"),
    "bad merge": ("nodes: a\n<<: x\n", "prod.yaml:2: <<: must be an alias of a mapping"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_gives_one_line(load: Callable[[str | bytes], Cluster], name: str) -> None:
    content, expected = WRONG[name]
    assert problem(load, content).startswith(expected)


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


def put(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_the_working_folder_goes_before_the_users_before_the_built_in(home: Path) -> None:
    assert config.load_cluster("local").slurm.scheduler == "none"
    put(home / "config/pytest-gpucluster/clusters", "local.yaml", "nodes: user1\n")
    assert config.load_cluster("local").groups[0].nodes == "user1"
    put(home / "here/clusters", "local.yml", "nodes: here1\n")
    assert config.load_cluster("local").groups[0].nodes == "here1"
    assert config.cluster_names() == ("local", "sandbox")


def test_an_unknown_cluster_lists_what_there_is_and_where_was_looked(home: Path) -> None:
    put(home / "here/clusters", "production.yaml", "nodes: a\n")
    with pytest.raises(ConfigError) as caught:
        config.load_cluster("prodution")
    message = str(caught.value)
    for part in (
        "did you mean 'production'?",
        "local, production, sandbox",
        "clusters",
        str(home / "config"),
    ):
        assert part in message
    assert "\n" not in message


def test_sandbox_is_reserved(home: Path) -> None:
    with pytest.raises(ConfigError, match="gpucluster sandbox up"):
        config.load_cluster("sandbox")


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 300])
def test_odd_names_are_no_trap(home: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load_cluster(name)
    assert "\n" not in str(caught.value)


def test_local_is_this_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu07.site.example")
    cluster = config.load_cluster("local", profile="h200-vm:4")
    assert cluster.groups[0].names == ("gpu07",)
    assert cluster.groups[0].profile.gpu
    assert cluster.groups[0].profile.gpu.count == 4


def test_a_profile_that_is_asked_for_replaces_every_groups(
    load: Callable[[str | bytes], Cluster], tmp_path: Path
) -> None:
    load("groups: [{nodes: a, profile: dgx-a100}, {nodes: b}]")
    cluster = config.load_cluster(tmp_path / "prod.yaml", profile="dgx-h100")
    assert {group.profile.name for group in cluster.groups} == {"dgx-h100"}
    with pytest.raises(ConfigError, match="did you mean 'dgx-h100'"):
        config.load_cluster(tmp_path / "prod.yaml", profile="dgx-h10")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_load_and_fit_the_schema(path: Path) -> None:
    assert config.load_cluster(path).name == path.stem
    validator().validate(yaml.safe_load(path.read_text()))


def test_there_are_examples() -> None:
    assert [path.stem for path in EXAMPLES] == [
        "aws-g4dn",
        "dgx-a100-basepod",
        "k8s-h100",
        "v100-modules-conda",
    ]


def validator(kind: Any = "cluster") -> jsonschema.protocols.Validator:
    jsonschema.Draft202012Validator.check_schema(json_schema.schema(kind))
    return jsonschema.Draft202012Validator(json_schema.schema(kind))


@pytest.mark.parametrize(
    "wrong",
    [
        "nodez: a",
        "nodes: [a]",
        "nodes: a\ngroups: [{nodes: b}]",
        "description: no nodes",
        "nodes: a\nslurm: {scheduler: pbs}",
        "nodes: a\nprofile: {gpu: {cout: 4}}",
        "nodes: a\nprofile: 5",
        "nodes: a\nthresholds: [{size: 1G}]",
        "nodes: a\nos: {mounts: [{path: /x, fstyp: nfs}]}",
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(
    load: Callable[[str | bytes], Cluster], wrong: str
) -> None:
    assert not validator().is_valid(yaml.safe_load(wrong))
    with pytest.raises(ConfigError):
        load(wrong)


def test_the_schema_takes_text_without_quotes() -> None:
    validator().validate(yaml.safe_load("nodes: a\nenvironments: {x: {exports: {NCCL_IB_DISABLE: 1}}}"))
    validator().validate(yaml.safe_load("nodes: a\nprofile: {extends: h200-8, gpu: {driver: 580, count: 4}}"))


def test_a_check_is_stated_by_the_patterns_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "prod.yaml").write_text(
        "nodes: a\nrequired: [isolation.cpus, gpu.count]\nnot_applicable: {gpu.*: there are none}\n"
    )
    found = config.load_cluster(tmp_path / "prod.yaml")
    stated = [
        found.stated(f"{check}") for check in ("isolation.cpus", "isolation.tmp", "gpu.count", "gpu.xid")
    ]
    assert stated == [True, None, False, False]
