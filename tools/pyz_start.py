"""What the one-file program does before it unpacks itself; tools/release fills in the texts between @. Python 2.7 can read it."""

import os
import sys

PYTHON, MACHINE, PLATFORM = "@PYTHON@", "@MACHINE@", "@PLATFORM@"
SENTENCE = (
    "gpucluster: error: this file is for Python %s on Linux %s, and this is Python %s on %s: "
    "install python%s, or take the file for this Python (docs/install.md)\n"
)

present, machine = "%d.%d" % sys.version_info[:2], os.uname()[4]
if (present, machine) != (PYTHON, MACHINE):
    if machine == MACHINE:
        try:  # python3 may be an older one beside it
            os.execvp("python" + PYTHON, ["python" + PYTHON] + sys.argv)
        except OSError:
            pass
    sys.stderr.write(SENTENCE % (PYTHON, PLATFORM, present, machine, PYTHON))
    sys.exit(4)

if "PEX_SCRIPT" not in os.environ:
    if sys.argv[1:2] == ["pytest"]:
        os.environ["PEX_SCRIPT"] = sys.argv.pop(1)
    elif os.path.basename(sys.argv[0]) == "pytest":  # a link
        os.environ["PEX_SCRIPT"] = "pytest"
