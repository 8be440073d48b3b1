import pytest

from ocrquant.errors import RecipeError
from ocrquant.recipe.imports import merge, parse_yaml, read_resolved


@pytest.fixture
def write(tmp_path):
    def _write(name: str, text: str):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def test_keys_beside_the_import_override_it_key_by_key(write):
    write("units/a.yaml", "x: {p: 1, q: 2}\nlist: [1, 2]")
    recipe = write("general/r.yaml", "$import: units/a\nx: {q: 3}\nlist: [9]")
    assert read_resolved(recipe) == {"x": {"p": 1, "q": 3}, "list": [9]}


def test_a_later_import_overrides_an_earlier_one(write):
    write("units/a.yaml", "x: 1\ny: 1")
    write("units/b.yaml", "y: 2")
    assert read_resolved(write("r.yaml", "$import: [units/a, units/b.yaml]")) == {"x": 1, "y": 2}


def test_import_below_the_top_and_import_of_an_import(write):
    write("units/a.yaml", "$import: units/deeper/b\np: 1")
    write("units/deeper/b.yaml", "q: 2")
    assert read_resolved(write("r.yaml", "x:\n  $import: units/a\n  r: 3")) == {"x": {"p": 1, "q": 2, "r": 3}}


def test_list_import_is_spliced_in_its_place(write):
    write("units/heads.yaml", "[b, c]")
    assert read_resolved(write("r.yaml", "x:\n- a\n- $import: units/heads\n- d")) == {
        "x": ["a", "b", "c", "d"]
    }


def test_nearest_folder_wins(write):
    write("units/a.yaml", "x: far")
    write("general/units/a.yaml", "x: near")
    assert read_resolved(write("general/r.yaml", "$import: units/a")) == {"x": "near"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$import: units/none", r"r\.yaml: \$import units/none: expected a file units/none\.yaml .*got none"),
        ("$import: 3", r"\$import: expected a file name"),
        ("$import: units/list", r"\$import units/list: expected a mapping, got a list"),
        ("x: [{$import: units/map}]", r"\$import units/map: expected a list, got a dict"),
        ("$import: units/empty", r"units/empty: expected a mapping, got nothing"),
        ("$import: units/circle", r"imports without a circle, got r.yaml -> circle.yaml -> circle.yaml"),
        ("$import: units/broken", r"broken\.yaml: line 2: expected YAML"),
    ],
)
def test_import_that_cannot_be_resolved_is_named(write, text, message):
    write("units/list.yaml", "[1]")
    write("units/map.yaml", "a: 1")
    write("units/empty.yaml", "")
    write("units/circle.yaml", "$import: units/circle")
    write("units/broken.yaml", "a: 1\nb: [")
    with pytest.raises(RecipeError, match=message):
        read_resolved(write("r.yaml", text))


def test_the_same_unit_twice_is_no_circle(write):
    write("units/a.yaml", "p: 1")
    text = "x: {$import: units/a}\ny: {$import: units/a}"
    assert read_resolved(write("r.yaml", text)) == {"x": {"p": 1}, "y": {"p": 1}}


def test_missing_recipe_shows_what_lies_there(write, tmp_path):
    write("mine.yaml", "a: 1")
    with pytest.raises(
        RecipeError, match=r"mime\.yaml: expected a recipe file, got No such file.*mine\.yaml"
    ):
        read_resolved(tmp_path / "mime.yaml")


def test_recipe_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "r.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="not UTF-8"):
        read_resolved(tmp_path / "r.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2", "line 2.*'a' is given twice"),
        ("x: {b: 1, b: 1}", "'b' is given twice"),
        ("1: x", "key 1 is not a text"),
        ("a: b: c", "line 1"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: \x07", "expected YAML"),
    ],
)
def test_malformed_yaml_is_refused(text, message):
    with pytest.raises(RecipeError, match=message):
        parse_yaml(text, "r.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("-2E5", -2e5), ("1.0e-3", 1e-3), ("0x10", 16), ("e3", "e3"), ("7", 7)],
)
def test_numbers(text, value):
    parsed = parse_yaml(text, "r.yaml")
    assert parsed == value
    assert type(parsed) is type(value)


def test_merge_leaves_its_arguments_alone():
    lower, upper = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge(lower, upper) == {"a": {"b": 1, "c": 2}}
    assert (lower, upper) == ({"a": {"b": 1}}, {"a": {"c": 2}})
