"""Libraries of the field that compute on a GPU where ``OCRQUANT_LIBRARIES`` asks for them.

None of them is called unasked: what they gain here has not been measured, and each has a price that its
caller states. One that is asked for and cannot be used is refused, by package and version, rather than passed
over. Knows packages and versions; knows no op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType, ModuleType
from typing import Literal

from packaging.specifiers import SpecifierSet

from ocrquant import env
from ocrquant.errors import DeviceError

__all__ = ["LIBRARIES", "Library", "LibraryName", "is_asked", "load", "obstacle", "require_asked", "unusable"]

LibraryName = Literal["flashinfer", "fla"]
"""As ``OCRQUANT_LIBRARIES`` names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One library.

    Attributes:
        package: As installers name it.
        versions: Whose functions take what is passed here; the extra ``cuda`` installs these.
        serves: What it may compute, for a reader.
    """

    package: str
    versions: str
    serves: str


LIBRARIES: Mapping[LibraryName, Library] = MappingProxyType(
    {
        "flashinfer": Library(
            package="flashinfer-python",
            versions=">=0.7.4,<0.8",
            serves="products of NVFP4, and of FP8 with one scale a side",
        ),
        "fla": Library(
            package="fla-core",
            versions=">=0.6,<0.7",
            serves="the gated delta rule over a long part of one prompt",
        ),
    }
)
"""By name. ``fla-core`` is the part of flash-linear-attention that holds its kernels."""


@cache
def unusable(name: LibraryName) -> str:
    """Why a library cannot be called, by package and version; empty where it can."""
    library = LIBRARIES[name]
    try:
        found = version(library.package)
    except PackageNotFoundError:
        return f"{library.package} is not installed"
    if SpecifierSet(library.versions).contains(found, prereleases=True):
        return ""
    return f"{library.package} {found} is not {library.versions}"


def is_asked(name: LibraryName) -> bool:
    """Whether ``OCRQUANT_LIBRARIES`` names a library."""
    return name in env.libraries()


def obstacle(name: LibraryName) -> str:
    """Why a library does not serve; empty where it does, as far as it depends on the library."""
    return unusable(name) or ("" if is_asked(name) else f"OCRQUANT_LIBRARIES does not name {name}")


def require_asked() -> None:
    """Refuses libraries that are asked for and cannot be used.

    Raises:
        DeviceError: One is not installed, or of a version that nobody has looked at.
    """
    asked = env.libraries()
    for name in LIBRARIES if asked else ():
        if name in asked and (found := unusable(name)):
            raise _refused(name, found)


def load(name: LibraryName, module: str) -> ModuleType:
    """A module of a library.

    Raises:
        DeviceError: It is installed and cannot be imported, for want of a driver or of another package.
    """
    try:
        return import_module(module)
    except Exception as error:
        # What a library does when it is imported is its own: any of its errors means that it is not there.
        raise _refused(name, f"{type(error).__name__}: {error}") from error


def _refused(name: LibraryName, given: str) -> DeviceError:
    library = LIBRARIES[name]
    return DeviceError(
        f"OCRQUANT_LIBRARIES={name}",
        expected=f"{library.package}{library.versions}",
        given=given,
        fix="pip install 'ocrquant[cuda]', or take the name out of the variable",
    )
