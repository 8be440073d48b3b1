from pathlib import Path

import pytest

from ocrquant import env
from ocrquant.errors import EnvironmentVariableError


@pytest.mark.parametrize("reader", [env.device, env.num_threads, env.corpus])
@pytest.mark.parametrize(
    "environ", [{}, dict.fromkeys(env.VARIABLES, ""), dict.fromkeys(env.VARIABLES, "  ")]
)
def test_unset_and_empty_are_the_same(reader, environ):
    assert reader(environ) is None


def test_values_are_converted():
    assert env.device({"OCRQUANT_DEVICE": " cuda:1 "}) == "cuda:1"
    assert env.num_threads({"OCRQUANT_NUM_THREADS": "12"}) == 12
    assert env.corpus({"OCRQUANT_CORPUS": "~/crops"}) == Path.home() / "crops"


@pytest.mark.parametrize(
    ("reader", "name", "value"),
    [
        (env.device, "OCRQUANT_DEVICE", "gpu"),
        (env.device, "OCRQUANT_DEVICE", "cuda:"),
        (env.num_threads, "OCRQUANT_NUM_THREADS", "0"),
        (env.num_threads, "OCRQUANT_NUM_THREADS", "-1"),
        (env.num_threads, "OCRQUANT_NUM_THREADS", "two"),
    ],
)
def test_malformed_value_is_refused_by_name(reader, name, value):
    with pytest.raises(EnvironmentVariableError, match=f"{name}: expected .*{value!r}"):
        reader({name: value})
    with pytest.raises(EnvironmentVariableError, match=name):
        env.check_environment({name: value})


def test_unknown_variable_is_refused_with_the_nearest_name():
    with pytest.raises(EnvironmentVariableError, match="OCRQUANT_DEVICES.*did you mean OCRQUANT_DEVICE"):
        env.check_environment({"OCRQUANT_DEVICES": "cpu"})


def test_other_variables_are_left_alone():
    env.check_environment({"PATH": "/bin", "OCRQUANTIZE": "x", "OCRQUANT_DEVICE": "cpu"})


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("OCRQUANT_NUM_THREADS", "3")
    assert env.num_threads() == 3
    monkeypatch.setenv("OCRQUANT_NUM_THREAD", "3")
    with pytest.raises(EnvironmentVariableError):
        env.check_environment()
