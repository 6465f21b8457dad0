"""C libraries through ctypes, and the CUDA driver. A shared part of payloads; Python 3.6."""

import ctypes
from typing import Any, Callable, Sequence


class Library:
    """A C library. A function that does not return 0 raises RuntimeError; `message` returns the text of its code."""

    def __init__(self, lib: Any, message: Callable[[Any, int], str]) -> None:
        self.lib, self.message, self.where = lib, message, ""

    def call(self, name: str, *args: Any) -> None:
        """Call a function; `where` follows its name in the error."""
        code = getattr(self.lib, name)(*args)
        if code != 0:
            text = self.message(self.lib, code)
            raise RuntimeError("%s%s: %s (%d)" % (name.replace("_v2", ""), self.where, text, code))

    def make(self, name: str, structure: Any, *after: Any, before: Sequence[Any] = ()) -> Any:
        """Return the value that a function stores through the argument between `before` and `after`."""
        made = structure()
        self.call(name, *before, ctypes.byref(made), *after)
        return made


def cuda_driver() -> Library:
    """Return the initialised CUDA driver; OSError if there is none."""

    def message(lib: Any, code: int) -> str:
        text = ctypes.c_char_p()
        lib.cuGetErrorString(code, ctypes.byref(text))
        return (text.value or b"unknown").decode()

    driver = Library(ctypes.CDLL("libcuda.so.1"), message)
    driver.call("cuInit", 0)
    return driver
