"""A command from its arguments to its exit status; errors are one line on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pytest_gpucluster import SuiteError
from pytest_gpucluster.cli.command import parser_of
from pytest_gpucluster.cli.completion import complete
from pytest_gpucluster.cli.errors import complain
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError
from pytest_gpucluster.core.former_names import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpucluster.cli.command import Command

OK, FAILED, WRONG_CONFIG, INTERRUPTED = 0, 1, 4, 130


def run_command(commands: Iterable[Command], argv: Sequence[str] | None = None) -> int:
    """Parse the arguments, run the command that they name, and return the exit status."""
    try:
        words = sys.argv[1:] if argv is None else argv
        _refuse_former(words)
        parser = parser_of(commands)
        complete(parser)
        args = parser.parse_args(words)
        status = args.run(args)
        sys.stdout.flush()
    except (ConfigError, SuiteError) as error:
        return complain(error, WRONG_CONFIG)
    except GpuClusterError as error:
        return complain(error, FAILED)
    except KeyboardInterrupt:
        return complain("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader, like head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        return complain(error, FAILED)
    return int(status or OK)


def _refuse_former(words: Sequence[str]) -> None:
    if words and words[0] in OPTIONS:
        raise ConfigError(f"gpucluster {words[0]} {OPTIONS[words[0]].text}")
