"""Errors that a person can act on: one line with the thing, what was expected, what was given and the fix.

Knows exit codes and wording. Knows nothing of what raises them; imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

__all__ = [
    "AlreadyQuantizedError",
    "ArtifactError",
    "BudgetError",
    "DeviceError",
    "EncryptedPdfError",
    "EngineError",
    "EnvironmentVariableError",
    "GateError",
    "ImageError",
    "ModelError",
    "OcrQuantError",
    "OutputError",
    "PageSizeError",
    "PagesError",
    "PatternError",
    "QueueFullError",
    "RecipeError",
    "RequestError",
    "RunFolderError",
    "ShapeError",
    "SplitError",
    "TargetError",
    "VerificationError",
    "WeightValueError",
    "dotted_key",
]


class OcrQuantError(Exception):
    """Base of every error that the command line prints as one line and turns into an exit code.

    The text is ``<thing>: expected <expected>, got <given>; <fix>``; parts that are empty are left out.

    Args:
        thing: What is wrong: a file, a key, a layer, a page.
        expected: What would have been accepted.
        given: What was found instead.
        fix: What to do about it, as an instruction.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, thing: object, *, expected: object = "", given: object = "", fix: str = "") -> None:
        self.thing = _one_line(thing)
        self.expected = _one_line(expected)
        self.given = _one_line(given)
        self.fix = _one_line(fix)
        super().__init__(self.thing)

    def __str__(self) -> str:
        found = [f"expected {self.expected}"] if self.expected else []
        found += [f"got {self.given}"] if self.given else []
        text = f"{self.thing}: {', '.join(found)}" if found else self.thing
        return f"{text}; {self.fix}" if self.fix else text

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments: the default pickling of exceptions would drop them in a worker process.
        return _rebuild, (type(self), self.thing, self.expected, self.given, self.fix)


def _one_line(value: object) -> str:
    return " ".join(str(value).split())


def _rebuild(kind: type[OcrQuantError], thing: str, expected: str, given: str, fix: str) -> OcrQuantError:
    return kind(thing, expected=expected, given=given, fix=fix)


def dotted_key(location: Iterable[str | int]) -> str:
    """Writes the place of a value inside nested data, as in ``pages.kinds[1]``."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


class RecipeError(OcrQuantError):
    """A recipe has an unknown key, a value out of range or an import that cannot be resolved."""

    exit_code = 10


class PatternError(OcrQuantError):
    """A layer pattern of the recipe matches nothing."""

    exit_code = 11


class ModelError(OcrQuantError):
    """A model folder cannot be used: unsupported architecture, missing files, weights not in safetensors."""

    exit_code = 12


class AlreadyQuantizedError(OcrQuantError):
    """The model to quantize is quantized already."""

    exit_code = 13


class WeightValueError(OcrQuantError):
    """A weight holds NaN or Inf."""

    exit_code = 14


class ShapeError(OcrQuantError):
    """A tensor's shape or a layer's width does not suit the format."""

    exit_code = 15


class PagesError(OcrQuantError):
    """A source of pages is missing, empty or malformed."""

    exit_code = 16


class ImageError(OcrQuantError):
    """An image or PDF page cannot be decoded."""

    exit_code = 17


class EncryptedPdfError(OcrQuantError):
    """A PDF asks for a password."""

    exit_code = 18


class PageSizeError(OcrQuantError):
    """A page has more pixels than the recipe allows."""

    exit_code = 19


class SplitError(OcrQuantError):
    """The calibration and held-out splits are missing or share a document."""

    exit_code = 20


class BudgetError(OcrQuantError):
    """The budget cannot be reached."""

    exit_code = 21


class OutputError(OcrQuantError):
    """A file cannot be written: no permission, disk full, not a folder."""

    exit_code = 22


class RunFolderError(OcrQuantError):
    """A run folder was made by another recipe, or another process is using it."""

    exit_code = 23


class GateError(OcrQuantError):
    """The evaluation exceeded a threshold of the recipe; the report is written."""

    exit_code = 24


class DeviceError(OcrQuantError):
    """The requested device is not there or lacks memory."""

    exit_code = 25


class ArtifactError(OcrQuantError):
    """A stage file is missing, malformed or of another schema version."""

    exit_code = 26


class EnvironmentVariableError(OcrQuantError):
    """An ``OCRQUANT_*`` variable is unknown or malformed."""

    exit_code = 27


class EngineError(OcrQuantError):
    """A setting of the engine is out of range or does not suit the others."""

    exit_code = 28


class RequestError(OcrQuantError):
    """A request has a setting out of range, or needs more memory than the engine has in all."""

    exit_code = 29


class QueueFullError(OcrQuantError):
    """The engine has as many requests waiting as it accepts."""

    exit_code = 30


class TargetError(OcrQuantError):
    """The server that a recipe names as its target cannot read what would be written."""

    exit_code = 31


class VerificationError(OcrQuantError):
    """A checkpoint has errors; they are printed."""

    exit_code = 32
