"""Signatures by `ssh-keygen -Y` (https://man.openbsd.org/ssh-keygen#Y~4), which asks for passphrases itself.

No key is read here. The format of a signature: https://github.com/openssh/openssh-portable/blob/master/PROTOCOL.sshsig
"""

from __future__ import annotations

import base64
import subprocess
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.sanitize import one_line

if TYPE_CHECKING:
    from pathlib import Path

NAMESPACE = "gpucluster-record"
_BEGIN, _END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_NEEDED = "signatures need OpenSSH 8.2 or later"
_TIMEOUT = 60.0  # seconds for a command without a passphrase


def sign(data: bytes, key: Path, namespace: str = NAMESPACE) -> bytes:
    """Return the signature of data by a private key, or by the agent's key of a public one. GpuClusterError with the reason."""
    if not key.is_file():
        raise GpuClusterError(
            f"{key}: is no file; --key names a private key, or a public key whose private key is in ssh-agent"
        )
    done = _run("sign", "-f", str(key), "-n", namespace, data=data, timeout=None)
    if done.returncode:
        raise GpuClusterError(f"ssh-keygen did not sign with {key}: {_why(done)}")
    return done.stdout


def check(data: bytes, signature: Path, namespace: str = NAMESPACE) -> str:
    """Check that a signature fits the data, whoever signed; return the key as ssh-keygen prints it. GpuClusterError if not."""
    if not is_armored(signature.read_text(encoding="utf-8", errors="replace")):
        raise GpuClusterError(f"{signature}: is not a signature as ssh-keygen writes it; it was changed")
    done = _run("check-novalidate", "-n", namespace, "-s", str(signature), data=data)
    if done.returncode:
        raise GpuClusterError(f"{signature}: is no signature of these bytes for {namespace}: {_why(done)}")
    return one_line(done.stdout.decode(errors="replace")).partition(" with ")[2]


def check_signer(
    data: bytes, signature: Path, signers: Path, identity: str | None = None, namespace: str = NAMESPACE
) -> str:
    """Check that one of the allowed signers signed; return who. GpuClusterError if not.

    `signers`: a file as ALLOWED SIGNERS of ssh-keygen(1) describes it. `identity`: the only one that is accepted.
    """
    if not signers.is_file():
        raise GpuClusterError(
            f"{signers}: is no file; --signers names a file of allowed signers (ssh-keygen(1))"
        )
    file = ("-f", str(signers))
    if identity is None:
        found = _run("find-principals", *file, "-s", str(signature))
        names = found.stdout.decode(errors="replace").splitlines()
        if found.returncode or not names:
            raise GpuClusterError(f"{signature}: {signers} does not allow the key that signed: {_why(found)}")
        identity = names[0]
    done = _run("verify", *file, "-I", identity, "-n", namespace, "-s", str(signature), data=data)
    if done.returncode:
        raise GpuClusterError(
            f"{signature}: {signers} does not accept it as a signature of {one_line(identity)}: {_why(done)}"
        )
    return identity


def _run(
    verb: str, *words: str, data: bytes = b"", timeout: float | None = _TIMEOUT
) -> subprocess.CompletedProcess[bytes]:
    try:
        done = subprocess.run(
            ("ssh-keygen", "-Y", verb, *words), input=data, capture_output=True, timeout=timeout, check=False
        )
    except FileNotFoundError:
        raise GpuClusterError(
            f"ssh-keygen is not installed here: {_NEEDED}; install the package openssh-client or openssh-clients, or "
            "use another machine"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpuClusterError(f"ssh-keygen: {error}") from error
    if done.returncode and b"usage: ssh-keygen" in done.stderr:
        raise GpuClusterError(f"this ssh-keygen is too old for -Y {verb}: {_NEEDED}")
    return done


def _why(done: subprocess.CompletedProcess[bytes]) -> str:
    printed = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace")
    return one_line(printed, 300) or f"exit status {done.returncode}"


def is_armored(text: str) -> bool:
    """Return whether a signature is written as ssh-keygen writes it, which reads more: unused bits of base64, words around it."""
    if text.count("\n") < 3:
        return False
    first, *lines, last, rest = text.split("\n")
    body = "".join(lines)
    try:
        is_plain = base64.b64encode(base64.b64decode(body, validate=True)).decode() == body
    except ValueError:
        return False
    return is_plain and (first, last, rest) == (_BEGIN, _END, "") and len({*map(len, lines[:-1])}) < 2
