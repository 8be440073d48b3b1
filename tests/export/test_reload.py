"""``transformers`` loads the exported folder and computes what the plan was scored with.

Where the two may differ:

- compressed-tensors decodes NVFP4 weights to bf16 whatever the dtype of the model, 2**-9 of a weight at most;
- it keeps the scales of FP8 channels and of the cache in the dtype of the model;
- in a bf16 model it quantizes activations in bf16 arithmetic, which gives 2 % of the FP4 codes another value;
- it has no floor under the FP8 scale of a token, where the kernels of servers have one at amax 1/512;
- sums are taken in another order.

Servers and the simulation use float32 up to the end. One code that flips changes everything behind it: in a
trained model of 7 M parameters, noise of 2e-7 on the outputs of all linears moves the logits by an eighth of
what quantizing to FP8 does. So logits as they come are compared against the size of the quantization only.
The sharp comparisons are single linears on equal inputs, and float32 logits once the simulation decodes as
compressed-tensors does: they then agree to the order of sums, so nothing else differs.
"""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, CompressedTensorsConfig

from ocrquant.adapters.model import PageInput, load_model, open_model
from ocrquant.checkpoint import StoredCheckpoint
from ocrquant.export import write_checkpoint
from ocrquant.metrics.divergence import kl_from_logits
from ocrquant.simulate import apply_plan, rounded_linears, rounded_smoothing, simulated_output

DEALT = {
    "mixed": ("nvfp4", "fp8", "bf16"),
    "fp8": ("fp8",),
    "nvfp4": ("nvfp4",),
    "fp8 and bf16": ("fp8", "bf16"),
    "nvfp4 and bf16": ("bf16", "nvfp4"),
    "bf16": ("bf16",),
}
PLANS = ("mixed", "fp8", "nvfp4", "fp8 and bf16", "nvfp4 and bf16")

# Largest relative error of a linear's outputs on equal float32 inputs. Measured: 2.3e-7 and 2.1e-3.
MAX_ERROR = {"fp8": 1e-5, "nvfp4": 4e-3}

# Largest KL divergence between the two, over that between bf16 and the plan. Measured: 0.01 to 0.71.
MAX_KL_RATIO = 1.0

# Largest difference of float32 logits at most positions, over their root mean square, when both sides decode
# alike. Measured: 2e-6.
MAX_LOGIT_ERROR = 1e-4


def page(text: str, kind: str) -> PageInput:
    image = Image.new("RGB", (160, 32 if kind == "line" else 64), "white")
    ImageDraw.Draw(image).text((4, 8), text, fill="black")
    return PageInput(image, kind, text, id=text)


PAGES = [page("Invoice No. 4711", "line"), page("Total 1,204.50\ndue 2026-12-01", "block")]


def load(folder, dtype):
    """The exported folder as `transformers` sees it, weights decoded at once."""
    options = {"quantization_config": CompressedTensorsConfig(dequantize=True)}
    config = json.loads((folder / "config.json").read_bytes())
    options = options if "quantization_config" in config else {}
    model, report = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa", output_loading_info=True, **options
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.to(dtype).eval()


class Case:
    """A plan simulated in the source and reloaded from its checkpoint."""

    def __init__(self, rounded, folder, kind, *, kv):
        self.rounded = rounded
        self.folder = folder / "checkpoint"
        groups = rounded.plan(*DEALT[kind])
        self.kv = rounded.rounding.kv if kv else ()
        with rounded.rounding.open_weights(rounded.run) as weights:
            write_checkpoint(
                rounded.source,
                self.folder,
                model_map=rounded.model_map,
                groups=groups,
                weights=weights,
                kv=self.kv,
                max_shard_bytes=100_000,
            )
            self.linears = rounded_linears(rounded.rounding, weights, groups)
            self.smoothing = rounded_smoothing(weights)

    def reloaded(self, dtype, folder=None):
        return open_model(load(folder or self.folder, dtype), self.rounded.model_map, self.rounded.source)

    @torch.no_grad()
    def logits(self, dtype):
        """Of the source, of the plan simulated in it, and of the reloaded checkpoint, at valid positions."""
        source = load_model(self.rounded.source, dtype=dtype)
        encoded = source.encode(PAGES)
        assert encoded.image_mask.any()
        plain = source.logits(encoded)
        with apply_plan(source.model, self.linears, smoothing=self.smoothing, kv=self.kv):
            simulated = source.logits(encoded)
        given = self.reloaded(dtype).logits(encoded)
        return (x[encoded.valid].float() for x in (plain, simulated, given))

    @torch.no_grad()
    def linear_errors(self, folder=None):
        """For each linear, how far the reloaded one is from the simulated one on the same float32 inputs."""
        document = self.reloaded(torch.float32, folder)
        errors = {}

        def compare(name):
            def hook(module, arguments, output):
                (x,) = arguments
                is_above_floor = x.abs().amax(-1) > 1 / 512
                assert is_above_floor.any()  # padding is zero
                expected = simulated_output(x, self.linears[name])[is_above_floor]
                difference = output[is_above_floor] - expected
                errors[name] = (difference.norm() / expected.norm()).item()

            return hook

        for name in self.linears:
            document.linear(name).register_forward_hook(compare(name))
        document.logits(document.encode(PAGES))
        return errors

    def wrong_linears(self, folder=None):
        errors = self.linear_errors(folder)
        assert errors.keys() == self.linears.keys()
        return {n: e for n, e in errors.items() if not e < MAX_ERROR[self.linears[n].precision]}

    def altered(self, out, name, alter):
        """A copy of the checkpoint with one tensor changed."""
        shutil.copytree(self.folder, out)
        index = json.loads((out / "model.safetensors.index.json").read_text())
        shard = out / index["weight_map"][name]
        tensors = load_file(shard)
        tensors[name] = alter(tensors[name]).contiguous()
        save_file(tensors, shard, metadata={"format": "pt"})
        return out


@pytest.fixture(scope="module")
def cases(rounded, tmp_path_factory):
    with_kv = ("mixed", "fp8 and bf16")
    return {k: Case(rounded, tmp_path_factory.mktemp("plan"), k, kv=k in with_kv) for k in PLANS}


@pytest.mark.parametrize("kind", PLANS)
def test_every_linear_agrees_on_equal_inputs(cases, kind):
    assert cases[kind].wrong_linears() == {}


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_agree_within_the_quantization(cases, kind, dtype):
    plain, simulated, given = cases[kind].logits(dtype)
    own = kl_from_logits(plain, simulated).mean()
    assert own > 1e-6
    assert kl_from_logits(simulated, given).mean() < MAX_KL_RATIO * own


@pytest.mark.parametrize("kind", PLANS)
def test_float32_logits_are_equal_where_both_decode_alike(cases, kind, monkeypatch):
    case = cases[kind]
    plain, simulated, _ = case.logits(torch.float32)
    monkeypatch.setattr("ocrquant.formats.fp8.TOKEN_SCALE_FLOOR", 1e-30)
    with StoredCheckpoint(case.folder) as stored:
        decoded = {n: decoded_to_bf16(linear, stored.weight(n)) for n, linear in case.linears.items()}
    monkeypatch.setattr(case, "linears", decoded)
    _, alike, given = case.logits(torch.float32)
    size = given.square().mean().sqrt()
    # The order of sums may flip a code on another processor, which shows in the positions after it.
    assert (alike - given).abs().amax(-1).median() < MAX_LOGIT_ERROR * size
    assert (plain - simulated).abs().amax(-1).median() > 100 * MAX_LOGIT_ERROR * size


def decoded_to_bf16(linear, weight):
    """An NVFP4 linear whose weight went through bf16, as compressed-tensors decodes it."""
    if linear.input_encode_scale is None:
        return linear
    return replace(
        linear,
        operand=weight.dequantize(torch.bfloat16).float(),
        output_scale=linear.input_encode_scale.reciprocal(),
    )


def test_all_other_weights_are_those_of_the_simulation(cases, rounded):
    """Norms, smoothed bf16 linears and the vision side, bit for bit."""
    case = cases["mixed"]
    source = load_model(rounded.source)
    given = dict(case.reloaded(torch.bfloat16).model.named_parameters())
    with apply_plan(source.model, case.linears, smoothing=case.smoothing):
        expected = {n: p.detach().clone() for n, p in source.model.named_parameters()}
    assert len(expected) > 60
    assert [n for n, p in expected.items() if not torch.equal(given[n], p)] == []
    for scales in case.kv:
        assert given[f"{scales.name}.k_scale"].item() == torch.tensor(scales.k_decode_scale).bfloat16().item()


def test_a_quantized_cache_alone_is_loaded(rounded, tmp_path):
    case = Case(rounded, tmp_path, "bf16", kv=True)
    assert case.linears == {}
    plain = load_model(rounded.source, dtype=torch.float32)
    encoded = plain.encode(PAGES)
    given = case.reloaded(torch.float32)
    with torch.no_grad():
        before = plain.logits(encoded)
        with apply_plan(plain.model, {}, kv=case.kv):
            simulated = plain.logits(encoded)
        reloaded = given.logits(encoded)
    valid = encoded.valid
    assert (reloaded - simulated)[valid].abs().max() < 1e-5
    assert (before - simulated)[valid].abs().max() > 1e-3


def swap_nibbles(packed):
    return (packed >> 4) | (packed << 4)


def shift_codes(scales):
    return scales.view(torch.uint8).roll(1).view(scales.dtype)


BLOCK = "model.language_model.layers"
FAULTS = {
    "global scale inverted": (f"{BLOCK}.0.mlp.down_proj.weight_global_scale", torch.reciprocal),
    "nibbles swapped": (f"{BLOCK}.0.mlp.down_proj.weight_packed", swap_nibbles),
    "global scale 1 % off": (f"{BLOCK}.0.linear_attn.in_proj_z.weight_global_scale", lambda t: t * 1.01),
    "input scale 10 % off": (f"{BLOCK}.3.self_attn.q_proj.input_global_scale", lambda t: t * 1.1),
    "block scales shifted": (f"{BLOCK}.1.mlp.up_proj.weight_scale", shift_codes),
    "channel scales shifted": (f"{BLOCK}.1.mlp.down_proj.weight_scale", lambda t: t.roll(1, 0)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(cases, fault, tmp_path):
    case = cases["mixed"]
    name, alter = FAULTS[fault]
    folder = case.altered(tmp_path / "altered", name, alter)
    assert case.wrong_linears(folder).keys() == {name.rpartition(".")[0]}


@pytest.mark.parametrize("fault", ["global scale inverted", "nibbles swapped"])
def test_gross_faults_show_in_the_logits(cases, fault, tmp_path):
    case = cases["mixed"]
    folder = case.altered(tmp_path / "altered", *FAULTS[fault])
    plain, simulated, _ = case.logits(torch.float32)
    document = case.reloaded(torch.float32, folder)
    with torch.no_grad():
        encoded = document.encode(PAGES)
        given = document.logits(encoded)[encoded.valid]
    assert kl_from_logits(simulated, given).mean() > MAX_KL_RATIO * kl_from_logits(plain, simulated).mean()


def test_generation_runs(cases, rounded):
    """With a cache, FP8 scales and all; the model is random, so only the form of the answer is known."""
    (answer,) = cases["mixed"].reloaded(torch.bfloat16).transcribe(PAGES[:1], 4, 1)
    assert 1 <= answer.num_tokens <= 4
