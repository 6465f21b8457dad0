"""Stand-ins for nvcc and CMake, which write a script in place of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = 'echo "{\\"devices\\": 8, \\"wrong\\": ${WRONG:-0}, \\"nccl\\": 22105, \\"runtime\\": 12040}"'
NVCC = """#!/bin/sh
[ "$1" != --version ] || {{ echo "Cuda compilation tools (stand-in)"; exit 0; }}
{case}
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\n%s\\n' '{program}' > "$2"; chmod +x "$2"
"""
CMAKE = """#!/bin/sh
case $1 in
  -E) for folder; do :; done; grep -q ncclAllReduce "$folder/example.cu" ;;
  --build) printf '#!/bin/sh\\n%s\\n' '{program}' > "$2/example"; chmod +x "$2/example" ;;
esac
"""


def toolchain(folder: Path, case: str = "") -> dict[str, str]:
    """Write stand-ins for nvcc and CMake, and NCCL's header; return the variables that lead to them."""
    for name, text in (("nvcc", NVCC), ("cmake", CMAKE)):
        path = folder / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(program=PROGRAM, case=case))
        path.chmod(0o755)
    (folder / "include").mkdir()
    (folder / "include" / "nccl.h").touch()
    return {"PATH": f"{folder}/bin:/usr/bin:/bin", "NCCL_HOME": str(folder)}
