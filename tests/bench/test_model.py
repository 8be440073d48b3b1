"""The random model: shape, precisions, and the benchmark on a small one."""

import torch

from ocrquant.bench.random_model import deal_precisions, load_random, make_model
from ocrquant.engine.prompt import text_prompt
from ocrquant.engine.sampling import SamplingParams
from ocrquant.formats import FORMATS, Precision
from tests.bench.running import is_estimate, result_of

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "vocab_size": 512,
}


MIXED = ("engine mixed, head nvfp4", "engine mixed, head bf16")


def test_plans_meet_their_budget_and_are_spread():
    sizes = {f"layers.{layer}.{part}": 100 for layer in range(24) for part in "abcd"}
    for budget in (4.5, 5.0, 6.25, 8.0):
        dealt = deal_precisions(sizes, budget)
        mean = sum(FORMATS[precision].bits_per_weight for precision in dealt.values()) / len(dealt)
        assert budget - 3.5 / 96 < mean <= budget
    wide = [name for name, precision in deal_precisions(sizes, 5.0).items() if precision is Precision.FP8]
    layers = {int(name.split(".")[1]) // 6 for name in wide}
    assert layers == {0, 1, 2, 3}


def test_both_sides_have_the_same_weights():
    model = make_model(SMALL)
    prompt = [5, 9, 200, 31]
    theirs = model.for_transformers()
    with torch.inference_mode():
        logits = theirs(input_ids=torch.tensor([prompt])).logits[0, -1].float()
    loaded = load_random(model, 2, 32)
    name = loaded.engine.submit(text_prompt(prompt, 3), SamplingParams(max_tokens=1, ignore_eos=True))
    result = loaded.engine.run_until_done()[name]
    best = logits.topk(2)
    assert result.ids[0] == best.indices[0]
    assert abs(result.gaps[0] - float(best.values[0] - best.values[1])) < 0.02
    assert loaded.weight_bytes / loaded.stored_bytes < 1.05


def test_every_arm_has_its_numbers(capsys):
    data = result_of(
        capsys,
        "model",
        f"sizes={SMALL}",
        "at_once=[1, 2]",
        "tokens=4",
        "prompt_tokens=5",
        "probe_bytes=65536",
    )
    assert data["results"]["plan"]["groups"] == 16
    assert data["results"]["plan"]["bits_per_weight"] <= 5.0
    for name in ("engine bf16", *MIXED):
        assert data["results"]["memory"][name]["bytes_per_parameter"] > 0
    for at_once in (1, 2):
        found = data["results"][f"{at_once} at once"]
        for arm in ("transformers bf16", "engine bf16", *MIXED):
            assert is_estimate(found[arm]["tokens_per_s"])
        for name in MIXED:
            assert is_estimate(found[f"{name} over engine bf16"])
            assert found[name]["ceiling_tokens_per_s"] > 0
        assert 0 <= found["answers_equal"] <= at_once
    assert len(data["goals"]) == 3 + 2 * 2
