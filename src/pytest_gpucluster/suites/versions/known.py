"""Minimum versions that are shipped: each is a warning only, and holds within its branch.

Sources: NVIDIA's security bulletins (nvidia.custhelp.com/app/answers/detail/a_id/N), CHANGELOG of github.com/SchedMD/slurm.
"""

from __future__ import annotations

from pytest_gpucluster.suites.versions.config import MinimumVersion

_DRIVER = "https://nvidia.custhelp.com/app/answers/detail/a_id/5551"
_TOOLKIT = "https://nvidia.custhelp.com/app/answers/detail/a_id/5659"
_SLURM = "https://github.com/SchedMD/slurm/tree/master/CHANGELOG"
_OUT_OF_BOUNDS = "CVE-2024-0090: a user can cause a write out of bounds in the driver, up to escalation of privileges"
_MESSAGES = "CVE-2023-49933 to 49938: messages can be extended or forged, so that users may gain root's rights"
_COORDINATOR = "CVE-2025-43904: a coordinator of an account can add a user with elevated privileges"


def _row(branch: str | None, lowest: str, reason: str, source: str) -> MinimumVersion:
    return MinimumVersion(branch=branch, min=lowest, reason=f"{reason} ({source})")


KNOWN: dict[str, tuple[MinimumVersion, ...]] = {
    "driver": (
        _row("550", "550.90.07", _OUT_OF_BOUNDS, _DRIVER),
        _row("535", "535.183.01", _OUT_OF_BOUNDS, _DRIVER),
        _row("470", "470.256.02", _OUT_OF_BOUNDS, _DRIVER),
    ),
    "container_toolkit": (
        _row(
            None,
            "1.17.8",
            "CVE-2025-23266: an image can run code as root on the host through a hook of the runtime (1.16.2: CVE-2024-0132)",
            _TOOLKIT,
        ),
    ),
    "slurm": (
        _row("22.05", "22.05.11", _MESSAGES, _SLURM),
        _row("23.02", "23.02.7", _MESSAGES, _SLURM),
        _row("23.11", "23.11.11", f"{_MESSAGES} (until 23.11.0); {_COORDINATOR}", _SLURM),
        _row("24.05", "24.05.8", _COORDINATOR, _SLURM),
        _row("24.11", "24.11.5", _COORDINATOR, _SLURM),
    ),
}
