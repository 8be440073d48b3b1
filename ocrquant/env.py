"""The ``OCRQUANT_*`` environment variables: one table, one reader a variable, malformed values refused.

Knows names and syntax. Does not know whether a device or a folder exists: whoever uses the value checks that.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ocrquant.errors import EnvironmentVariableError

__all__ = [
    "PREFIX",
    "VARIABLES",
    "Variable",
    "check_environment",
    "corpus",
    "device",
    "kernels",
    "libraries",
    "num_threads",
]

PREFIX = "OCRQUANT_"


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable.

    Attributes:
        name: Full name, with the prefix.
        syntax: Regular expression that the whole value must match.
        expected: The syntax in words, for the error message.
        purpose: What the value changes.
    """

    name: str
    syntax: str
    expected: str
    purpose: str

    def read(self, environ: Mapping[str, str] | None = None) -> str | None:
        """Returns the value with surrounding blanks removed, or None where it is unset or empty.

        Args:
            environ: Where to read; the process environment by default.

        Raises:
            EnvironmentVariableError: The value does not match the syntax.
        """
        value = (os.environ if environ is None else environ).get(self.name, "").strip()
        if not value:
            return None
        if not re.fullmatch(self.syntax, value):
            raise EnvironmentVariableError(
                self.name, expected=self.expected, given=repr(value), fix="change the variable or unset it"
            )
        return value


_DEVICE = Variable(
    "OCRQUANT_DEVICE",
    r"auto|cpu|cuda(:\d+)?",
    "auto, cpu, cuda or cuda:N",
    "device that is used where neither the command line nor the recipe names one",
)
_NUM_THREADS = Variable(
    "OCRQUANT_NUM_THREADS",
    r"[1-9]\d{0,3}",
    "a whole number from 1 to 9999",
    "threads that torch and the native kernels use on a CPU",
)
_CORPUS = Variable(
    "OCRQUANT_CORPUS", r".+", "a folder", "folder of parquet files with crops that pico is trained on"
)
_KERNELS = Variable(
    "OCRQUANT_KERNELS",
    r"auto|native|triton|cuda|reference",
    "auto, native, triton, cuda or reference",
    "implementation of the runtime's ops; native, triton and cuda refuse where they do not apply",
)
_LIBRARIES = Variable(
    "OCRQUANT_LIBRARIES",
    r"none|(flashinfer|fla)(,(flashinfer|fla))*",
    "none, flashinfer, fla or flashinfer,fla",
    "libraries that compute on a GPU where they can; one that cannot be used is refused",
)

VARIABLES: dict[str, Variable] = {v.name: v for v in (_DEVICE, _NUM_THREADS, _CORPUS, _KERNELS, _LIBRARIES)}


def device(environ: Mapping[str, str] | None = None) -> str | None:
    """Returns ``OCRQUANT_DEVICE`` (``auto``, ``cpu``, ``cuda`` or ``cuda:N``), or None."""
    return _DEVICE.read(environ)


def num_threads(environ: Mapping[str, str] | None = None) -> int | None:
    """Returns ``OCRQUANT_NUM_THREADS`` as a positive number, or None."""
    value = _NUM_THREADS.read(environ)
    return None if value is None else int(value)


def corpus(environ: Mapping[str, str] | None = None) -> Path | None:
    """Returns ``OCRQUANT_CORPUS`` as a path that may not exist, or None."""
    value = _CORPUS.read(environ)
    return None if value is None else Path(value).expanduser()


def kernels(environ: Mapping[str, str] | None = None) -> str:
    """Returns ``OCRQUANT_KERNELS``: ``auto`` where unset, ``native``, ``triton``, ``cuda``, ``reference``."""
    return _KERNELS.read(environ) or "auto"


def libraries(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Returns the names in ``OCRQUANT_LIBRARIES``; none where it is unset or ``none``."""
    value = _LIBRARIES.read(environ)
    return frozenset() if value in (None, "none") else frozenset((value or "").split(","))


def check_environment(environ: Mapping[str, str] | None = None) -> None:
    """Refuses unknown and malformed ``OCRQUANT_*`` variables, so that a typing error is not silently ignored.

    Raises:
        EnvironmentVariableError: A variable with the prefix is not in the table, or its value is malformed.
    """
    environ = os.environ if environ is None else environ
    for name in sorted(n for n in environ if n.startswith(PREFIX)):
        if name in VARIABLES:
            VARIABLES[name].read(environ)
            continue
        near = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.0)
        raise EnvironmentVariableError(
            name,
            expected=f"one of {', '.join(VARIABLES)}",
            given="an unknown name",
            fix=f"did you mean {near[0]}?",
        )
