"""The comparison itself, without another program: what agrees passes, what is damaged does not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ocrquant.adapters import load_model
from ocrquant.checkpoint import StoredCheckpoint
from ocrquant.formats import fp8
from ocrquant.formats.weights import FP8Weight
from ocrquant.simulate import SimulatedLinear, apply_plan, simulated_output
from tests.consumers.comparing import (
    EXPERTS_ERROR,
    Comparison,
    answer_in_words,
    compare,
    experts_output,
    faults,
    linear_errors,
    mean_kl,
    parts_of,
    place,
)
from tests.consumers.corrupting import CORRUPTIONS, corrupted, victim
from tests.consumers.making import FORMATS, Prompt, deal, picture, simulated
from tests.export.conftest import round_model
from tests.export.test_formats import write

MIXED = ("nvfp4", "fp8", "bf16")


@pytest.fixture(scope="module")
def rounded(tiny_model_folder, tmp_path_factory):
    return round_model(tiny_model_folder, tmp_path_factory.mktemp("run"), smoothing=False)


@pytest.fixture(scope="module")
def folders(rounded, tmp_path_factory):
    root = tmp_path_factory.mktemp("folders")
    return {kind: write(rounded, root / kind, kind, *MIXED, kv=False) for kind in FORMATS}


@pytest.fixture(scope="module")
def document(tiny_model_folder):
    return load_model(tiny_model_folder)


def stored_linears(folder):
    """A checkpoint as a reader of its own sees it."""
    with StoredCheckpoint(folder) as stored:
        return {
            name: SimulatedLinear.of(stored.weight(name), stored.input_encode_scale(name))
            for name in stored.linears
        }


def read_back(document, linears):
    """What a reader that computes as the simulation does would write down."""
    seen = {}
    with apply_plan(document.model, linears):
        handles = []
        for name in linears:
            module = document.module(name)

            def hook(module, arguments, output, name=name):
                seen.setdefault(f"image.linear.{name}.x", arguments[0][0].clone())
                seen.setdefault(f"image.linear.{name}.y", output[0].clone())

            handles.append(module.register_forward_hook(hook))
        found = simulated(document, {"image": Prompt(document, picture())})
        for handle in handles:
            handle.remove()
    return found | seen


@pytest.fixture(scope="module")
def plain(document):
    return simulated(document, {"image": Prompt(document, picture())})


@pytest.fixture(scope="module")
def expected(document, folders):
    return read_back(document, stored_linears(folders["compressed-tensors"]))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_sound_checkpoint_has_no_faults(document, folders, expected, plain, kind):
    linears = stored_linears(folders[kind])
    result = compare(read_back(document, linears), expected, plain, "image", linears)
    assert result.own_kl > 1e-7
    assert faults(result, "mixed") == []


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_planted_faults_are_seen(document, folders, expected, plain, rounded, kind, corruption, tmp_path):
    linear = victim(rounded.model_map, deal(rounded.model_map, MIXED))
    folder = corrupted(folders[kind], tmp_path / "out", kind, linear, corruption)
    read = read_back(document, stored_linears(folder))
    result = compare(read, expected, plain, "image", stored_linears(folders[kind]))
    assert "linear" in faults(result, "mixed")
    assert result.worst_linear[0] == place(linear)


def test_a_linear_that_only_one_side_quantizes_is_seen(document, folders, expected, plain):
    linears = stored_linears(folders["modelopt"])
    some = dict(list(linears.items())[1:])
    for reads, ours in ((some, linears), (linears, some)):
        result = compare(read_back(document, reads), expected, plain, "image", ours)
        assert result.worst_linear[1] == math.inf


def test_fused_modules_are_taken_apart(folders):
    linears = stored_linears(folders["modelopt"])
    names = ["layers.0.linear_attn.in_proj_qkv", "layers.0.linear_attn.in_proj_z"]
    ours = {place(name): linear for name, linear in linears.items()}
    x = torch.randn(5, ours[names[0]].shape[1], generator=torch.Generator().manual_seed(0))
    y = torch.cat([simulated_output(x, ours[name]) for name in names], dim=1)
    vllm = "language_model.model.layers.0.linear_attn.in_proj_qkvz"
    read = {f"text.linear.{vllm}.x": x, f"text.linear.{vllm}.y": y}
    errors = linear_errors(read, "text", {name: ours[name] for name in names})
    assert errors == dict.fromkeys(names, 0.0)
    swapped = {**read, f"text.linear.{vllm}.y": y.roll(1, 1)}
    assert min(linear_errors(swapped, "text", {name: ours[name] for name in names}).values()) > 0.5


PREFIX = "layers.0.mlp.experts"


def three_experts():
    """FP8 experts [6 inner, 32 hidden] by place, a batch of four tokens, and where each is sent."""
    generator = torch.Generator().manual_seed(0)

    def linear(rows, columns):
        weight = torch.randn(rows, columns, generator=generator)
        scale = fp8.weight_decode_scale(weight, "channel")
        return SimulatedLinear.of(FP8Weight(codes=fp8.encode(weight, scale), decode_scale=scale))

    shapes = {"gate_proj": (16, 32), "up_proj": (16, 32), "down_proj": (32, 16)}
    ours = {f"{PREFIX}.{i}.{part}": linear(*shape) for i in range(3) for part, shape in shapes.items()}
    x = torch.randn(4, 32, generator=generator).bfloat16()
    ids = torch.tensor([[0, 2], [2, 0], [1, 2], [0, 1]])
    return ours, x, torch.rand(4, 2, generator=generator), ids


def test_experts_by_hand():
    ours, x, weights, ids = three_experts()
    found = experts_output(x, weights, ids, ours, PREFIX)
    for token in range(4):
        wanted = torch.zeros(32)
        for expert, weight in zip(ids[token].tolist(), weights[token], strict=True):
            gate, up, down = (ours[f"{PREFIX}.{expert}.{part}_proj"] for part in ("gate", "up", "down"))
            row = x[token : token + 1].float()
            inner = torch.nn.functional.silu(simulated_output(row, gate)) * simulated_output(row, up)
            wanted += weight * simulated_output(inner, down)[0]
        assert (found[token] - wanted).norm() / wanted.norm() < EXPERTS_ERROR


def test_experts_that_differ_are_seen():
    ours, x, weights, ids = three_experts()
    module = f"text.experts.language_model.model.{PREFIX}.routed_experts"
    y = experts_output(x, weights, ids, ours, PREFIX)
    read = {f"{module}.x": x, f"{module}.y": y, f"{module}.weights": weights, f"{module}.ids": ids}
    assert linear_errors(read, "text", ours) == dict.fromkeys(ours, 0.0)
    exchanged = {**read, f"{module}.ids": ids.flip(1)}
    assert min(linear_errors(exchanged, "text", ours).values()) > EXPERTS_ERROR
    assert linear_errors({}, "text", ours) == dict.fromkeys(ours, math.inf)
    assert linear_errors(read, "text", {}) == {PREFIX: math.inf}


def test_names_of_other_programs():
    assert place("language_model.model.layers.3.self_attn.qkv_proj") == "layers.3.self_attn.qkv_proj"
    assert place("visual.vision_model.encoder.layers.0.mlp.fc1").startswith("visual")
    assert place("language_model.lm_head") == place("lm_head") == "lm_head"
    shared = "model.language_model.layers.1.mlp.experts._shared_experts._layer.shared_experts.down_proj"
    assert place(shared) == "layers.1.mlp.shared_experts.down_proj"
    known = ["layers.0.mlp.gate_up_proj"]
    assert parts_of("model.layers.0.mlp.gate_up_proj", known) == ("layers.0.mlp.gate_up_proj",)
    assert parts_of("model.layers.0.mlp.gate_up_proj", []) == (
        "layers.0.mlp.gate_proj",
        "layers.0.mlp.up_proj",
    )


def test_divergence_by_hand():
    p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    wanted = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert mean_kl(p, q) == pytest.approx(wanted, rel=1e-6)


def test_answers_in_words():
    logprobs = torch.tensor([[-0.1, -3.0], [-0.69, -0.70]])
    ours = torch.tensor([0, 0])
    assert answer_in_words(ours, torch.tensor([0, 0]), logprobs, 0.1) == "equal"
    assert answer_in_words(ours, torch.tensor([0, 1]), logprobs, 0.1) == "tie at 1"
    assert answer_in_words(ours, torch.tensor([1, 0]), logprobs, 0.1) == "other at 0"
    assert answer_in_words(ours, torch.tensor([0]), logprobs, 0.1) == "other at 1"


SOUND = Comparison(
    kl=1e-6,
    own_kl=1e-4,
    max_difference=0.01,
    mean_difference=0.001,
    same_ids=True,
    answer="equal",
    worst_linear=("layers.0.mlp.down_proj", 0.002),
)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"kl": 6e-5}, "KL"),
        ({"kl": float("nan")}, "KL"),
        ({"mean_difference": 0.2}, "mean|dlogp|"),
        ({"same_ids": False}, "tokens"),
        ({"answer": "other at 3"}, "answer"),
        ({"worst_linear": ("lm_head", 0.04)}, "linear"),
        ({"worst_linear": ("layers.0.mlp.experts.0.up_proj", 0.1)}, "linear"),
        ({"worst_linear": ("lm_head", float("nan"))}, "linear"),
    ],
)
def test_every_limit_is_held(change, fault):
    assert faults(SOUND, "mixed") == []
    assert faults(replace(SOUND, **change), "mixed") == [fault]
