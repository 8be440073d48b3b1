import pickle

import pytest

from ocrquant import errors
from ocrquant.errors import GateError, OcrQuantError, RecipeError, dotted_key

KINDS = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, OcrQuantError)]


def test_every_error_has_its_own_exit_code_above_those_of_shell_and_typer():
    codes = [kind.exit_code for kind in KINDS if kind is not OcrQuantError]
    assert len(set(codes)) == len(codes)
    assert min(codes) >= 10
    assert max(codes) < 64


def test_exit_codes_that_scripts_rely_on():
    assert (RecipeError.exit_code, GateError.exit_code) == (10, 24)


def test_all_errors_are_exported():
    assert {kind.__name__ for kind in KINDS} | {"dotted_key"} == set(errors.__all__)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"expected": "a", "given": "b", "fix": "c"}, "x: expected a, got b; c"),
        ({"given": "b"}, "x: got b"),
        ({"expected": "a"}, "x: expected a"),
        ({"fix": "c"}, "x; c"),
        ({}, "x"),
    ],
)
def test_message_is_built_from_the_parts_that_are_given(parts, text):
    assert str(OcrQuantError("x", **parts)) == text


def test_message_is_one_line_whatever_the_parts_hold():
    error = RecipeError("a\nb", expected="c\r\n  d", given="e\tf", fix="g\n")
    assert str(error) == "a b: expected c d, got e f; g"


def test_error_survives_a_process_border():
    error = pickle.loads(pickle.dumps(RecipeError("x", expected=1, given=2, fix="c")))
    assert type(error) is RecipeError
    assert str(error) == "x: expected 1, got 2; c"


@pytest.mark.parametrize(
    ("location", "key"), [((), ""), (("a", "b"), "a.b"), (("a", 3, "b"), "a[3].b"), ((0,), "[0]")]
)
def test_dotted_key(location, key):
    assert dotted_key(location) == key
