"""Maps by hand on the groups of a small hybrid model."""

from ocrquant.artifacts import GroupRecord
from ocrquant.assign import choose_formats, hand_plans, pareto
from ocrquant.formats import Precision
from ocrquant.recipe.sections import Budget
from tests.assign.builders import sensitivity_of

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4
MIXER = {0: ("gdn.qkvz", "gdn.out"), 1: ("attention.qkv", "attention.o")}


def group(name, kind, block, precisions=(BF16, FP8, NVFP4)):
    return GroupRecord(
        name=name,
        kind=kind,
        block=block,
        linears=[name],
        shapes=[(16, 16)],
        num_weights=256,
        precisions=list(precisions),
    )


def hybrid(num_blocks, extra=()):
    groups = [
        group(f"layers.{i}.{kind}", kind, i)
        for i in range(num_blocks)
        for kind in (*MIXER[i % 2], "mlp.gate_up", "mlp.down")
    ]
    return [*groups, *extra, group("lm_head", "lm_head", None)]


def by_kind(groups, plan, block):
    return {g.kind: plan[g.name] for g in groups if g.block == block}


def test_maps_as_published():
    groups = hybrid(8)
    plans = hand_plans(groups)
    # Without experts the third map is uniform FP8.
    assert list(plans) == [
        "unsloth/Qwen3.6-27B-NVFP4",
        "nvidia/Qwen3.6-27B-NVFP4",
        "RedHatAI/Qwen3.6-35B-A3B-NVFP4",
    ]
    unsloth, nvidia, redhat = plans.values()
    first, last = {"gdn.qkvz": FP8, "gdn.out": FP8}, {"attention.qkv": FP8, "attention.o": FP8}
    small, wide = {"mlp.gate_up": NVFP4, "mlp.down": NVFP4}, {"mlp.gate_up": FP8, "mlp.down": FP8}
    assert by_kind(groups, unsloth, 0) == first | small
    assert by_kind(groups, unsloth, 7) == last | wide  # blocks 56 to 63 of 64: the last of 8
    assert by_kind(groups, unsloth, 6) == first | small
    assert by_kind(groups, nvidia, 7) == last | small
    assert (unsloth["lm_head"], nvidia["lm_head"], redhat["lm_head"]) == (FP8, NVFP4, BF16)
    assert by_kind(groups, redhat, 0) == {"gdn.qkvz": BF16, "gdn.out": BF16} | small
    assert by_kind(groups, redhat, 1) == {"attention.qkv": NVFP4, "attention.o": NVFP4} | small


def test_last_blocks_of_64():
    groups = hybrid(64)
    plan = hand_plans(groups)["unsloth/Qwen3.6-27B-NVFP4"]
    assert [i for i in range(64) if plan[f"layers.{i}.mlp.down"] is FP8] == list(range(56, 64))


def test_experts():
    groups = hybrid(2, [group("layers.0.moe.experts", "moe.experts", 0)])
    plan = hand_plans(groups)["nvidia/Qwen3.5-397B-A17B-NVFP4-V2"]
    assert [name for name, precision in plan.items() if precision is NVFP4] == ["layers.0.moe.experts"]


def test_closed_formats_go_up_and_one_format_is_no_map():
    groups = [
        group("layers.0.mlp.down", "mlp.down", 0, [BF16, FP8]),
        group("layers.0.gdn.out", "gdn.out", 0),
        group("layers.1.mlp.down", "mlp.down", 1),
    ]
    assert hand_plans(groups)["unsloth/Qwen3.6-27B-NVFP4"] == {
        "layers.0.mlp.down": FP8,
        "layers.0.gdn.out": FP8,
        "layers.1.mlp.down": NVFP4,
    }
    assert hand_plans(groups[2:]) == {}


def test_front_has_them_and_none_is_better_than_the_plan_at_its_size():
    names = {g.name: g for g in hybrid(8)}
    scores = {name: {FP8: 1e-4 * (i + 1), NVFP4: 1e-3 * (i % 5 + 1)} for i, name in enumerate(names)}
    sensitivity = sensitivity_of(scores).model_copy(
        update={
            "groups": [
                g.model_copy(update={"shapes": [(64, 64)], "num_weights": 4096}) for g in names.values()
            ]
        }
    )
    plan = choose_formats(sensitivity, Budget(bits_per_weight=6), {})
    points = pareto(sensitivity, plan, {}).hand
    assert [point.name for point in points] == list(hand_plans(sensitivity.groups))
    for point in points:
        same = choose_formats(sensitivity, Budget(weight_bytes=point.weight_bytes), {})
        assert same.predicted_loss <= point.predicted_loss
        assert sum(point.num_groups.values()) == len(names)
