"""What vLLM takes its own layers for, where that is not what the names say."""

from __future__ import annotations

import pytest

from ocrquant.verify.declaration import Declaration, TargetRule
from ocrquant.verify.servers import SERVED_MODELS, served_rule

MLP = "model.language_model.layers.0.mlp"


def declared(method, targets):
    rule = TargetRule(label="group_0", targets=targets, scheme=None)
    return Declaration(method=method, rules=(rule,), ignore=(), catches_all=False, cache=None)


@pytest.mark.parametrize(
    ("architecture", "is_found"),
    [("Qwen3VLForConditionalGeneration", True), ("Qwen3VLMoeForConditionalGeneration", False)],
)
def test_dense_layers_among_sparse_ones_are_not_matched(architecture, is_found):
    """vLLM 0.32 stops there with "MergedColumnParallelLinear has no attribute 'data'"."""
    model = SERVED_MODELS[architecture]
    (module,) = model.modules([f"{MLP}.gate_proj", f"{MLP}.up_proj"], is_vision=False)
    assert module.name == "language_model.model.layers.0.mlp.gate_up_proj"
    by_patterns = declared("compressed-tensors", (r"re:.*\.mlp\.(?:gate_proj|up_proj)$",))
    assert (served_rule(by_patterns, module, model) is not None) is is_found


def test_experts_that_are_not_listed_follow_what_is_beside_them():
    model = SERVED_MODELS["Qwen3_5MoeForConditionalGeneration"]
    (module,) = model.modules([f"{MLP}.experts.0.down_proj"], is_vision=False)
    for target in (f"{MLP}.shared_expert.down_proj", f"{MLP}.experts.1.down_proj"):
        assert served_rule(declared("modelopt", (target,)), module, model) is not None
    other = MLP.replace("0", "1")
    assert served_rule(declared("modelopt", (f"{other}.shared_expert.down_proj",)), module, model) is None
