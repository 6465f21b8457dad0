"""Signatures by the real ssh-keygen, and what is said where it is missing or too old."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
from signature_helpers import allow, make_key

from pytest_gpucluster.cli import signature
from pytest_gpucluster.core.errors import GpuClusterError

if TYPE_CHECKING:
    from pathlib import Path

DATA = b'{"format": 1}\n'


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "key")


@pytest.fixture
def signed(key: Path) -> Path:
    path = key.with_name("record.json.sig")
    path.write_bytes(signature.sign(DATA, key))
    return path


def why(*arguments: object) -> str:
    with pytest.raises(GpuClusterError) as caught:
        signature.check_signer(DATA, *arguments)  # type: ignore[arg-type] # paths and a name
    return str(caught.value)


def test_a_signature_names_key_and_signer(signed: Path, key: Path) -> None:
    assert signature.check(DATA, signed).startswith("ED25519 key SHA256:")
    assert signature.check_signer(DATA, signed, allow(key)) == "ops@site"
    assert signature.check_signer(DATA, signed, allow(key), "ops@site") == "ops@site"


def test_changed_data_has_no_signature(signed: Path) -> None:
    with pytest.raises(GpuClusterError, match="is no signature of these bytes for gpucluster-record: "):
        signature.check(DATA + b" ", signed)


def test_another_key_is_not_allowed(signed: Path, tmp_path: Path) -> None:
    other = allow(make_key(tmp_path / "other"))
    assert why(signed, other).startswith(f"{signed}: {other} does not allow the key that signed")
    assert why(signed, other, "ops@site").startswith(f"{signed}: {other} does not accept it")


def test_another_signer_or_namespace_is_not_accepted(signed: Path, key: Path) -> None:
    signers = allow(key)
    assert f"{signers} does not accept it as a signature of boss@site: " in why(signed, signers, "boss@site")
    assert "does not accept it as a signature of ops@site: " in why(signed, signers, "ops@site", "git")
    for_git = allow(key, options='namespaces="git"')
    assert "does not accept it as a signature of ops@site: " in why(signed, for_git, "ops@site")


def test_a_signer_whose_time_is_over_is_not_accepted(signed: Path, key: Path) -> None:
    over = allow(key, options='valid-before="20200101"')
    assert str(over) in why(signed, over)
    assert "does not accept it as a signature of ops@site: " in why(signed, over, "ops@site")


def test_a_file_that_is_missing_is_named(signed: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert why(signed, gone).startswith(f"{gone}: is no file; --signers names a file of allowed signers")
    with pytest.raises(GpuClusterError, match="gone: is no file; --key names a private key"):
        signature.sign(DATA, gone)


@pytest.mark.thorough
def test_every_changed_byte_of_a_signature_is_found(signed: Path) -> None:
    whole = signed.read_bytes()
    for at, byte in enumerate(whole):
        signed.write_bytes(whole[:at] + bytes([byte ^ 1]) + whole[at + 1 :])
        with pytest.raises(GpuClusterError):
            signature.check(DATA, signed)


def test_bits_that_base64_does_not_use_are_found() -> None:
    """ssh-keygen reads both texts as the same signature."""
    assert base64.b64decode("TQ==") == base64.b64decode("TR==")
    for body, is_plain in (("TQ==", True), ("TR==", False)):
        text = f"{signature._BEGIN}\n{body}\n{signature._END}\n"
        assert signature.is_armored(text) == is_plain
        assert not signature.is_armored(f"{text}\n")
        assert not signature.is_armored(f" {text}")


def test_a_missing_tool_is_said(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(key.parent))
    with pytest.raises(GpuClusterError) as caught:
        signature.sign(DATA, key)
    assert str(caught.value).startswith("ssh-keygen is not installed here: signatures need OpenSSH 8.2")


def test_an_old_tool_is_said(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = key.with_name("ssh-keygen")  # OpenSSH 8.0 answers so
    old.write_text("#!/bin/sh\necho 'unknown option -- Y\nusage: ssh-keygen [-q]' >&2\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(key.parent))
    with pytest.raises(GpuClusterError) as caught:
        signature.sign(DATA, key)
    assert str(caught.value) == "this ssh-keygen is too old for -Y sign: signatures need OpenSSH 8.2 or later"
