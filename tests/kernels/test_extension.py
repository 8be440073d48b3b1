"""The guard against an extension that is older than the sources beside it."""

import shutil
import time
from types import SimpleNamespace

import pytest

from ocrquant.errors import DeviceError
from ocrquant.kernels.extension import SOURCES, check_sources, extension, sources_digest


def test_the_extension_in_use_is_of_the_sources_here():
    native = extension()
    if native is None or not SOURCES.is_dir():
        pytest.skip("the extension or its sources are not here")
    assert native.sources() == sources_digest(SOURCES)


def test_any_change_of_a_source_is_noticed(tmp_path):
    if not SOURCES.is_dir():
        pytest.skip("no sources here")
    folder = tmp_path / "csrc"
    shutil.copytree(SOURCES, folder)
    compiled = sources_digest(folder)
    module = SimpleNamespace(sources=lambda: compiled, __file__="_native.so")
    check_sources(module, folder)
    header = folder / "cpu" / "linear" / "args.h"
    text = header.read_text()
    header.write_text(text + "\n")
    with pytest.raises(DeviceError, match=r"_native\.so: expected one compiled from .*run make native"):
        check_sources(module, folder)
    header.write_text(text)
    check_sources(module, folder)
    (folder / "cpu" / "new.h").write_text("")
    with pytest.raises(DeviceError, match="other sources"):
        check_sources(module, folder)


def test_an_extension_without_a_digest_is_older_than_the_guard(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text("")
    with pytest.raises(DeviceError, match="no digest"):
        check_sources(SimpleNamespace(__file__="_native.so"), tmp_path)


def test_a_package_without_sources_is_not_asked(tmp_path):
    check_sources(SimpleNamespace(__file__="_native.so"), tmp_path)


def test_it_is_cheap():
    if not SOURCES.is_dir():
        pytest.skip("no sources here")
    times = []
    for _ in range(5):
        begin = time.process_time()
        sources_digest(SOURCES)
        times.append(time.process_time() - begin)
    assert min(times) < 0.05
