"""Cluster files: where they are found, what they mean, and how their mistakes are told."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import typing
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import ROOT
from pydantic import BaseModel

from pytest_gpucluster import config
from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.cluster.transport import ssh_connect
from pytest_gpucluster.config import json_schema, load_cluster
from pytest_gpucluster.config.models import Cluster, ClusterFile, Group, Profile
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError
from pytest_gpucluster.core.fact import Fact
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.values import ssh_address
from pytest_gpucluster.plugin.option_table import text_options
from pytest_gpucluster.plugin.options import check_nodes, refuse_names, refuse_words, refused_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


def test_mistakes_in_a_profile_are_reported(load: Callable[[str | bytes], Cluster], tmp_path: Path) -> None:
    for name, text in (
        ("a", "extends: ./b.yaml"),
        ("b", "extends: ./a.yaml"),
        ("c", "extends: h200-8\ngpu:\n  drivr: 580"),
    ):
        (tmp_path / f"{name}.yaml").write_text(f"{text}\n")
    (tmp_path / "d.yaml").write_text("root:*:20228:0::: \n")
    with pytest.raises(ConfigError, match=r"d\.yaml is no profile: it has none of its keys \(name, [^:]*$"):
        load("nodes: a\nprofile: ./d.yaml")
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
    cluster = load("nodes: a\nenvironments:\n  one: &one {python: py1, mpi: pmix}\n  two: {<<: *one, python: py2}\n")
    assert (cluster.environments["two"].python, cluster.environments["two"].mpi) == ("py2", "pmix")
    text = "nodes: a\nenvironments:\n  one: &one {mpi: x}\n  two:\n    <<: *one\n    mpi: [y]\n"  # its own line
    assert problem(load, text).startswith("prod.yaml:6: environments.two.mpi: must be text, not a list")


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{key}: &{key} [{','.join([f'*{below}'] * 10)}]\n" for below, key in zip("abcdefgh", "bcdefghi", strict=True)
)

WRONG: dict[str, tuple[str | bytes, str]] = {
    "no link": (
        "nodes: a\nprofile: {fabric: {mtu: 9}}\n",
        ":2: profile.fabric: rate and mtu have no effect without link_layer",
    ),
    "plain text": ("hello\n", ":1: must be a mapping"),
    "list as key": ("nodes: a\n? [x]\n: y\n", ":2: a key must be plain text"),
    "bad merge": ("nodes: a\n<<: x\n", ":2: <<: must be an alias of a mapping"),
    "empty hostlist": ("nodes: ''\n", ":1: nodes: names no node"),
    "empty": ("", ": is empty"),
    "unknown key": ("nodez: a\n", ":1: nodez: unknown key; did you mean 'nodes'?"),
    "key of a section": ("nodes: a\npartition: b\n", ":2: partition: unknown key; it belongs under 'slurm'"),
    "deep unknown key": (
        "nodes: a\nos:\n  mounts:\n    - path: /x\n      fstyp: nfs\n",
        ":5: os.mounts[0].fstyp: unknown key; did you mean 'fstype'?",
    ),
    "profile without GPU name": ("nodes: a\nprofile:\n gpu: {count: 4}\n", ":3: profile.gpu.name: is missing"),
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
    "duplicate key": ("nodes: a\nsudo: true\nnodes: b\n", ":3: nodes: this key is given twice, first on line 1"),
    "tab": ("slurm:\n\tpartition: x\n", ":2: a tab stands where YAML wants spaces"),
    "no nodes": ("description: x\n", ":1: names no nodes: write"),
    "nodes and groups": ("nodes: a\ngroups: [{nodes: b}]\n", ":2: groups: 'nodes' at the top is for a single"),
    "node twice": ("groups:\n - nodes: a[1-3]\n - nodes: a3\n", ":3: groups[1].nodes: a3 is in groups[0] already"),
    "bad hostlist": ("nodes: gpu[1\n", ":1: nodes: not a hostlist: 'gpu[1'"),
    "too large": ("# " + "x" * 2**20, ": is larger than 512 KiB"),
    "two documents": ("nodes: a\n---\nnodes: b\n", ":2: a second document starts here"),
    "secret": ("root:*:20228:0::: \ndaemon:*:1: \n", " is no cluster file: it has none of its keys"),
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


def test_a_requested_profile_replaces_all(load: Callable[[str | bytes], Cluster], tmp_path: Path) -> None:
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
    for text in ("environments: {x: {exports: {A: 1}}}", "profile: {extends: h200-8, gpu: {driver: 580, count: 4}}"):
        VALIDATOR.validate(yaml.safe_load(f"nodes: a\n{text}"))  # text needs no quotes


def test_a_check_is_stated_by_the_patterns_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "prod.yaml").write_text(
        "nodes: a\nrequired: [isolation.cpus, gpu.count]\nnot_applicable: {gpu.*: there are none}\n"
    )
    found = config.load_cluster(tmp_path / "prod.yaml")
    stated = [found.stated(check) for check in ("isolation.cpus", "isolation.tmp", "gpu.count", "gpu.xid")]
    assert stated == [True, None, False, False]


# --- words and names that mean nothing

PLAIN = Profile(name="plain", description="of a test", source="none")
TEXTS = {"--time": "time_limit"}  # {option: its attribute}
NAMES = """
nodes exclude-nodes profile report-dir history baseline until burnin-time burnin-resume campaign campaign-time campaign-window
budget max-nodes-at-once untested-for
"""
TEXTS |= {f"--{name}": name.replace("-", "_") for name in NAMES.split()}


def options(**changes: Any) -> Any:
    return Namespace(**{**dict.fromkeys(TEXTS.values()), **changes})


def refused(option: Any) -> str:
    with pytest.raises(pytest.UsageError) as caught:
        refuse_words(option)
    return str(caught.value)


def test_an_option_without_its_value_is_refused() -> None:
    assert dict(text_options()) == TEXTS
    for name, attribute in TEXTS.items():
        assert refused(options(**{attribute: ""})).startswith(f"{name}: has no value")


@pytest.mark.parametrize("word", ["numprocesses", "maxprocesses"])
def test_less_than_no_process_and_every_test_in_every_worker_are_refused(word: str) -> None:
    for fine in ({}, {"nodes": "gpu01", word: 0, "dist": "load"}, {"numprocesses": "auto"}, {word: 3}):
        refuse_words(options(**fine))
    assert "-1: must be a number of processes from 0 on" in refused(options(**{word: -1}))
    assert refused(options(dist="each")).startswith("--dist=each: ")


def cluster(*nodes: str, **more: Any) -> Cluster:
    return Cluster(name="lab", groups=tuple(Group(nodes=one, profile=PLAIN) for one in nodes), **more)


def inventory(nodes: str) -> dict[str, NodeInfo]:
    return {name: NodeInfo(name, "IDLE") for name in hostlist.expand(nodes)}


def test_a_file_whose_nodes_slurm_does_not_know_is_refused() -> None:
    lab = cluster("gpu[01-02]", "old1")
    for known, has in (("node[1-9]", r"node\[1-9\]"), ("", "none that this user sees")):
        nodes = inventory(known)
        with pytest.raises(ConfigError, match=rf"Slurm knows no node of gpu\[01-02\],old1; it has {has}: "):
            check_nodes(lab, nodes)
    check_nodes(lab, {"old1": NodeInfo("old1", "IDLE")})


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"matrix": {"expected": {"srun-mpi": "why", "srun_mpi": "why"}}}, "did you mean 'srun-mpi'"),
        ({"matrix": {"expected": {"zz": "why"}}}, "the cells are mpirun-cpu, mpirun-gpu, "),
        ({"os": {"limits": {"nofile": "1024", "memlok": "unlimited"}}}, r"os\.limits: unknown limit 'memlok'"),
        ({"nccl": {"command": "all_reduce_perf -f 1"}}, "-f must be a number"),
    ],
)
def test_a_name_that_means_nothing_is_refused(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        refuse_names(cluster("gpu01", **section))
    expected, limits = {"srun_pyxis-nccl": "why"}, {"memlock": "unlimited", "nofile": "1024"}  # these exist
    refuse_names(cluster("gpu01", nccl={"command": "all_reduce_perf -b 8 -e 8"}, matrix={}))
    refuse_names(cluster("gpu01", os={"limits": limits}, matrix={"expected": expected}))


WITHOUT_EFFECT = {
    "transport: {port: 22, user: me}": "transport.port: has no effect without 'host' (and 1 more)",
    "min_nodes: 3": "min_nodes: asks for 3 nodes; the cluster has 2",
    "nccl: {environment: pt}": "nccl.environment: no environment is called 'pt'; did you mean 'ptx'?",
    "matrix: {framework: ptxx}": "matrix.framework: no environment is called 'ptxx'; did you mean 'ptx'?",
    **{
        f"{section}: {{nodes: 3, environment: ptx}}": f"{section}.nodes: asks for 3 nodes; the cluster has 2"
        for section in ("container", "ray")
    },
}


@pytest.mark.parametrize("text", WITHOUT_EFFECT)
def test_a_key_without_effect_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(f"groups: [{{nodes: a}}, {{nodes: b}}]\n{text}\nenvironments: {{ptx: {{}}, mpi: {{}}}}\n")
    with pytest.raises(ConfigError) as caught:
        config.load_cluster(path)
    assert str(caught.value).startswith(f"{path}:2: {WITHOUT_EFFECT[text]}")


# --- hostile texts

MOST = int(os.environ.get("GPUCLUSTER_FUZZ_EXAMPLES", "200"))
KEY = "<key>"
WORDS = r"""-x --help -oProxyCommand=true .. ../../etc / // ~ ~/x ~no-such-user/x * [ ( a{ \ ' " `id` $(id) $HOME ;id a|b a&b
% %s {} {0} é 1 null = : , a=b a,b #"""
LONG = ["x" * 300, "/" + "x" * 300, "/x" * 3000, "x" * 40_000]
ODD = [*WORDS.split(), *LONG, "", " ", "a b", "vm swappiness", "/a b", "\u202e", "\t", "\n"]


def texts_of(annotation: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the place of each text that a model can hold; `[]` is a list, KEY a key of a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from texts_of(field.annotation, (*path, name))
    elif annotation is str:
        yield path
    elif typing.get_origin(annotation) is dict:
        keys, values = typing.get_args(annotation)
        yield from texts_of(keys, (*path, KEY))
        yield from texts_of(values, (*path, "name"))
    else:
        listed = typing.get_origin(annotation) is tuple
        for one in typing.get_args(annotation):
            if one is not Ellipsis and not isinstance(one, str):
                yield from texts_of(one, (*path, "[]") if listed else path)


# `settings` is the site's own, profiles are tested with their files
PLACES = sorted({path for path in texts_of(ClusterFile) if path[0] != "settings" and "profile" not in path})


def placed(path: tuple[str, ...], text: str) -> Any:
    """Return plain data with a text at a place."""
    if not path:
        return text
    first, *rest = path
    if first == KEY:
        return {text: 1}
    inner = placed(tuple(rest), text)
    return [inner] if first == "[]" else {first: inner}


def use(cluster: Cluster) -> None:
    """Make what a run makes of a cluster before its nodes answer."""
    for suite in suites():
        module = importlib.import_module(f"{suite.package}.test_{suite.name}")
        for fact in vars(module).values():
            if isinstance(fact, Fact) and fact.probes is not None:
                assert all(probe.command for probe in fact.probes(cluster, ["gpu01"]))
    [*refused_values(cluster)]
    for reached in (cluster.transport, cluster.ssh):
        with contextlib.suppress(GpuClusterError):
            ssh_connect._prepared(cluster.transport.host or "gpu01", reached, None)


@pytest.mark.thorough
@settings(max_examples=MOST, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.sampled_from(PLACES), st.sampled_from(ODD) | st.text(max_size=30))
def test_text_of_each_key_is_refused_or_usable(tmp_path: Path, place: tuple[str, ...], text: str) -> None:
    check(tmp_path, place, text)


def test_addresses_of_each_form_are_accepted_and_others_refused() -> None:
    for text in ("login", "u@login:22", "10.0.0.1", "::1", "[fe80::1%eth0]:22", "u@[::1]:22", "é.org"):
        assert ssh_address(text) == text
    for text in ("", ":", "a b", "-x", "@a", "a@", "a:99999", "a:", ":22", "a;id", "$(id)"):
        with pytest.raises(ValueError, match=r"must be \[USER@\]HOST\[:PORT\]"):
            ssh_address(text)


def check(folder: Path, place: tuple[str, ...], text: str) -> None:
    file = folder / "c.yaml"
    data = {"nodes": "gpu[01-02]"} | placed(place, text)
    if place[0] == "transport":
        data["transport"]["kind"] = "ssh"
        data["transport"].setdefault("host", "login")
    file.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8", errors="surrogatepass")
    try:
        cluster = load_cluster(file)
    except ConfigError as error:
        assert re.match(rf"{re.escape(str(file))}(:\d+: |: )", str(error)), (place, text, error)
        assert "\n" not in str(error)
        return
    try:
        use(cluster)
    except Exception as error:
        raise AssertionError((place, text)) from error
