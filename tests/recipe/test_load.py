import pytest

from ocrquant.errors import RecipeError
from ocrquant.recipe import load_recipe

MINIMAL = """
model: {path: pico}
pages: {source: crops, num_calibration_pages: 16, num_heldout_pages: 8}
sensitivity: {candidates: [nvfp4, fp8]}
assign: {budget: {bits_per_weight: 6.5}}
output: runs/x
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text(MINIMAL, encoding="utf-8")
    return file


def test_defaults_are_filled_in(path):
    recipe = load_recipe(path)
    assert recipe.pages.kinds == ["line", "block", "page"]
    assert not recipe.model.allow_remote_code
    assert recipe.gate is None


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("pages.seed=7", lambda r: r.pages.seed, 7),
        ("gate.max_kl=1e-3", lambda r: r.gate.max_kl, 1e-3),
        ("model.path=a=b", lambda r: r.model.path, "a=b"),
        ("pages.kinds=[line]", lambda r: r.pages.kinds, ["line"]),
        ("assign.budget={max_kl: 0.5}", lambda r: r.assign.budget.kind, "max_kl"),
        (" weights.gptq=false ", lambda r: r.weights.gptq, False),
        ("statistics.batch_size=2", lambda r: r.statistics.batch_size, 2),
    ],
)
def test_override_replaces_one_value(path, override, read, value):
    assert read(load_recipe(path, [override])) == value


def test_overrides_apply_in_order(path):
    assert load_recipe(path, ["pages.seed=1", "pages.seed=2"]).pages.seed == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "pages.num_page=3",
            r"pages\.num_page: expected one of source.*unknown key; did you mean num_\w+_pages",
        ),
        ("page.seed=3", r"page: expected one of model, pages.*did you mean pages\?"),
        ("seed=3", r"seed: .*did you mean pages\.seed\?"),
        ("evaluate.max_cer_increase=1", r"did you mean gate\.max_cer_increase\?"),
        ("export.zzz=1", r"export\.zzz: .*unknown key; remove it"),
        ("assign.budget.bits=5", r"assign\.budget\.bits: .*did you mean bits_per_weight\?"),
        ("sensitivity.candidates=[fp8, fp4]", r"sensitivity\.candidates\[1\]: expected .*got 'fp4'"),
        ("search.force={fp9: [x]}", r"search\.force\.fp9: expected .*got 'fp9'"),
        ("pages.seed=-1", r"pages\.seed: expected greater than or equal to 0, got -1"),
        ("pages.seed=1.5", r"pages\.seed: expected a whole number, got 1\.5"),
        ("pages.heldout_fraction=.nan", r"heldout_fraction: expected a finite number"),
        ("pages=3", r"pages: expected a section of keys, got 3"),
        ("pages.kinds=[]", r"pages\.kinds: expected at least 1 of them"),
        ("output=", r"output: expected a text, got None"),
        ("device=gpu", r"device: expected auto, cpu, cuda or cuda:N, got 'gpu'"),
        ("pages.seed", r"--set pages\.seed: expected KEY=VALUE"),
        ("pages..seed=1", r"expected KEY=VALUE"),
        ("pages.source.x=1", r"expected a section source, got 'crops'"),
        ("pages.kinds=[line", r"--set pages\.kinds=\[line: line 1: expected YAML"),
    ],
)
def test_mistake_is_named(path, override, message):
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe(path, [override])
    assert "\n" not in str(caught.value)


def test_missing_key_is_named(path):
    path.write_text(MINIMAL.replace("output: runs/x", ""), encoding="utf-8")
    with pytest.raises(RecipeError, match=r"r\.yaml: output: expected a value, got nothing; add the key"):
        load_recipe(path)


def test_typing_error_is_named_before_the_key_that_it_leaves_missing(path):
    path.write_text(MINIMAL.replace("output:", "outputs:"), encoding="utf-8")
    with pytest.raises(RecipeError, match=r"outputs: .*did you mean output\?"):
        load_recipe(path)


@pytest.mark.parametrize(("text", "given"), [("", "nothing"), ("- a", "a list"), ("just words", "a str")])
def test_recipe_must_be_a_mapping(path, text, given):
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=f"a mapping of sections, got {given}"):
        load_recipe(path)
