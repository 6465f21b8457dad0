"""`slurm.bin` and options for salloc and srun are tried in one request that starts nothing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import config
from pytest_gpucluster.cluster.slurm import option_check
from pytest_gpucluster.cluster.slurm.client import Slurm, make_slurm
from pytest_gpucluster.cluster.slurm.option_check import COMMANDS, refusal, refuse_options
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core.errors import ConfigError, SlurmError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpucluster.config import Cluster

ENDS = "{}: unrecognized option '--gpucluster-end'\nTry \"{} --help\" for more information\n"
BOTH = "salloc: error: don't specify both --verbose (-v) and --quiet (-Q)\n"
# a command that reads options as Slurm's do: --good and --value VALUE are known
TOOL = """#!/bin/sh
name=${0##*/}
echo "$name $*" >>"${0%/bin/*}/log"
[ "$LC_ALL" = C ] || exit 9
while [ $# -gt 0 ]; do
  case $1 in
    -v | -Q | --good) ;;
    --value) shift ;;
    --help) echo "Usage: $name"; exit 0 ;;
    -*) echo "$name: unrecognized option '$1'" >&2; echo "Try" >&2; exit 1 ;;
    *) break ;;
  esac
  shift
done
echo "$name: error: don't specify both --verbose (-v) and --quiet (-Q)" >&2
exit 1
"""


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], Cluster]:
    """Return a function that loads a cluster file beside a folder `bin` with every command."""
    (tmp_path / "bin").mkdir()
    for name in COMMANDS:
        (tmp_path / "bin" / name).write_text(TOOL)
        (tmp_path / "bin" / name).chmod(0o755)

    def loaded(text: str) -> Cluster:
        (tmp_path / "lab.yaml").write_text(f"nodes: gpu01\n{text}\n")
        return config.load_cluster(tmp_path / "lab.yaml")

    return loaded


def tried(cluster: Cluster) -> int:
    slurm = make_slurm(cluster)
    assert slurm is not None
    assert isinstance(slurm.transport, LocalTransport)
    refuse_options(cluster, slurm)
    return slurm.transport.started.total()


def refused(cluster: Cluster) -> str:
    with pytest.raises(ConfigError) as caught:
        tried(cluster)
    return str(caught.value)


def test_without_such_a_setting_nothing_is_asked(load: Callable[[str], Cluster]) -> None:
    assert tried(load("environments: {x: {}}")) == 0


def test_all_settings_are_tried_in_one_request(load: Callable[[str], Cluster], tmp_path: Path) -> None:
    cluster = load(
        f"slurm: {{bin: {tmp_path}/bin, extra_args: [--good, --value, 'a b']}}\n"
        "environments: {w: {srun_args: [--good]}, x: {srun_args: [--value, $HOME]}, y: {}}"
    )
    assert tried(cluster) == 1
    assert (tmp_path / "log").read_text().splitlines() == [
        "salloc -v -Q --good --value a b --gpucluster-end",
        "srun -v -Q --good --gpucluster-end",
        "srun -v -Q --value $HOME --gpucluster-end",
    ]


@pytest.mark.parametrize(
    ("slurm", "others", "printed"),
    [
        (", extra_args: [--good, --nosuch]", "", "slurm.extra_args: salloc refuses them: unrecognized"),
        (
            "",
            "environments: {x: {srun_args: [--good]}, y: {srun_args: [--nosuch]}}",
            "environments.y.srun_args: srun refuses them: unrecognized option '--nosuch'",
        ),
    ],
)
def test_what_a_command_refuses_is_one_line(
    load: Callable[[str], Cluster], tmp_path: Path, slurm: str, others: str, printed: str
) -> None:
    line = refused(load(f"slurm: {{bin: {tmp_path}/bin{slurm}}}\n{others}"))
    assert line.startswith(f"cluster lab: {printed}")
    assert "\n" not in line


def test_a_folder_without_slurm_s_commands_is_refused(load: Callable[[str], Cluster], tmp_path: Path) -> None:
    cluster = load(f"slurm: {{bin: {tmp_path}/nowhere, extra_args: [--nosuch]}}")
    assert f"slurm.bin: {tmp_path}/nowhere has none of Slurm's commands (salloc, " in refused(cluster)
    odd = tmp_path / "it's $HOME"
    cluster = load(f'slurm: {{bin: "{odd}"}}')
    (odd / "salloc").mkdir(parents=True)
    (odd / "srun").write_text("")
    (odd / "sinfo").symlink_to("/bin/sh")
    assert f"{odd} has none of Slurm's commands" in refused(cluster)
    (odd / "srun").chmod(0o755)  # the others may be on PATH
    assert tried(cluster) == 1


@pytest.mark.parametrize("answer", [SlurmError("no end after 30 s"), "salloc\n"])
def test_a_machine_that_does_not_answer_or_whose_answer_was_cut_is_left_to_the_first_contact(
    load: Callable[[str], Cluster], monkeypatch: pytest.MonkeyPatch, answer: SlurmError | str
) -> None:
    asked: list[str] = []

    def run(_: Slurm, *argv: str, **_more: Any) -> str:
        asked.extend(argv[:2])
        if isinstance(answer, SlurmError):
            raise answer
        return answer

    monkeypatch.setattr(Slurm, "run", run)
    assert tried(load("slurm: {extra_args: [--nosuch]}")) == 0
    assert asked == ["sh", "-c"]


NO_OPTION = "a word is no option, or an option has no value"
ONLY_PRINTS = "salloc only prints something and ends"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (ENDS.format("salloc", "salloc"), ""),
        ("salloc: lua: defaults set\n" + ENDS.format("salloc", "salloc"), ""),
        ("salloc: fatal: Could not establish a configuration source\n", ""),
        ("sh: 3: salloc: not found\n", ""),
        ("salloc: error: Unable to contact slurm controller (connect failure)\n", ""),
        (BOTH, NO_OPTION),
        ("srun: fatal: No command given to execute.\n", NO_OPTION),
        ("note\nsalloc: error: Invalid --mem specification\n", "Invalid --mem specification"),
        ("salloc: unrecognized option '--gpucluster-ends'\nTry\n", "unrecognized option '--gpucluster-ends'"),
        ("", ONLY_PRINTS),
    ],
)
def test_why_a_command_refuses(text: str, why: str) -> None:
    assert refusal("salloc", text) == why


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--mem=4G -C a&b --gres gpu:2 --nice=5", ""),
        ("--nosuch", "unrecognized option '--nosuch'"),
        ("--mem=much", "Invalid --mem specification"),
        ("--exclusive touch", NO_OPTION),
        ("--mem=1 : --mem=2", NO_OPTION),
        ("--comment", NO_OPTION),
        ("-V", ONLY_PRINTS),
    ],
)
def test_the_real_commands_end_before_they_ask_for_a_job(tmp_path: Path, words: str, why: str) -> None:
    if shutil.which("salloc") is None:
        pytest.skip("no Slurm is installed here")
    port = "SlurmctldHost=localhost\nSlurmctldPort=1"  # nothing could be asked for
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"ClusterName=x\n{port}\nAuthType=auth/none\nNodeName=gpu01\n")
    slurm = Slurm(LocalTransport({"SLURM_CONF": str(conf)}))
    for command in ("salloc", "srun"):
        trial = option_check._trial(command, words.split()) + "; echo $?"
        answer = slurm.run("sh", "-c", trial, env={"LC_ALL": "C"}, timeout=60)
        assert "connect failure" not in answer, "it asked the controller"
        assert refusal(command, answer) == why.replace("salloc", command)
