"""gpucluster record: folders signed and verified by the real ssh-keygen, and what becomes of a signed run."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from campaign_helpers import run_campaign
from report_helpers import write_run
from signature_helpers import allow, make_key

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.cli.signed_folder import is_armored, sign
from pytest_gpucluster.core.errors import GpuClusterError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.thorough  # by ssh-keygen


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of a run, with a key and a file of allowed signers beside it."""
    make_key(tmp_path / "key")
    allow(tmp_path / "key")
    return write_run(tmp_path / "run").parent


@pytest.fixture
def gpucluster(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[str]]]:
    def run(*words: str, source: Path = root) -> tuple[int, list[str]]:
        names = {"KEY": str(tmp_path / "key"), "SIGNERS": str(tmp_path / "signers")}
        status = cli.main([*(names.get(word, word) for word in words), str(source)])
        printed = capsys.readouterr()
        return status, (printed.out + printed.err).replace(f"{source}/", "").splitlines()

    return run


SIGN = ("record", "sign", "--key", "KEY")
VERIFY = ("record", "verify", "--signers", "SIGNERS")
VERDICT = "Not accepted, 1 of 3 nodes failed, judged by gpu, nccl, narrowed by -m gpu"


def test_a_signed_run_is_verified_by_this_program_and_by_others(
    gpucluster: Callable[..., tuple[int, list[str]]], root: Path, tmp_path: Path
) -> None:
    subject = "cluster prod, run 20261121T020000-1"
    assert gpucluster(*SIGN) == (0, [f"SHA256SUMS.sig: signed: {subject}: {VERDICT}"])
    assert (root / "SHA256SUMS.sig").stat().st_mode & 0o777 == 0o600
    for more in ((), ("--identity", "ops@site")):
        status, lines = gpucluster(*VERIFY, *more)
        assert status == 0
        (line,) = lines
        key = r"ops@site with ED25519 key SHA256:\S+"
        assert re.fullmatch(rf"verified: {re.escape(f'{VERDICT}: {subject}')}, signed by {key}", line)
    subprocess.run(("sha256sum", "--check", "--strict", "SHA256SUMS"), cwd=root, check=True)
    argv = ("ssh-keygen", "-Y", "verify", "-f", tmp_path / "signers", "-I", "ops@site", "-n", "gpucluster-record",
            "-s", "SHA256SUMS.sig")  # fmt: skip
    with (root / "SHA256SUMS").open("rb") as manifest:
        subprocess.run(argv, cwd=root, check=True, stdin=manifest)


def test_a_change_after_the_signature_is_found(
    gpucluster: Callable[..., tuple[int, list[str]]], root: Path, tmp_path: Path
) -> None:
    gpucluster(*SIGN)
    files = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for path, whole in files.items():
        for at in {0, len(whole) // 2, len(whole) - 1}:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert gpucluster(*VERIFY)[0] == 1, (path, at)
        path.unlink()
        assert gpucluster(*VERIFY)[0] == 1, path
        path.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").write_bytes(whole)
        assert gpucluster(*VERIFY)[0] == 1, path
        path.unlink()
        path.write_bytes(whole)
    assert gpucluster(*VERIFY)[0] == 0
    (root / "steps" / "2.log").touch()
    assert gpucluster(*VERIFY) == (1, ["gpucluster: error: steps/2.log: SHA256SUMS does not list it: it was added"])


def test_a_signature_holds_for_its_own_folder_only(
    gpucluster: Callable[..., tuple[int, list[str]]], root: Path, tmp_path: Path
) -> None:
    gpucluster(*SIGN)
    other = shutil.copytree(root, tmp_path / "other")
    log = other / "events.jsonl"
    log.write_text(log.read_text().replace("login1", "login2"))
    assert gpucluster("report", "--force", source=other)[0] == 0
    gpucluster(*SIGN, "--force", source=other)
    shutil.copy(root / "SHA256SUMS.sig", other)
    status, (line,) = gpucluster(*VERIFY, source=other)
    assert status == 1
    assert "SHA256SUMS.sig: " in line
    shutil.copy(root / "SHA256SUMS", other)
    status, (line,) = gpucluster(*VERIFY, source=other)
    assert status == 1
    assert "has another sha256 than SHA256SUMS states: it was changed" in line


def test_who_may_sign_is_stated_by_a_file_outside_of_the_folder(
    gpucluster: Callable[..., tuple[int, list[str]]], root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def why(*words: str) -> str:
        capsys.readouterr()
        status, (line,) = gpucluster("record", "verify", *words)
        assert status == 1
        return line

    assert "SHA256SUMS: is missing or no plain file: the folder is not signed" in why("--signers", "SIGNERS")
    gpucluster(*SIGN)
    with pytest.raises(SystemExit):  # without --signers anybody could have signed
        gpucluster("record", "verify")
    assert "gone: is no file; --signers names a file" in why("--signers", str(tmp_path / "gone"))
    shutil.copy(tmp_path / "signers", root)
    assert "lies in the folder that is verified" in why("--signers", str(root / "signers"))
    (root / "signers").unlink()
    assert "not accept it as a signature of boss" in why("--signers", "SIGNERS", "--identity", "boss@site")
    assert "not accept it as a signature of ops@site" in why("--signers", "SIGNERS", "--namespace", "git")
    for options in ('namespaces="git"', 'valid-before="20200101"'):
        signers = str(allow(tmp_path / "key", options=options))
        assert "not accept it as a signature of ops" in why("--signers", signers, "--identity", "ops@site")
        assert "signers does not " in why("--signers", signers)
    (tmp_path / "other").mkdir()
    signers = str(allow(make_key(tmp_path / "other" / "key")))
    assert "does not allow the key that signed" in why("--signers", signers)
    (root / "SHA256SUMS.sig").unlink()
    assert "SHA256SUMS.sig: is missing or no plain file" in why("--signers", "SIGNERS")


def test_a_signature_is_replaced_by_force_only(gpucluster: Callable[..., tuple[int, list[str]]]) -> None:
    gpucluster(*SIGN)
    exists = (1, ["gpucluster: error: SHA256SUMS.sig: exists already; --force replaces it"])
    assert gpucluster(*SIGN) == exists
    assert gpucluster(*SIGN, "--force")[0] == 0
    assert gpucluster(*VERIFY)[0] == 0


def test_reports_of_a_signed_run_are_written_elsewhere(
    gpucluster: Callable[..., tuple[int, list[str]]], tmp_path: Path, root: Path
) -> None:
    gpucluster(*SIGN)
    before = (root / "report.html").stat().st_mtime_ns
    status, lines = gpucluster("report")
    assert status == 1
    assert lines[0].startswith("gpucluster: error: SHA256SUMS.sig: the folder is signed with its reports")
    assert (root / "report.html").stat().st_mtime_ns == before
    assert gpucluster("report", "--output", str(tmp_path / "public"))[0] == 0
    assert gpucluster(*VERIFY)[0] == 0
    assert gpucluster("report", "--force")[0] == 0


def test_a_campaign_is_signed_with_its_history(
    gpucluster: Callable[..., tuple[int, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUCLUSTER_HISTORY", raising=False)
    made = run_campaign(tmp_path / "made", [("gpu01", True), ("gpu02", False)])
    made.store.close()
    folder, history = made.root, str(made.store.path)
    status, (line,) = gpucluster(*SIGN, source=folder)
    assert status == 4
    assert "no history file: use --history FILE" in line
    signed = "SHA256SUMS.sig: signed: cluster prod, campaign july: REJECTED, 1 of 2 nodes fit, judged by gpu"
    assert gpucluster(*SIGN, "--history", history, source=folder) == (0, [signed])
    status, (line,) = gpucluster(*VERIFY, source=folder)
    assert (status, line.partition(", signed")[0]) == (
        0,
        "verified: REJECTED, 1 of 2 nodes fit, judged by gpu: cluster prod, campaign july",
    )
    run = next((folder / "000001").glob("2026*"))
    assert "the folder is signed with its reports" in gpucluster("report", source=run)[1][0]
    made.state(lambda it: it.update(verdict="ACCEPTED"))
    status, (line,) = gpucluster(*VERIFY, source=folder)
    assert status == 1
    assert "campaign.json: has another sha256 than SHA256SUMS states" in line
    status, (line,) = gpucluster(*SIGN, "--force", "--history", history, source=folder)
    assert (status, "states something else than the history" in line) == (1, True)
    (folder / "campaign.json").unlink()
    status, (line,) = gpucluster(*VERIFY, source=folder)
    assert (status, "does not exist" in line) == (1, True)


# --- ssh-keygen


def test_bits_that_base64_does_not_use_are_found() -> None:
    """ssh-keygen reads both texts as the same signature."""
    assert base64.b64decode("TQ==") == base64.b64decode("TR==")
    for body, is_plain in (("TQ==", True), ("TR==", False)):
        text = f"-----BEGIN SSH SIGNATURE-----\n{body}\n-----END SSH SIGNATURE-----\n"
        assert is_armored(text) == is_plain
        assert not is_armored(f"{text}\n")
        assert not is_armored(f" {text}")


def test_a_missing_key_or_tool_is_named(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GpuClusterError, match="gone is no file; it must be a private key"):
        sign(b"", tmp_path / "gone", "x")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GpuClusterError, match="ssh-keygen is not installed here"):
        sign(b"", tmp_path / "key", "x")
    old = tmp_path / "ssh-keygen"  # OpenSSH 8.0 answers so
    old.write_text("#!/bin/sh\necho 'unknown option -- Y\nusage: ssh-keygen [-q]' >&2\nexit 1\n")
    old.chmod(0o755)
    with pytest.raises(GpuClusterError, match="this ssh-keygen is too old for -Y sign"):
        sign(b"", tmp_path / "key", "x")
