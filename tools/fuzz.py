"""The longer campaign of `make fuzz`: libFuzzer, by way of atheris, on every reader, seeded with its recordings.

    tools/fuzz.py SECONDS [READER]      a crash is written to .cache/fuzz/READER and ends the campaign

Each reader runs in a process of its own. The readers and their corpora are those of tests/fuzz_readers.py.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
STATE = ROOT / ".cache" / "fuzz"
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "slurm-sandbox/tests")]


def one(name: str, seconds: int) -> None:
    """Fuzz one reader until the time is up; atheris ends the process."""
    import atheris  # installed by `make fuzz` alone

    with atheris.instrument_imports(include=["pytest_gpucluster"]):
        import fuzz_readers  # instrumented as it is imported

    reader = next(reader for reader in fuzz_readers.ALL if reader.name == name)
    corpus = STATE / name / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(reader.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)

    def run(data: bytes) -> None:
        with contextlib.suppress(*reader.typed):
            reader.read(data)

    options = [
        f"-max_total_time={seconds}",
        f"-timeout={fuzz_readers.TOO_LONG}",
        "-rss_limit_mb=2048",
        "-verbosity=0",
    ]
    atheris.Setup(
        [sys.argv[0], *options, f"-artifact_prefix={STATE / name}/", "-max_len=65536", str(corpus)], run
    )
    atheris.Fuzz()


def main() -> int:
    """Fuzz all readers one after another, or the named one; the exit status is 1 where any crashed."""
    import fuzz_readers  # after the path is set

    seconds, only = int(sys.argv[1]), sys.argv[2:]
    bad = []
    for reader in fuzz_readers.ALL:
        if only and reader.name not in only:
            continue
        done = subprocess.run([sys.executable, __file__, "--one", reader.name, str(seconds)], check=False)
        print(f"{reader.name}: {'ok' if done.returncode == 0 else 'CRASHED'}", flush=True)
        bad += [reader.name] if done.returncode else []
    print(f"{len(bad)} readers crashed{': ' + ', '.join(bad) if bad else ''}")
    return bool(bad)


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        one(sys.argv[2], int(sys.argv[3]))
    sys.exit(main())
