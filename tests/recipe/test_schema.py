import hashlib

import pytest

from ocrquant.errors import RecipeError
from ocrquant.recipe import Recipe, build_recipe


def data(**sections):
    minimal = {
        "model": {"path": "pico"},
        "pages": {"source": "crops", "num_calibration_pages": 16, "num_heldout_pages": 8},
        "sensitivity": {"candidates": ["nvfp4", "fp8"]},
        "assign": {"budget": {"bits_per_weight": 6.5}},
        "output": "runs/x",
    }
    merged = {**minimal, **sections}
    for name, value in sections.items():
        if isinstance(value, dict):
            merged[name] = {**minimal.get(name, {}), **value}
    return merged


def build(**sections) -> Recipe:
    return build_recipe(data(**sections), "r.yaml")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"weights": {"num_held_back_pages": 16}}, "num_held_back_pages below pages.num_calibration_pages"),
        ({"sensitivity": {"num_pages": 17}}, "sensitivity.num_pages of at most"),
        (
            {"sensitivity": {"candidates": ["fp8"]}, "search": {"force": {"nvfp4": ["*"]}}},
            "got nvfp4; add nvfp4",
        ),
        ({"sensitivity": {"candidates": ["bf16"]}}, "remove bf16 from candidates"),
        ({"sensitivity": {"candidates": ["fp8", "fp8"]}}, "distinct entries"),
        ({"pages": {"kinds": ["line", "line"]}}, "distinct entries"),
        ({"search": {"keep_bf16": ["re:(["]}}, "a regular expression after re:"),
        ({"search": {"keep_bf16": [" "]}}, r"search\.keep_bf16\[0\]: expected a pattern"),
        ({"evaluate": {"arms": ["bf16", "fp8"]}}, "got none called plan"),
        ({"evaluate": {"arms": ["plan"]}}, "got none called bf16"),
        ({"gate": {}}, "at least one of max_cer_increase"),
        ({"gate": {"max_kl": None}}, "at least one of max_cer_increase"),
        ({"gate": {"require_equivalence": False}}, "at least one of max_cer_increase"),
        ({"gate": {"require_equivalence": True}}, "evaluate.equivalence with a margin"),
        ({"gate": {"min_acceptance_length": 4}}, "evaluate.drafter for gate.min_acceptance_length"),
        (
            {"gate": {"min_acceptance_length": 0.5}, "evaluate": {"drafter": "run"}},
            "greater than or equal to 1",
        ),
        ({"evaluate": {"drafter": ""}}, r"evaluate\.drafter"),
        ({"evaluate": {"equivalence": {"cer_margin": 0}}}, r"evaluate\.equivalence\.cer_margin"),
        ({"evaluate": {"equivalence": {"cer_margin": 0.1, "confidence": 0.5}}}, r"equivalence\.confidence"),
        ({"export": {"format": "gguf"}}, r"export\.format"),
        ({"pages": {"num_calibration_pages": 1}}, "greater than or equal to 2"),
        ({"weights": {"engine": "modelopt", "gptq": True}}, "got gptq with engine modelopt; remove gptq"),
    ],
)
def test_rule_between_keys(sections, message):
    with pytest.raises(RecipeError, match=message):
        build(**sections)


@pytest.mark.parametrize("budget", [{}, {"max_kl": 0.1, "weight_bytes": 5}, {"max_kl": None}, {"max_kl": 0}])
def test_budget_is_exactly_one_positive_limit(budget):
    values = data()
    values["assign"] = {"budget": budget}
    with pytest.raises(RecipeError, match=r"assign\.budget"):
        build_recipe(values, "r.yaml")


def test_kl_budget_needs_measured_scores():
    values = data(sensitivity={"score": "gradient"})
    values["assign"] = {"budget": {"max_kl": 0.1}}
    with pytest.raises(RecipeError, match="set sensitivity.score to screened, kl or both"):
        build_recipe(values, "r.yaml")
    values["sensitivity"]["score"] = "both"
    assert build_recipe(values, "r.yaml").assign.budget.value == 0.1


def test_held_back_pages_do_not_bind_where_nothing_is_judged_on_them():
    off = {"smoothing": False, "scale_search": False, "gptq": False, "num_held_back_pages": 99}
    assert build(weights=off).weights.is_nearest


def test_forcing_bf16_is_always_allowed():
    assert build(search={"force": {"bf16": ["*.o_proj"]}}).search.force == {"bf16": ["*.o_proj"]}


def test_digest_covers_defaults_and_ignores_place_and_order():
    recipe = build()
    assert build(statistics={"batch_size": 8}).digest() == recipe.digest()
    assert build(output="elsewhere", device="cuda").digest() == recipe.digest()
    by_block = build(model={**data()["model"], "residency": "block"})
    assert by_block.digest() == recipe.digest()
    assert by_block.section_digest("model") == recipe.section_digest("model")
    assert build_recipe(dict(reversed(data().items())), "r.yaml").digest() == recipe.digest()


@pytest.mark.parametrize(
    "section",
    [
        {"model": {"path": "other"}},
        {"pages": {"seed": 1}},
        {"statistics": {"batch_size": 3}},
        {"sensitivity": {"score": "both"}},
        {"search": {"keep_bf16": ["x"]}},
        {"weights": {"gptq": False}},
        {"assign": {"budget": {"bits_per_weight": 5}}},
        {"export": {"kv_cache": "fp8"}},
        {"evaluate": {"batch_size": 1}},
        {"gate": {"max_kl": 1}},
    ],
)
def test_digest_follows_every_section_and_section_digest_only_its_own(section):
    before, after = build(), build(**section)
    (name,) = section
    others = [other for other in Recipe.model_fields if other != name]
    assert after.digest() != before.digest()
    assert after.section_digest(name) != before.section_digest(name)
    assert after.section_digest(*others) == before.section_digest(*others)


def test_a_minimum_of_acceptance_goes_with_a_drafter():
    recipe = build(gate={"min_acceptance_length": 4}, evaluate={"drafter": "pico-dflash2"})
    assert (recipe.gate.min_acceptance_length, recipe.evaluate.drafter) == (4, "pico-dflash2")


def test_unknown_section_has_no_digest():
    with pytest.raises(AssertionError):
        build().section_digest("page")


def test_digest_of_a_known_recipe_does_not_drift():
    # Run folders hold this number: canonical JSON, keys sorted, defaults filled in.
    budget = '{"bits_per_weight":6.5,"max_kl":null,"step_us":null,"weight_bytes":null}'
    text = (
        f'{{"assign":{{"budget":{budget},"counted_cache":null,"forbid":{{}},"force":{{}},"limits":{{}},'
        '"min_bits":{},"repair":{"max_measurements":0},"target":null}}'
    )
    assert build().section_digest("assign") == hashlib.sha256(text.encode()).hexdigest()
    assert len(build().digest()) == 64
