import pytest
import torch

from ocrquant.adapters.model import load_model
from ocrquant.artifacts import Rounding, Statistics, tensor_name
from ocrquant.calibrate import collect, collect_statistics, passes, round_groups, rounding
from ocrquant.errors import SplitError, WeightValueError
from ocrquant.formats import Precision, nvfp4
from ocrquant.formats.weights import scale_columns
from ocrquant.recipe.sections import WeightsSection
from ocrquant.rounding import round_to_nearest
from tests.calibrate.making import INPUTS, LAYERS, SECTION, StoppedError, encoded_batches

BOTH = [Precision.FP8, Precision.NVFP4]
WEIGHTS = WeightsSection(num_held_back_pages=4)
NEAREST = WeightsSection(smoothing=False, scale_search=False, gptq=False)


def rounded(run, document, pages, section=WEIGHTS, candidates=BOTH):
    path = run.path / "statistics.json"
    found = (
        Statistics.load(path) if path.exists() else collect_statistics(run, document, pages, SECTION, INPUTS)
    )
    return round_groups(run, document, pages, found, section, candidates, SECTION, INPUTS)


def files(run):
    return [(run.path / name).read_bytes() for name in ("rounding.json", "rounding.safetensors")]


@pytest.fixture(scope="module")
def whole(document, pages, tmp_path_factory):
    """A finished run: artefact, folder."""
    from ocrquant.artifacts import RunFolder

    with RunFolder.open(
        tmp_path_factory.mktemp("whole") / "run", recipe_digest="0" * 64, recipe_text="{}"
    ) as run:
        return rounded(run, document, pages), run


def test_every_group_is_there_in_every_format(document, whole):
    found, run = whole
    expected = {(group.name, precision) for group in document.map.groups for precision in BOTH}
    assert {(group.group, group.precision) for group in found.groups} == expected
    with found.open_weights(run.path) as weights:
        for group in document.map.groups:
            for precision in BOTH:
                entry = found.group(group.name, precision)
                assert entry.linears == [linear.name for linear in group.linears]
                assert 0 < entry.error < 0.1
                stored = [weights.weight(name, precision) for name in entry.linears]
                assert sum(weight.nbytes for weight in stored) == group.weight_bytes(precision)
                for name, weight in zip(entry.linears, stored, strict=True):
                    original = document.linear(name).weight.float()
                    smoothing = weights.smoothing(name)
                    original = original if smoothing is None else original * smoothing
                    ratio = (weight.dequantize() - original).norm() / original.norm()
                    assert ratio < (0.05 if precision is Precision.FP8 else 0.2)
            scales = {float(weights.weight(n, Precision.NVFP4).encode_scale) for n in entry.linears}
            assert len(scales) == 1


def test_steps_are_recorded_and_none_raises_the_error(whole):
    frame = whole[0].to_frame()
    assert set(frame["step"]) >= {"scale_search", "gptq"}
    kept = frame[frame["accepted"]]
    assert (kept["error_after"] <= kept["error_before"]).all()
    assert kept["step"].isin(["scale_search", "gptq"]).sum() > len(frame) / 2


def test_input_scales_come_from_the_statistics(document, whole):
    found, run = whole
    tensors = Statistics.load(run.path).load_tensors(run.path)
    with found.open_weights(run.path) as weights:
        for group in document.map.groups:
            name = group.linears[0].name
            amax = torch.maximum(*(tensors[tensor_name(name, k, "channel_amax")] for k in ("text", "image")))
            smoothing = weights.smoothing(name)
            amax = amax if smoothing is None else amax / smoothing
            scale = nvfp4.exchangeable_scale(nvfp4.global_encode_scale(amax.amax()))
            assert torch.equal(weights.input_encode_scale(group.name), scale)


def test_cache_scales_come_from_the_statistics(whole):
    [seen], [scales] = Statistics.load(whole[1].path).kv, whole[0].kv
    assert scales.name == seen.name == f"{LAYERS}.3.self_attn"
    assert scales.k_decode_scale * 448 == pytest.approx(seen.k_amax)
    assert scales.v_decode_scale * 448 == pytest.approx(seen.v_amax)


def test_artefact_is_current_afterwards(whole):
    found, run = whole
    assert run.is_current(Rounding, INPUTS)
    assert run.load(Rounding) == found
    assert not (run.path / ".partial" / "rounding").exists()
    assert found.num_held_back_pages == 4


# Sites 0 to 11 are four a block; the fifth is in the second block, whose input is still there.
@pytest.mark.parametrize(("at", "blocks"), [(0, 5), (5, 4), (16, 1)])
def test_goes_on_after_a_kill_with_the_same_bytes(
    document, pages, whole, new_run, stopping, monkeypatch, at, blocks
):
    run = new_run()
    stopping(rounding, "round_layer", at)
    with pytest.raises(StoppedError):
        rounded(run, document, pages)
    monkeypatch.undo()
    assert not (run.path / "rounding.json").exists()
    calls, taken = stopping(rounding, "round_layer"), stopping(rounding, "collect")
    encoded = stopping(passes, "encode_batch")
    rounded(run, document, pages)
    assert (len(calls), len(taken), len(encoded)) == (17 - at, blocks, 0)
    assert files(run) == files(whole[1])


def test_a_model_in_parts_gives_the_same_bytes(whole, pages, new_run, tiny_model_folder):
    run = new_run()
    rounded(run, load_model(tiny_model_folder, residency="block"), pages)
    assert files(run) == files(whole[1])


def test_waves_do_not_change_the_bytes(document, pages, whole, new_run, stopping, monkeypatch):
    monkeypatch.setattr(collect, "_WAVE_BYTES", 1_000_000)
    run, calls = new_run(), stopping(rounding, "collect")
    rounded(run, document, pages)
    assert len(calls) > document.map.num_blocks + 1
    assert files(run) == files(whole[1])


def test_nearest_needs_no_activations(document, pages, new_run, stopping):
    run = new_run()
    statistics = collect_statistics(run, document, pages, SECTION, INPUTS)
    calls = stopping(passes, "encode_batch")
    found = round_groups(run, document, pages[:1], statistics, NEAREST, BOTH, SECTION, INPUTS)
    assert calls == []
    assert found.num_held_back_pages == 0
    assert all(group.steps == [] and group.error is None for group in found.groups)
    assert not any(norm.accepted for norm in found.norms)
    with found.open_weights(run.path) as weights:
        for group in document.map.groups[:2]:
            for precision in BOTH:
                linears = [document.linear(linear.name).weight for linear in group.linears]
                expected = round_to_nearest(linears, precision).weights
                for linear, weight in zip(group.linears, expected, strict=True):
                    assert torch.equal(
                        weights.weight(linear.name, precision).dequantize(), weight.dequantize()
                    )


@pytest.mark.parametrize(
    ("switch", "steps"),
    [("smoothing", {"smoothing"}), ("scale_search", {"scale_search"}), ("gptq", {"gptq"})],
)
def test_each_switch_of_the_recipe_tries_its_own_step(document, pages, new_run, loud_norm, switch, steps):
    section = NEAREST.model_copy(update={switch: True, "num_held_back_pages": 4})
    found = rounded(new_run(), document, pages, section, [Precision.NVFP4])
    assert {step.step for group in found.groups for step in group.steps} == steps


@pytest.fixture
def loud_norm(document, changed):
    """A post-attention norm with two channels 30 times as loud, made up for in the weights that read it."""
    loud = torch.tensor([3, 40])
    norm = f"{LAYERS}.1.post_attention_layernorm"
    changed(document.module(norm), lambda w: w.copy_((1 + w).index_fill(0, loud, 30.0) - 1))
    for part in ("gate_proj", "up_proj"):
        changed(
            document.linear(f"{LAYERS}.1.mlp.{part}"), lambda w: w.index_copy_(1, loud, w[:, loud] / 30.0)
        )
    return norm


def test_smoothing_is_folded_and_the_model_stays_what_it_was(tiny_model_folder, pages, new_run, changed):
    document = load_model(tiny_model_folder, dtype=torch.float32)
    loud = torch.tensor([3, 40])
    norm = f"{LAYERS}.0.input_layernorm"
    changed(document.module(norm), lambda w: w.index_fill_(0, loud, 40.0))
    run = new_run()
    found = rounded(run, document, pages, WEIGHTS, [Precision.NVFP4])
    entry = next(item for item in found.norms if item.norm == norm)
    assert entry.accepted
    assert f"{LAYERS}.0.linear_attn.in_proj_a" in entry.linears
    [(_, encoded)] = encoded_batches(document, [pages[:3]])
    with torch.no_grad(), found.open_weights(run.path) as weights:
        before = document.logits(encoded)
        for name in weights.smoothed_norms():
            document.module(name).weight.copy_(weights.norm_weight(name))
        for name in weights.smoothed_linears():
            linear = document.linear(name)
            linear.weight.copy_(scale_columns(linear.weight, weights.smoothing(name)))
        assert float(weights.smoothing(f"{LAYERS}.0.linear_attn.in_proj_b")[3]) > 1.5
        after = document.logits(encoded)
    # float32 rounding of the products in four layers; an error in one column would show in the first digit.
    assert torch.allclose(before, after, rtol=0, atol=1e-4 * float(before.abs().max()))


def test_kept_readers_matter(tiny_model_folder, pages, new_run, changed):
    """Planted: without the fold into a linear that stays in bf16 the logits change."""
    document = load_model(tiny_model_folder, dtype=torch.float32)
    changed(
        document.module(f"{LAYERS}.0.input_layernorm"), lambda w: w.index_fill_(0, torch.tensor([3]), 40.0)
    )
    run = new_run()
    found = rounded(run, document, pages, WEIGHTS, [Precision.NVFP4])
    [(_, encoded)] = encoded_batches(document, [pages[:3]])
    with torch.no_grad(), found.open_weights(run.path) as weights:
        before = document.logits(encoded)
        for name in weights.smoothed_norms():
            document.module(name).weight.copy_(weights.norm_weight(name))
        for name in weights.smoothed_linears():
            if "in_proj_a" not in name:
                linear = document.linear(name)
                linear.weight.copy_(scale_columns(linear.weight, weights.smoothing(name)))
        after = document.logits(encoded)
    assert not torch.allclose(before, after, rtol=0, atol=1e-4 * float(before.abs().max()))


def test_smoothing_lowers_the_error_of_the_loud_layer(document, pages, new_run, loud_norm):
    run = new_run()
    found = rounded(run, document, pages, WEIGHTS, [Precision.NVFP4])
    assert next(item for item in found.norms if item.norm == loud_norm).accepted
    group = found.group("layers.1.mlp.gate_up", Precision.NVFP4)
    assert group.accepted("smoothing")
    step = group.steps[0]
    assert step.step == "smoothing"
    assert step.error_after < 0.95 * step.error_before
    with found.open_weights(run.path) as weights:
        assert loud_norm in weights.smoothed_norms()
        assert weights.norm_weight(loud_norm).dtype == torch.bfloat16


def test_too_few_pages_are_refused(document, pages, new_run):
    with pytest.raises(SplitError):
        rounded(new_run(), document, pages[:4])


def test_broken_weight_is_named(document, pages, new_run, changed):
    run = new_run()
    found = collect_statistics(run, document, pages, SECTION, INPUTS)
    changed(document.linear("lm_head"), lambda w: w.view(-1)[7].fill_(float("nan")))
    with pytest.raises(
        WeightValueError, match=r"lm_head\.weight: expected finite values, got 1 NaN and 0 Inf"
    ):
        round_groups(run, document, pages, found, NEAREST, BOTH, SECTION, INPUTS)
    assert not (run.path / "rounding.json").exists()
