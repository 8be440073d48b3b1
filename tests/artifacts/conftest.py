import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@pytest.fixture
def file_size_limit():
    """A context in which the kernel refuses to let any file grow beyond some bytes, as a full disk would."""

    @contextmanager
    def limit(num_bytes: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit


@pytest.fixture
def as_nobody():
    """Runs a function in a child process without privileges and returns the text of its error."""

    def run(function) -> str:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            text = "no error"
            try:
                if os.getuid() == 0:
                    os.setuid(65534)
                function()
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            finally:
                os.write(writing, text.encode())
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            return pipe.read().decode()

    return run


def names(folder):
    """Names of everything in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(name="names")
def names_fixture():
    return names
