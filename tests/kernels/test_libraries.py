"""Libraries that may be asked for: by name, by version, and never unasked."""

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from ocrquant import env
from ocrquant.errors import DeviceError
from ocrquant.kernels import libraries
from ocrquant.kernels.libraries import LIBRARIES, load, obstacle, require_asked, unusable


@pytest.fixture
def installed(monkeypatch):
    """Versions by package, in place of what is installed."""
    versions = {}

    def version(package):
        if package not in versions:
            raise PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(libraries, "version", version)
    unusable.cache_clear()
    yield versions
    unusable.cache_clear()


def test_a_library_is_called_only_where_it_is_asked_for(installed, monkeypatch):
    installed["fla-core"] = "0.6.0"
    monkeypatch.delenv("OCRQUANT_LIBRARIES", raising=False)
    assert obstacle("fla") == "OCRQUANT_LIBRARIES does not name fla"
    assert obstacle("flashinfer") == "flashinfer-python is not installed"
    require_asked()
    monkeypatch.setenv("OCRQUANT_LIBRARIES", "fla")
    assert obstacle("fla") == ""
    require_asked()


@pytest.mark.parametrize(
    ("version", "given"),
    [
        ("0.7.3", "flashinfer-python 0.7.3 is not >=0.7.4,<0.8"),
        ("0.8.0", "flashinfer-python 0.8.0 is not >=0.7.4,<0.8"),
        (None, "flashinfer-python is not installed"),
        ("0.7.4", None),
        ("0.7.5.post1", None),
    ],
)
def test_another_version_is_refused_by_name_and_number(installed, monkeypatch, version, given):
    monkeypatch.setenv("OCRQUANT_LIBRARIES", "flashinfer")
    if version is not None:
        installed["flashinfer-python"] = version
    if given is None:
        require_asked()
        return
    with pytest.raises(DeviceError, match=rf"OCRQUANT_LIBRARIES=flashinfer: .*{given}"):
        require_asked()


def test_the_extra_installs_the_versions_that_are_called():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["cuda"]
    for library in LIBRARIES.values():
        assert f"{library.package}{library.versions}" in extra


def test_every_name_of_the_variable_is_a_library():
    assert env.libraries({}) == env.libraries({"OCRQUANT_LIBRARIES": "none"}) == frozenset()
    assert env.libraries({"OCRQUANT_LIBRARIES": ",".join(LIBRARIES)}) == set(LIBRARIES)


def test_one_that_cannot_be_imported_is_refused_with_its_own_words(tmp_path, monkeypatch):
    (tmp_path / "no_driver_here.py").write_text("raise RuntimeError('libcuda.so.1 not found')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DeviceError, match=r"OCRQUANT_LIBRARIES=fla: .*RuntimeError: libcuda.so.1 not found"):
        load("fla", "no_driver_here")
    assert load("fla", "json").loads("1") == 1
