"""What the one-file program does before it unpacks itself; tools/release fills in the texts between @. Python 2.7 can read it."""

import os
import sys

PYTHON, MACHINE, PLATFORM = "@PYTHON@", "@MACHINE@", "@PLATFORM@"


def start():
    """Go on under the Python that the file was built for, else exit with one sentence; `pytest` is a word or the file's name."""
    here = ".".join(map(str, sys.version_info[:2])), os.uname()[4]
    if here != (PYTHON, MACHINE):
        if here[1] == MACHINE:
            try:  # python3 may be an older one beside it
                os.execvp("python" + PYTHON, ["python" + PYTHON] + sys.argv)
            except OSError:
                pass
        message = "gpucluster: error: this file is for Python %s on Linux %s, and this is Python %s on %s: install "
        message += "python%s, or take the file for this Python (docs/install.md)\n"
        sys.stderr.write(message % (PYTHON, PLATFORM, here[0], here[1], PYTHON))
        sys.exit(4)
    if "PEX_SCRIPT" not in os.environ:
        if sys.argv[1:2] == ["pytest"]:
            os.environ["PEX_SCRIPT"] = sys.argv.pop(1)
        elif os.path.basename(sys.argv[0]) == "pytest":  # a link
            os.environ["PEX_SCRIPT"] = "pytest"


start()
