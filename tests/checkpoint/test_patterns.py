"""Patterns find the right linears under the names of several readers."""

import re

import pytest

from ocrquant.checkpoint import LinearNames
from ocrquant.checkpoint.patterns import matches
from ocrquant.errors import ModelError
from ocrquant.formats import Precision

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4
STEM = "model.language_model.layers"

# Modules that vLLM fuses for Qwen3.5, and the ones of the checkpoint that they are made of.
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}


def names(
    block_prefix=STEM, untouched=("model.visual.blocks.0.attn.qkv", "model.visual.merger.linear_fc1"), **more
):
    precisions = {f"{block_prefix}.0.linear_attn.in_proj_{part}": BF16 for part in "ba"}
    for block, (gdn, mlp) in enumerate([(NVFP4, FP8), (FP8, NVFP4), (BF16, NVFP4)] + [(FP8, BF16)] * 9):
        precisions |= {f"{block_prefix}.{block}.linear_attn.in_proj_{part}": gdn for part in ("qkv", "z")}
        precisions |= {f"{block_prefix}.{block}.mlp.{part}_proj": mlp for part in ("gate", "up")}
        precisions[f"{block_prefix}.{block}.mlp.down_proj"] = FP8
    precisions["lm_head"] = FP8
    return LinearNames(precisions=precisions | more, block_prefix=block_prefix, untouched=untouched)


def found_by_a_server(name: str, linears: LinearNames) -> Precision | None:
    """The rule of vLLM: `ignore` first, then targets; a fused module goes by its parts, which must agree."""
    parent, _, leaf = name.rpartition(".")
    parts = [f"{parent}.{part}" for part in FUSED.get(leaf, (leaf,))] if parent else [name]
    ignored = {matches(part, linears.ignored()) for part in parts}
    assert len(ignored) == 1, f"the parts of {name} disagree"
    if ignored == {True}:
        return BF16
    found = {p for p in (FP8, NVFP4) for part in parts if matches(part, linears.targets(p))}
    assert len(found) <= 1
    return found.pop() if found else None


def test_targets_are_few_anchored_and_named():
    linears = names()
    assert linears.targets(NVFP4) == [
        r"re:(?:.*\.)?layers\.0\.linear_attn\.(?:in_proj_qkv|in_proj_z)$",
        r"re:(?:.*\.)?layers\.(?:1|2)\.mlp\.(?:gate_proj|up_proj)$",
    ]
    assert r"re:(?:.*\.)?lm_head$" in linears.targets(FP8)
    ignored = linears.ignored()
    assert r"re:(?:.*\.)?visual\..*" in ignored
    assert "model.visual.blocks.0.attn.qkv" in ignored
    assert f"{STEM}.0.linear_attn.in_proj_b" in ignored
    assert f"{STEM}.2.linear_attn.in_proj_z" in ignored
    every = [*linears.targets(NVFP4), *linears.targets(FP8), *ignored]
    assert "Linear" not in every
    assert all(re.compile(target[3:]) for target in every if target.startswith("re:"))


@pytest.mark.parametrize(
    "prefix", [STEM, "model.layers", "language_model.model.layers", "layers", "a.b.layers"]
)
def test_every_linear_is_found_under_every_prefix(prefix):
    linears = names()
    for name, precision in linears.precisions.items():
        alias = name.replace(STEM, prefix)
        assert matches(alias, linears.ignored()) == (precision is BF16)
        for other in (FP8, NVFP4):
            assert matches(alias, linears.targets(other)) == (precision is other)


def test_block_1_is_not_block_11():
    linears = names()
    assert found_by_a_server(f"{STEM}.1.mlp.gate_proj", linears) is NVFP4
    assert found_by_a_server(f"{STEM}.11.mlp.gate_proj", linears) is BF16
    assert found_by_a_server(f"{STEM}.21.mlp.gate_proj", linears) is None


@pytest.mark.parametrize("prefix", [STEM, "language_model.model.layers"])
def test_fused_modules_of_a_server(prefix):
    linears = names()
    assert found_by_a_server(f"{prefix}.0.linear_attn.in_proj_qkvz", linears) is NVFP4
    assert found_by_a_server(f"{prefix}.2.linear_attn.in_proj_qkvz", linears) is BF16
    assert found_by_a_server(f"{prefix}.0.linear_attn.in_proj_ba", linears) is BF16
    assert found_by_a_server(f"{prefix}.0.mlp.gate_up_proj", linears) is FP8
    assert found_by_a_server("language_model.lm_head", linears) is FP8


@pytest.mark.parametrize("prefix", ["", "model.", "model.model."])
@pytest.mark.parametrize("leaf", ["qkv", "qkv_proj", "proj"])
def test_the_vision_side_is_ignored_in_both_spellings(prefix, leaf):
    assert matches(f"{prefix}visual.blocks.0.attn.{leaf}", names().ignored())


def test_vision_layers_and_drafting_heads_with_the_same_names_stay_out():
    untouched = [
        "visual.vision_model.encoder.layers.0.mlp.gate_proj",
        "mlp_AR.linear_1",
        "mtp.layers.0.mlp.gate_proj",
        "mtp.fc",
    ]
    linears = names("model.layers", untouched=untouched)
    linears.check()
    for name in (*untouched, "model.visual.vision_model.encoder.layers.0.mlp.gate_up_proj", "model.mtp.fc"):
        assert found_by_a_server(name, linears) is BF16
    assert found_by_a_server("model.layers.0.mlp.gate_proj", linears) is FP8
    assert {r"re:(?:.*\.)?visual\..*", r"re:(?:.*\.)?mlp_AR\..*", r"re:(?:.*\.)?mtp\..*"} <= set(
        linears.ignored()
    )


def test_names_that_cannot_be_told_apart_are_refused():
    names().check()
    # Under another prefix this one would read like a layer of the decoder.
    clash = names(untouched=(), **{"other.lm_head": BF16})
    with pytest.raises(ModelError, match="lm_head"):
        clash.check()
