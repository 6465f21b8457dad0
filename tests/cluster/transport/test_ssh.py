"""The SSH transport against a real sshd on loopback: answers as locally, and an end to everything it starts."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paramiko
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sandbox_helpers import wait_for
from ssh_helpers import HOST, WHY_NOT, Blackhole, Sshd, sshd

from pytest_gpucluster.cluster.channel.over_ssh import fleet_over_ssh
from pytest_gpucluster.cluster.transport import LocalTransport, kill_group, ssh
from pytest_gpucluster.cluster.transport.remote_process import header
from pytest_gpucluster.cluster.transport.ssh import SshTransport, repeatable
from pytest_gpucluster.config.models import HostAddress, SshConfig, TransportConfig
from pytest_gpucluster.core.errors import ConfigError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.thorough]
LONG = 60.0  # seconds; far above what a loaded machine needs


@pytest.fixture(scope="module")
def server() -> Iterator[Sshd]:
    folder = Path(tempfile.mkdtemp(prefix="ssh-"))
    with sshd(folder / "d") as running:
        yield running
    shutil.rmtree(folder)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Sshd]:
    """A server that a test may break."""
    with sshd(tmp_path / "d") as running:
        yield running


@pytest.fixture(scope="module")
def far(server: Sshd) -> Iterator[SshTransport]:
    transport = SshTransport(server.settings(), {"GIVEN": "a b"})
    yield transport
    transport.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def read_pid(file: Path) -> int:
    wait_for(lambda: file.exists() and file.read_text().strip(), f"{file} is written")
    return int(file.read_text())


# --- answers


@pytest.mark.parametrize("end", ["exit 3", "kill -TERM $$", "kill -KILL $$", "exit 143"])
def test_answers_are_those_of_a_local_command(far: SshTransport, end: str) -> None:
    words = [
        "sh",
        "-c",
        f'cat; echo "$GIVEN $MORE"; printf %s "$1"; echo bad >&2; {end}',
        "sh",
        "'\n" * 60_000,
    ]
    more: dict[str, Any] = {"timeout": LONG, "input": "in\n", "env": {"MORE": "x,y"}}
    here, there = LocalTransport({"GIVEN": "a b"}).run(words, **more), far.run(words, **more)
    assert there.stdout.startswith("in\na b x,y\n")
    assert (here.rc, here.stdout, here.stderr) == (there.rc, there.stdout, there.stderr)


def test_streams_are_binary_and_whole(far: SshTransport) -> None:
    data = bytes(range(256)) * 40_000
    process = far.spawn(["sh", "-c", "tee /dev/stderr"])
    out, err = process.communicate(data, LONG)
    assert (out == data, err == data, process.wait(LONG)) == (True, True, 0)
    process.close()


def test_endless_output_is_ended(far: SshTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpucluster.cluster.transport.remote_process.MAX_OUTPUT", 1 << 20)
    with pytest.raises(TransportError, match="yes: printed more than"):
        far.run(["yes"], timeout=LONG)
    with pytest.raises(TransportError, match="sh: printed more than"):
        far.run(["sh", "-c", "yes >&2"], timeout=LONG)


HOSTILE = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
NAMES = st.from_regex(r"GPUC_[A-Za-z0-9_]{1,10}", fullmatch=True)


ODD = [
    "gpu[01-02];reboot",
    "it's",
    '"$(id)`id`"',
    "a\nb\r\n",
    "\\n\\\\c\\0101",
    "-n",
    "",
    " ",
    "!!",
    "%s",
    "\x81\x88",
]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(ODD, {})
@given(st.lists(HOSTILE, max_size=6), st.dictionaries(NAMES, HOSTILE, max_size=3))
def test_no_shell_reads_the_words(far: SshTransport, words: list[str], env: dict[str, str]) -> None:
    done = far.run(["sh", "-c", 'printf "%s\\0" "$@"; env -0', "sh", *words], timeout=LONG, env=env)
    came = done.stdout.split("\0")
    given = dict(one.split("=", 1) for one in came[max(1, len(words)) :] if one.startswith("GPUC_"))
    assert (came[: len(words)], given) == (words, env)


def test_what_no_process_can_be_given_is_refused(far: SshTransport) -> None:
    with pytest.raises(TransportError, match="NUL byte"):
        far.run(["echo", "a\0b"], timeout=LONG)
    with pytest.raises(TransportError, match=r"'A\.B' is no name of a shell variable"):
        far.run(["true"], timeout=LONG, env={"A.B": "1"})


def test_none_takes_a_variable_away_and_path_goes_first(server: Sshd, tmp_path: Path) -> None:
    tool = tmp_path / "sinfo"
    tool.write_text("#!/bin/sh\necho ours ${HOME-gone}\n")
    tool.chmod(0o755)
    transport = SshTransport(server.settings(), path=str(tmp_path))
    assert transport.run(["sinfo"], timeout=LONG, env={"HOME": None}).stdout == "ours gone\n"
    transport.close()


def test_commands_run_in_the_folder_of_the_cluster_file(server: Sshd, tmp_path: Path) -> None:
    transport = SshTransport(server.settings(workdir=str(tmp_path)))
    assert transport.run(["pwd"], timeout=LONG).stdout == f"{tmp_path}\n"
    transport.close()
    with pytest.raises(TransportError, match="has no folder /no/where: correct workdir"):
        SshTransport(server.settings(workdir="/no/where")).run(["pwd"], timeout=LONG)


def test_a_missing_program_says_what_to_do(far: SshTransport, tmp_path: Path) -> None:
    with pytest.raises(
        TransportError, match=rf"^no-such: not found on {HOST}:\d+: set slurm\.bin to its folder"
    ):
        far.run(["no-such"], timeout=LONG)
    (tmp_path / "plain").write_text("no program")
    with pytest.raises(TransportError, match="permission denied on"):
        far.spawn([str(tmp_path / "plain")])


def test_a_login_shell_that_has_ended_before_the_command_is_sent_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(channel: Any, line: bytes) -> None:
        wait_for(lambda: channel.closed, "the shell has ended")
        plain(channel, line)

    plain = paramiko.Channel.sendall
    monkeypatch.setattr(paramiko.Channel, "sendall", late)
    closed = pytest.raises(TransportError, match="runs no commands: it printed 'This account is closed'")
    with sshd(tmp_path / "d", options=("ForceCommand echo This account is closed",)) as server, closed:
        SshTransport(server.settings()).run(["true"], timeout=LONG)


def loopback(own: Sshd, names: Sequence[str]) -> dict[str, HostAddress]:
    """Return addresses by which one server stands for several nodes."""
    return {name: HostAddress(host=HOST, port=own.port) for name in names}


def test_nodes_are_reached_through_one_connection_to_a_jump_host(server: Sshd, tmp_path: Path) -> None:
    nodes = ("gpu03", "gpu01", "gpu02")
    with sshd(tmp_path / "d") as jump:
        known = tmp_path / "known_hosts"
        known.write_text("".join((one.folder / "known_hosts").read_text() for one in (server, jump)))
        shutil.copy(server.folder / "id_ed25519.pub", jump.folder / "authorized_keys")
        keys = {name: value for name, value in server.keys().items() if name not in {"kind", "host"}}
        way = SshConfig.model_validate({**keys, "known_hosts": str(known), "jump": f"{HOST}:{jump.port}"})
        with fleet_over_ssh(nodes, way, loopback(server, nodes)) as fleet:
            answers = fleet.ask("echo $SLURMD_NODENAME; exit 3", timeout=LONG)
            assert len(jump.sessions()) == 1
        wait_for(lambda: not jump.sessions(), "the way through the jump host is closed")
    assert {node: (answer.rc, answer.out.strip()) for node, answer in answers.items()} == {
        n: (3, n) for n in nodes
    }


def test_a_node_whose_connection_breaks_is_lost(own: Sshd, server: Sshd) -> None:
    both = (own.folder / "known_hosts").read_text() + (server.folder / "known_hosts").read_text()
    (own.folder / "known_hosts").write_text(both)
    shutil.copy(server.folder / "id_ed25519.pub", own.folder / "authorized_keys")
    keys = {**own.keys(), "key_file": str(server.folder / "id_ed25519")}
    way = SshConfig.model_validate(
        {name: value for name, value in keys.items() if name not in {"kind", "host"}}
    )
    hosts = {**loopback(own, ["gpu01"]), **loopback(server, ["gpu02"])}
    with fleet_over_ssh(("gpu01", "gpu02"), way, hosts) as fleet:
        assert {answer.rc for answer in fleet.ask("true", timeout=LONG).values()} == {0}
        own.hang_up()
        wait_for(lambda: fleet.lost, "the node is lost")
        assert fleet.lost == {"gpu01": "its SSH connection was lost"}
        assert {node: answer.rc for node, answer in fleet.ask("id", timeout=LONG).items()} == {
            "gpu01": None,
            "gpu02": 0,
        }


@pytest.mark.parametrize("shell", ["csh", "tcsh", "fish", "zsh", "bash", "dash", "busybox"])
def test_every_login_shell_starts_the_same_command(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not here")
    name = f"{program} sh" if shell == "busybox" else program
    with sshd(tmp_path / "d", options=(f'ForceCommand exec {name} -c "$SSH_ORIGINAL_COMMAND"',)) as server:
        transport = SshTransport(server.settings())
        assert (
            transport.run(["printf", "%s|", "a\\nb", "!x", "it's"], timeout=LONG).stdout == "a\\nb|!x|it's|"
        )
        transport.close()


# --- ends


def test_the_whole_far_group_dies_at_the_deadline(far: SshTransport, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with pytest.raises(TransportError, match=r"sh: not finished after 5 s on "):
        far.run(["sh", "-c", f"sleep 300 & echo $! > {file}; wait"], timeout=5)
    wait_for(lambda: not alive(read_pid(file)), "the grandchild outlived the deadline")


def test_a_group_is_signalled_by_its_number(far: SshTransport) -> None:
    process = far.spawn(
        ["sh", "-c", "trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 0.1; done"]
    )
    assert process.stdout.readline() == b"ready\n"
    kill_group(process, signal.SIGTERM)
    assert (process.wait(LONG), process.stdout.read()) == (5, b"told\n")
    kill_group(process)


def test_the_end_of_input_is_all_that_ends(far: SshTransport) -> None:
    process = far.spawn(["sh", "-c", "cat; echo after; exit 4"])
    process.stdin.write(b"one\n")
    process.stdin.close()
    assert (process.stdout.read(), process.wait(LONG)) == (b"one\nafter\n", 4)
    process.close()


def test_a_broken_connection_ends_the_input_of_what_runs(own: Sshd, tmp_path: Path) -> None:
    transport = SshTransport(own.settings())
    process = transport.spawn(["sh", "-c", f"cat; echo over > {tmp_path}/end"])
    own.hang_up()
    assert process.wait(LONG) == 255
    assert b"error: the SSH connection to 127.0.0.1:%d was lost" % own.port in process.stderr.read()
    wait_for((tmp_path / "end").exists, "the far process saw the end of its input")
    transport.close()


def test_silence_ends_a_connection_at_both_ends(
    own: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cable = Blackhole(own.port)
    known = own.folder / "known_hosts"
    known.write_text(f"[{HOST}]:{cable.port} {own.host_key}\n")
    monkeypatch.setattr(TransportConfig, "alive", 4)
    transport = SshTransport(own.settings(port=cable.port))
    process = transport.spawn(["sh", "-c", f"echo $$ > {tmp_path}/pid; cat; echo over > {tmp_path}/end"])
    wait_for(lambda: len(own.sessions()) == 1, "connected")
    time.sleep(5)  # longer than `alive`: a connection that only has nothing to say stands
    assert process.poll() is None
    cable.silence()
    wait_for((tmp_path / "end").exists, "the far side gave the connection up")
    assert process.wait(LONG) == 255
    cable.close()
    transport.close()


def test_a_command_that_only_reads_is_repeated_on_a_new_connection(own: Sshd, tmp_path: Path) -> None:
    count = tmp_path / "count"
    tool = tmp_path / "sinfo"
    tool.write_text(
        f'#!/bin/sh\necho x >> {count}\n[ "$(wc -l < {count})" -gt 1 ] && echo idle || sleep 300\n'
    )
    tool.chmod(0o755)
    transport = SshTransport(own.settings(), path=str(tmp_path))
    result: list[str] = []
    asking = threading.Thread(target=lambda: result.append(transport.run(["sinfo"], timeout=LONG).stdout))
    asking.start()
    wait_for(count.exists, "sinfo runs")
    own.hang_up()
    asking.join(LONG)
    transport.close()
    assert (result, count.read_text()) == (["idle\n"], "x\nx\n")


def test_a_submission_is_never_repeated(own: Sshd, tmp_path: Path) -> None:
    count = tmp_path / "count"
    tool = tmp_path / "sbatch"
    tool.write_text(f"#!/bin/sh\necho x >> {count}\nsleep 20\n")
    tool.chmod(0o755)
    transport = SshTransport(own.settings(), path=str(tmp_path))

    def break_it() -> None:
        wait_for(count.exists, "sbatch runs")
        own.hang_up()

    threading.Thread(target=break_it, daemon=True).start()
    with pytest.raises(TransportError, match=r"it may have (completed|run): check before you repeat it"):
        transport.run(["sbatch"], timeout=LONG)
    transport.run(["true"], timeout=LONG)  # the connection is made anew
    transport.close()
    assert count.read_text() == "x\n"


def test_a_submission_that_may_have_begun_says_so(tmp_path: Path) -> None:
    shell, there = (
        tmp_path / "shell",
        tmp_path / "there",
    )  # it has the command, and is slow to say that it begins
    shell.write_text(f"#!/bin/sh\nread -r line\ntouch {there}\nsleep 20\n")
    shell.chmod(0o755)
    with sshd(tmp_path / "d", options=(f"ForceCommand {shell}",)) as server:

        def break_it() -> None:
            wait_for(there.exists, "the command has arrived")
            server.hang_up()

        threading.Thread(target=break_it, daemon=True).start()
        transport = SshTransport(server.settings())
        with pytest.raises(TransportError, match="check before you repeat it"):
            transport.run(["sbatch"], timeout=LONG)
        transport.close()


def test_a_server_that_restarts_is_waited_for(own: Sshd) -> None:
    transport = SshTransport(own.settings())
    transport.run(["true"], timeout=LONG)
    own.stop()
    restart = threading.Timer(1.0, own.start)
    restart.start()
    assert transport.run(["echo", "again"], timeout=LONG).stdout == "again\n"
    restart.join()  # else the fixture may stop the server before it is known
    transport.close()


def test_more_sessions_than_the_server_allows_go_over_another_connection(tmp_path: Path) -> None:
    with sshd(tmp_path / "d", options=("MaxSessions 2",)) as server:
        transport = SshTransport(server.settings())
        processes = [transport.spawn(["cat"]) for _ in range(5)]
        for number, process in enumerate(processes):
            out, _ = process.communicate(b"%d" % number, LONG)
            assert out == b"%d" % number
            process.close()
        transport.close()


@pytest.mark.parametrize(
    ("argv", "can"),
    [
        (("sinfo", "-N"), True),
        (("/opt/slurm/bin/squeue",), True),
        (("scontrol", "show", "node", "-o"), True),
        (("scontrol", "-o", "show", "node"), True),
        (("scancel", "12"), True),
        (("scontrol", "update", "NodeName=a"), False),
        (("scontrol", "requeue", "1"), False),
        (("sbatch", "show"), False),
        (("srun", "show"), False),
        (("sh", "-c", "scontrol show node"), False),
    ],
)
def test_what_may_be_repeated(argv: tuple[str, ...], can: bool) -> None:  # a table of cases
    assert repeatable(argv) is can


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_a_script_is_one_line_and_sh_reads_it_back(text: str) -> None:
    line = header(text)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert line[:-1].replace(b"\\\\", b"\0").replace(b"\\n", b"\n").replace(b"\0", b"\\").decode() == text


# --- who is let in


def test_an_unknown_host_key_names_file_and_step(own: Sshd) -> None:
    (own.folder / "known_hosts").write_text("")
    with pytest.raises(TransportError) as caught:
        SshTransport(own.settings()).run(["true"], timeout=LONG)
    shown = subprocess.check_output(["ssh-keygen", "-lf", own.folder / "host_key.pub"], text=True).split()[1]
    assert f"its host key is not in {own.folder}/known_hosts: " in str(caught.value)
    assert f"fingerprint ssh-ed25519 {shown} " in str(caught.value)
    assert (own.folder / "known_hosts").read_text() == ""
    subprocess.run(str(caught.value).partition("then: ")[2], shell=True, check=True, capture_output=True)
    again = SshTransport(own.settings())
    assert again.run(["echo", "let in"], timeout=LONG).stdout == "let in\n"
    again.close()


@pytest.mark.parametrize("line", ["{at} {other}", "{at} {key}\n@revoked * {key}"], ids=["another", "revoked"])
def test_a_host_key_that_is_not_the_known_one_is_refused(own: Sshd, line: str) -> None:
    known = own.folder / "known_hosts"
    other = " ".join((own.folder / "stranger.pub").read_text().split()[:2])
    known.write_text(line.format(at=f"[{HOST}]:{own.port}", key=own.host_key, other=other) + "\n")
    before = known.read_text()
    with pytest.raises(
        TransportError, match=r"its host key is not the one in .*ssh-keygen -R '\[127.0.0.1\]:\d+' -f"
    ):
        SshTransport(own.settings()).run(["true"], timeout=LONG)
    assert known.read_text() == before


def test_a_wrong_key_says_what_was_tried(own: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    stranger = str(own.folder / "stranger")
    with pytest.raises(TransportError) as caught:
        SshTransport(own.settings(key_file=stranger)).run(["true"], timeout=LONG)
    assert f"failed with {stranger}, no key in the agent" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_of_the_agent_opens(own: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("ssh-agent") is None:
        pytest.skip("no ssh-agent here")
    sock = own.folder / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", sock], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        ask = ["ssh-add", "-l"]  # 2: there is no agent
        wait_for(lambda: subprocess.run(ask, capture_output=True, check=False).returncode != 2, "it listens")
        locked = own.folder / "locked"
        shutil.copy(own.folder / "id_ed25519", locked)
        locked.chmod(0o600)
        subprocess.run(["ssh-add", "-q", locked], check=True)
        subprocess.run(
            ["ssh-keygen", "-q", "-p", "-N", "passphrase", "-f", locked], check=True, capture_output=True
        )
        transport = SshTransport(own.settings(key_file=str(locked)))
        assert transport.run(["echo", "let in"], timeout=LONG).stdout == "let in\n"
        transport.close()
        subprocess.run(["ssh-add", "-q", "-D"], check=True, capture_output=True)
        with pytest.raises(TransportError, match="ssh-add"):
            SshTransport(own.settings(key_file=str(locked))).run(["true"], timeout=LONG)
    finally:
        agent.terminate()
        agent.wait()


def test_a_jump_host_leads_there_and_is_checked_too(
    own: Sshd, server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(server.folder / "id_ed25519", own.folder / "jump_key")
    both = (own.folder / "known_hosts").read_text() + (server.folder / "known_hosts").read_text()
    (own.folder / "known_hosts").write_text(both)
    (own.folder / "authorized_keys").write_text((server.folder / "id_ed25519.pub").read_text())
    keys = {"key_file": str(server.folder / "id_ed25519"), "jump": f"{HOST}:{server.port}"}
    before = set(server.sessions())  # of tests before this one: they may be on their way out
    transport = SshTransport(own.settings(**keys))
    there = set(own.sessions())
    transport.run(["true"], timeout=LONG)
    assert len(set(own.sessions()) - there) == 1
    assert len(set(server.sessions()) - before) == 1
    transport.close()
    (own.folder / "known_hosts").write_text(f"[{HOST}]:{own.port} {own.host_key}\n")
    with pytest.raises(TransportError, match=rf"ssh to {HOST}:{server.port}: its host key is not in"):
        SshTransport(own.settings(**keys)).run(["true"], timeout=LONG)


def test_the_ssh_configuration_is_read(own: Sshd) -> None:
    (own.folder / "ssh_config").write_text(
        f"Host login\n HostName {HOST}\n Port {own.port}\n IdentityFile {own.folder}/id_ed25519\n"
        f" UserKnownHostsFile {own.folder}/known_hosts\n"
    )
    keys = {"host": "login", "port": None, "key_file": None, "known_hosts": None}
    transport = SshTransport(own.settings(**keys))
    assert transport.run(["echo", "here"], timeout=LONG).stdout == "here\n"
    transport.close()


def test_nobody_there_is_one_line(own: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "FIRST_PATIENCE", 0.0)
    own.stop()
    with pytest.raises(
        TransportError, match=rf"^ssh to {HOST}:{own.port}: no SSH server answers .*is sshd running"
    ):
        SshTransport(own.settings()).run(["true"], timeout=LONG)
    with pytest.raises(TransportError, match="no such host name: check it with getent hosts"):
        SshTransport(own.settings(host="no-such-host.invalid")).run(["true"], timeout=LONG)
    with socket.create_server((HOST, 0)) as mute:
        port = mute.getsockname()[1]
        with pytest.raises(TransportError, match=rf"^ssh to {HOST}:{port}: "):
            SshTransport(own.settings(port=port, connect_timeout="1s")).run(["true"], timeout=LONG)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"host": None}, "host is missing"),
        ({"key_file": "/no/key"}, "key_file /no/key: no such file"),
        ({"config_file": "/no/config"}, "config_file /no/config: no such file"),
        ({"host": "a@b", "user": "c"}, "user"),
    ],
)
def test_settings_that_cannot_work_are_named(server: Sshd, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        SshTransport(server.settings(**keys)).run(["true"], timeout=LONG)
    assert "\n" not in str(caught.value)
