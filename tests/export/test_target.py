"""Each rule refuses what breaks it, names group and fix, and lets through what the server can read."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from ocrquant.adapters import LinearInfo, read_model_map
from ocrquant.artifacts import Assignment
from ocrquant.errors import RecipeError, TargetError
from ocrquant.export import Target, check_target, export_checkpoint, export_choices
from ocrquant.export.names import planned_precisions
from ocrquant.export.target import FUSED, RULES, SERVERS
from ocrquant.formats import Precision
from ocrquant.recipe.sections import ExportSection

BF16, FP8, NVFP4 = Precision.BF16, Precision.FP8, Precision.NVFP4


@pytest.fixture(scope="module")
def model_map(tiny_model_folder):
    return read_model_map(tiny_model_folder)


def plan(model_map, *precisions, **groups):
    dealt = {g.name: precisions[i % len(precisions)] for i, g in enumerate(model_map.groups)}
    return planned_precisions(model_map, dealt | groups)


def ask(model_map, target, file_format, choices, has_kv=False):
    check_target(Target.parse(target), file_format, model_map, choices, has_kv=has_kv)


GOOD = [
    ("vllm", "compressed-tensors", (FP8, NVFP4, BF16)),
    ("vllm", "modelopt", (FP8, NVFP4, BF16)),
    ("vllm==0.30.0", "modelopt", (FP8, NVFP4, BF16)),
    ("vllm==0.29.0", "modelopt", (FP8, BF16)),
    ("vllm==0.29.0", "compressed-tensors", (FP8, NVFP4)),
    ("sglang", "compressed-tensors", (FP8,)),
    ("sglang", "compressed-tensors", (NVFP4, BF16)),
    ("sglang", "modelopt", (NVFP4, BF16)),
    ("tensorrt-llm", "modelopt", (FP8, NVFP4, BF16)),
]
BAD = [
    ("vllm==0.29.0", "modelopt", (FP8, NVFP4), r"FP8 beside NVFP4: .* of group .*vLLM 0.30 or later"),
    ("vllm==0.9", "modelopt", (FP8, NVFP4), "FP8 beside NVFP4"),
    ("sglang", "modelopt", (FP8,), "no FP8 by channel .*set export.format to compressed-tensors"),
    ("sglang==0.5.23", "compressed-tensors", (FP8, NVFP4), "FP8 or NVFP4, not both"),
    ("tensorrt-llm", "compressed-tensors", (FP8,), "expected ModelOpt's format"),
]


def head_in(model_map, precision):
    """The tiny model's head is searched or shared; only rules about the head care."""
    names = [group.name for group in model_map.groups if group.block is None]
    return dict.fromkeys(names, precision)


@pytest.mark.parametrize(("target", "file_format", "precisions"), GOOD)
def test_what_a_server_reads_passes(model_map, target, file_format, precisions):
    ask(model_map, target, file_format, plan(model_map, *precisions, **head_in(model_map, BF16)), has_kv=True)


@pytest.mark.parametrize(("target", "file_format", "precisions", "message"), BAD)
def test_what_it_cannot_read_is_refused(model_map, target, file_format, precisions, message):
    with pytest.raises(TargetError, match=message) as caught:
        ask(model_map, target, file_format, plan(model_map, *precisions, **head_in(model_map, BF16)))
    assert f"target {target} in {file_format}" in str(caught.value)


def test_every_rule_names_a_source_and_a_fix():
    assert all(len(rule.source) > 20 and rule.fix for rule in RULES)
    assert {server for rule in RULES for server in rule.servers} == set(SERVERS)


@pytest.mark.parametrize("members", FUSED)
def test_linears_that_servers_fuse_share_a_precision(model_map, members):
    """Also where a structure does not say that they belong together, as a new family's might not."""
    choices = plan(model_map, FP8)
    name = next(name for name in choices if name.endswith(members[-1]))
    torn = {**choices, name: BF16 if choices[name] is FP8 else FP8}
    for server, file_format in SERVERS.items():
        with pytest.raises(TargetError, match=f"one precision and one NVFP4 global scale.*{name}"):
            ask(model_map, server, file_format, torn)


def test_linears_that_servers_fuse_share_a_global_scale(model_map):
    """Two groups have two scales, though their precision is the same."""
    whole = next(group for group in model_map.groups if group.kind == "gdn.qkvz")
    halves = [
        replace(whole, name=f"{whole.name}{number}", linears=(linear,))
        for number, linear in enumerate(whole.linears)
    ]
    groups = tuple(group for group in model_map.groups if group is not whole) + tuple(halves)
    torn = replace(model_map, groups=groups)
    ask(torn, "vllm", "compressed-tensors", plan(torn, FP8))
    with pytest.raises(TargetError, match=f"{whole.name}0 nvfp4.*{whole.name}1 nvfp4"):
        ask(torn, "vllm", "compressed-tensors", plan(torn, NVFP4))


def test_a_search_that_may_end_badly_is_refused(model_map):
    """`check` knows what a group may become, not what it will."""
    names = plan(model_map, BF16)
    both = {name: (FP8, NVFP4, BF16) for name in names}
    with pytest.raises(TargetError, match="not both"):
        ask(model_map, "sglang", "compressed-tensors", both)
    ask(model_map, "vllm", "compressed-tensors", both)


def with_experts(model_map):
    """The MLP of the first layer as two experts."""
    groups = []
    for group in model_map.groups:
        linears = group.linears
        if group.block == 0 and group.kind.startswith("mlp"):
            kind = group.kind.replace("mlp", "experts")
            linears = tuple(
                LinearInfo(
                    linear.name.replace("mlp", f"mlp.experts.{number}"),
                    linear.in_features,
                    linear.out_features,
                    False,
                    kind,
                    0,
                )
                for number in range(2)
                for linear in linears
            )
            group = replace(group, kind=kind, linears=linears)
        groups.append(group)
    return replace(model_map, groups=tuple(groups))


def test_experts(model_map):
    sparse = with_experts(model_map)
    names = [group.name for group in sparse.groups if group.kind.startswith("experts")]
    assert len(names) == 2
    for server in ("vllm", "tensorrt-llm"):
        with pytest.raises(TargetError, match=r"FP8 experts: .*experts\.0"):
            ask(sparse, server, "modelopt", plan(sparse, FP8))
        ask(sparse, server, "modelopt", plan(sparse, FP8, **dict.fromkeys(names, NVFP4)))
    ask(sparse, "vllm", "compressed-tensors", plan(sparse, FP8))
    with pytest.raises(TargetError, match="one precision for all experts of a layer"):
        ask(sparse, "vllm", "compressed-tensors", plan(sparse, NVFP4, **{names[0]: FP8}))


def test_a_quantized_head_and_a_cache_alone(model_map):
    head = LinearInfo("lm_head", 64, 96, False, "lm_head", None)
    group = replace(model_map.groups[0], name="lm_head", kind="lm_head", block=None, linears=(head,))
    kept = {name: reason for name, reason in model_map.kept.items() if name != "lm_head"}
    others = tuple(g for g in model_map.groups if g.name != "lm_head")
    untied = replace(model_map, groups=(*others, group), kept=kept)
    with pytest.raises(TargetError, match="a quantized head: lm_head of group lm_head"):
        ask(untied, "sglang", "compressed-tensors", plan(untied, NVFP4))
    ask(untied, "sglang", "compressed-tensors", plan(untied, NVFP4, lm_head=BF16))
    ask(untied, "vllm", "modelopt", plan(untied, NVFP4))
    with pytest.raises(TargetError, match="an FP8 cache and no quantized linear"):
        ask(model_map, "vllm", "modelopt", plan(model_map, BF16), has_kv=True)


def test_names_of_targets():
    assert Target.parse("vllm") == Target(server="vllm", version=None)
    assert Target.parse("tensorrt-llm==1.2") == Target(server="tensorrt-llm", version=(1, 2))
    assert str(Target.parse("sglang==0.5.23")) == "sglang==0.5.23"
    for wrong in ("vllm=0.30", "tgi", "vllm==", "vllm==main", "vllm==0..1"):
        with pytest.raises(RecipeError, match="export.target"):
            Target.parse(wrong)
        with pytest.raises(ValidationError):
            ExportSection(target=wrong)
    for server in SERVERS:
        assert ExportSection(target=f"{server}==1.2.3").target == f"{server}==1.2.3"


def test_a_target_chooses_its_format_unless_the_recipe_does():
    assert export_choices(ExportSection()) == ("compressed-tensors", None)
    for server, name in SERVERS.items():
        assert export_choices(ExportSection(target=server)) == (name, Target(server=server))
        assert export_choices(ExportSection(target=server, format="modelopt"))[0] == "modelopt"


def test_the_stage_refuses_before_it_writes(rounded, tmp_path):
    assignment = Assignment(
        inputs={},
        budget={"bits_per_weight": 6.0},
        score="kl",
        predicted_loss=0.0,
        bits_per_weight=6.0,
        weight_bytes=1,
        groups=rounded.plan("fp8", "nvfp4"),
    )
    with pytest.raises(TargetError, match="not both"):
        export_checkpoint(
            tmp_path,
            ExportSection(target="sglang"),
            source=rounded.source,
            model_map=rounded.model_map,
            assignment=assignment,
            rounding=rounded.rounding,
            inputs={},
        )
    assert list(tmp_path.iterdir()) == []
