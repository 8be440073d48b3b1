"""What patterns mean, and which of them are refused."""

from __future__ import annotations

import pytest

from ocrquant.adapters import match_patterns, read_model_map, search_space
from ocrquant.errors import PatternError, ShapeError
from ocrquant.formats import Precision

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4
LAYERS = "model.language_model.layers"


@pytest.fixture(scope="module")
def tiny_map(tiny_model_folder):
    return read_model_map(tiny_model_folder)


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("lm_head", 1),
        ("*.mlp.down_proj", 4),  # linears
        ("layers.*.mlp.down", 4),  # groups
        ("layers.3.attention.*", 4),
        ("layers.0.*", 8),  # with the two kept ones
        (r"re:.*layers\.[12]\.linear_attn", 10),
        (r"re:layers\.\d\.gdn\.qkvz$", 6),
        ("*.in_proj_[ab]", 6),
    ],
)
def test_counts(tiny_map, pattern, count):
    (match,) = match_patterns(tiny_map, [pattern], "search.keep_bf16")
    assert len(match.linears) == count
    assert (match.pattern, match.where) == (pattern, "search.keep_bf16")


def test_every_pattern_has_its_own_count(tiny_map):
    matches = match_patterns(tiny_map, ["lm_head", "*.q_proj", "*.[kv]_proj"], "x")
    assert [len(match.linears) for match in matches] == [1, 1, 2]


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("lm_haed", "lm_head"),
        ("*.down_porj", "down_proj"),
        ("re:visual.*", "model.visual."),  # does not match model.visual... from the start
        ("LM_HEAD", "lm_head"),
        ("layers.4.*", "layers."),
        ("re:$", "nearest names: "),
    ],
)
def test_pattern_that_matches_nothing_names_the_nearest(tiny_map, pattern, near):
    with pytest.raises(PatternError) as caught:
        match_patterns(tiny_map, [pattern], "search.keep_bf16")
    assert "matches nothing" in str(caught.value)
    assert near in caught.value.fix
    assert repr(pattern) in str(caught.value)
    assert caught.value.exit_code == 11


@pytest.mark.parametrize("pattern", ["*visual*", "re:.*visual", "*mlp*", "*", "*.linear_fc1"])
def test_pattern_that_touches_the_vision_side(tiny_map, pattern):
    with pytest.raises(PatternError, match="of the vision side"):
        match_patterns(tiny_map, [pattern], "search.force.nvfp4")


@pytest.mark.parametrize("pattern", ["*.q_proj", "*.in_proj_z", "*.up_proj", "*.in_proj_a"])
def test_pattern_that_splits_a_group(tiny_map, pattern):
    with pytest.raises(PatternError, match=r"group layers\.\d.* leave out model"):
        match_patterns(tiny_map, [pattern], "search.keep_bf16")


def test_choices_by_default(tiny_map):
    space = search_space(tiny_map, [NVFP4, FP8])
    assert list(space.choices) == [group.name for group in tiny_map.groups]
    assert set(space.choices.values()) == {(BF16, FP8, NVFP4)}
    assert (space.matches, space.ineligible) == ((), ())
    assert set(search_space(tiny_map, [FP8]).choices.values()) == {(BF16, FP8)}


def test_kept_and_forced_groups_have_one_choice(tiny_map):
    space = search_space(
        tiny_map,
        [FP8, NVFP4],
        ["lm_head", "*.in_proj_[ab]"],
        {FP8: ["*.q_proj", "*.[kv]_proj"], BF16: ["layers.0.mlp.*"]},
    )
    settled = {name: found for name, found in space.choices.items() if len(found) == 1}
    assert settled == {
        "lm_head": (BF16,),
        "layers.3.attention.qkv": (FP8,),
        "layers.0.mlp.gate_up": (BF16,),
        "layers.0.mlp.down": (BF16,),
    }
    assert [(match.where, match.pattern) for match in space.matches] == [
        ("search.keep_bf16", "lm_head"),
        ("search.keep_bf16", "*.in_proj_[ab]"),
        ("search.force.fp8", "*.q_proj"),
        ("search.force.fp8", "*.[kv]_proj"),
        ("search.force.bf16", "layers.0.mlp.*"),
    ]


def test_split_between_two_keys_is_a_split(tiny_map):
    with pytest.raises(PatternError, match="search.keep_bf16: group layers.3.attention.qkv"):
        search_space(tiny_map, [FP8], ["*.q_proj"], {FP8: ["*.[kv]_proj"]})


def test_two_precisions_for_a_group(tiny_map):
    with pytest.raises(PatternError, match=r"search.force.fp8.*lm_head, which search.keep_bf16 makes bf16"):
        search_space(tiny_map, [FP8], ["lm_head"], {FP8: ["lm_head"]})
    assert search_space(tiny_map, [FP8], ["lm_head"], {BF16: ["lm_head"]}).choices["lm_head"] == (BF16,)


def test_kept_linears_cannot_be_forced(tiny_map):
    with pytest.raises(PatternError, match=r"in_proj_b, which stays bf16: decay"):
        search_space(tiny_map, [FP8], force={FP8: ["layers.0.gdn.ba"]})


def test_tied_head_can_be_kept_but_not_forced(changed):
    found = read_model_map(changed(lambda config: config["text_config"].update(tie_word_embeddings=True)))
    assert search_space(found, [FP8], ["lm_head"]).matches[0].linears == ("lm_head",)
    with pytest.raises(PatternError, match="shares the weight"):
        search_space(found, [FP8], force={FP8: ["lm_head"]})


@pytest.fixture
def narrow_map(changed):
    """A model whose down projections are 72 wide."""

    def shrink(tensors):
        for name in list(tensors):
            if ".mlp.gate_proj." in name or ".mlp.up_proj." in name:
                tensors[name] = tensors[name][:72].contiguous()
            elif ".mlp.down_proj." in name:
                tensors[name] = tensors[name][:, :72].contiguous()

    return read_model_map(changed(lambda config: config["text_config"].update(intermediate_size=72), shrink))


def test_widths_decide_what_is_open(narrow_map):
    space = search_space(narrow_map, [FP8, NVFP4])
    assert space.choices["layers.0.mlp.down"] == (BF16, FP8)
    assert space.choices["layers.0.mlp.gate_up"] == (BF16, FP8, NVFP4)
    assert [(x.group, x.precision) for x in space.ineligible] == [
        (f"layers.{i}.mlp.down", NVFP4) for i in range(4)
    ]
    assert space.ineligible[0].reason == f"{LAYERS}.0.mlp.down_proj is 72 wide, no multiple of 16"


def test_forced_precision_must_fit(narrow_map):
    with pytest.raises(ShapeError, match=r"search.force.nvfp4: group layers.0.mlp.down.*72 wide") as caught:
        search_space(narrow_map, [NVFP4], force={NVFP4: ["*.down_proj"]})
    assert caught.value.exit_code == 15


def test_no_group_fits(narrow_map):
    with pytest.raises(ShapeError, match="every other group.*72 wide"):
        search_space(
            narrow_map, [NVFP4], ["lm_head", "layers.*.gdn.*", "layers.*.attention.*", "layers.*.gate_up"]
        )
