"""Every kind of finding: a sound checkpoint has none, and each planted fault is found by its code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import torch
from safetensors.torch import save_file

from ocrquant.errors import ArtifactError, ModelError, VerificationError
from ocrquant.verify import CODES, Findings, Severity, inspect_checkpoint, verify_checkpoint
from tests.verify.conftest import DEALT, Planted, assignment

BLOCK = "model.language_model.layers"
UP = f"{BLOCK}.0.mlp.up_proj"
ATTENTION = f"{BLOCK}.3.self_attn"


@pytest.mark.parametrize("file_format", ["compressed-tensors", "modelopt"])
@pytest.mark.parametrize("plan", DEALT)
def test_what_this_package_writes_is_sound(written, check, plan, file_format):
    findings = check(written(plan, file_format), source=True, plan=plan)
    assert findings.items == []
    assert "relative error of" in " ".join(findings.facts)
    findings.raise_for_errors()


def test_shards_are_sound(written, check):
    assert check(written(shard=60_000), source=True).items == []


def part(tensors, *suffixes):
    """The first tensor whose name ends so."""
    return next(name for suffix in suffixes for name in sorted(tensors) if name.endswith(suffix))


def put(suffix: str, value: float) -> Callable[[dict], None]:
    def change(tensors):
        tensors[part(tensors, suffix)].view(-1)[0] = value

    return change


def drop(*suffixes: str) -> Callable[[dict], None]:
    return lambda tensors: tensors.pop(part(tensors, *suffixes))


def reshape(suffix: str, *shape: int) -> Callable[[dict], None]:
    def change(tensors):
        name = part(tensors, suffix)
        tensors[name] = tensors[name].reshape(-1)[:1].expand(shape).clone()

    return change


def retype(suffix: str, dtype: torch.dtype) -> Callable[[dict], None]:
    def change(tensors):
        name = part(tensors, suffix)
        tensors[name] = tensors[name].to(dtype)

    return change


def add(name: str, *shape: int) -> Callable[[dict], None]:
    return lambda tensors: tensors.update({name: torch.ones(shape)})


def scale_one_shard(tensors):
    """A global scale of gate alone, as a program writes it that rounds every linear by itself."""
    tensors[part(tensors, "gate_proj.weight_global_scale")] *= 1.12


def nan_byte(suffix: str) -> Callable[[dict], None]:
    """NaN in E4M3, as a cast writes it that was not clamped."""

    def change(tensors):
        name = next(n for n, t in sorted(tensors.items()) if n.endswith(suffix) and t.dtype.itemsize == 1)
        raw = tensors[name].view(torch.uint8)
        raw.view(-1)[0] = 0x7F
        tensors[name] = raw.view(torch.float8_e4m3fn)

    return change


TENSOR_FAULTS = {
    "a weight's scale is missing": ("mixed", drop("_proj.weight_scale"), "tensor-missing"),
    "an input scale is missing": ("nvfp4", drop("input_global_scale"), "tensor-missing"),
    "a tensor of another scheme": ("mixed", add(f"{UP}.weight_g_idx", 64), "tensor-undeclared"),
    "a zero point": ("mixed", add(f"{UP}.weight_zero_point", 128, 8), "tensor-undeclared"),
    "a fused layer's three scales": ("nvfp4", reshape("weight_global_scale", 3), "tensor-shape"),
    "block scales of half the blocks": ("nvfp4", reshape("mlp.up_proj.weight_scale", 128, 2), "tensor-shape"),
    "scales in another dtype": ("nvfp4", retype("weight_global_scale", torch.float16), "tensor-dtype"),
    "NaN in a block scale": ("nvfp4", nan_byte("weight_scale"), "scale-not-finite"),
    "an infinite input scale": ("nvfp4", put("input_global_scale", float("inf")), "scale-not-finite"),
    "a scale of zero": ("fp8", put("_proj.weight_scale", 0.0), "scale-not-positive"),
    "a negative scale": ("fp8", put("_proj.weight_scale", -1.0), "scale-not-positive"),
    "global scales of gate and up differ": ("nvfp4", scale_one_shard, "global-scales-differ"),
    "input scales of q and k differ": (
        "nvfp4",
        put("q_proj.input_global_scale", 7.0),
        "tensor-scales-differ",
    ),
    "a cache scale of NaN": ("mixed", put("self_attn.k_scale", float("nan")), "scale-not-finite"),
    "cache scales on the vision side": (
        "mixed",
        add("model.visual.blocks.0.attn.k_scale", 1),
        "cache-scale-misplaced",
    ),
    "cache scales on a layer without a cache": (
        "mixed",
        add(f"{BLOCK}.0.linear_attn.k_scale", 1),
        "cache-scale-misplaced",
    ),
    "cache scales by ModelOpt's names": (
        "mixed",
        add(f"{ATTENTION}.k_proj.k_scale", 1),
        "cache-scale-misplaced",
    ),
    "one cache scale of two": ("mixed", drop("self_attn.v_scale"), "cache-scales-incomplete"),
}


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_a_fault_in_a_tensor_is_found(copy, check, fault):
    plan, change, code = TENSOR_FAULTS[fault]
    planted: Planted = copy(plan)
    planted.tensors(change)
    assert code in check(planted.folder).codes()


def test_a_width_that_no_block_divides_is_found(copy, check):
    planted: Planted = copy("nvfp4")
    planted.tensors(lambda tensors: tensors.update({f"{UP}.weight_packed": torch.ones(128, 36).byte()}))
    assert "width-unsuited" in check(planted.folder).codes()


def groups(config) -> dict:
    return config["quantization_config"]["config_groups"]


def swap_targets(config):
    first, second = groups(config).values()
    first["targets"], second["targets"] = second["targets"], first["targets"]


def catch_all(*ignore: str) -> Callable[[dict], None]:
    def change(config):
        groups(config)["group_0"]["targets"] = ["Linear"]
        config["quantization_config"]["ignore"] = list(ignore)

    return change


def ignore_one_shard(config):
    """b is named as a target, a is ignored: the server runs both as one product."""
    config["quantization_config"]["ignore"] = [
        name for name in config["quantization_config"]["ignore"] if "in_proj" not in name
    ] + ["re:.*in_proj_a$"]


CONFIG_FAULTS = {
    "no configuration at all": (
        "mixed",
        lambda config: config.pop("quantization_config"),
        {"quantization-config-missing"},
    ),
    "layers without a rule": (
        "fp8",
        lambda config: groups(config)["group_0"].update(targets=[UP]),
        {"stored-not-declared", "name-not-matched"},
    ),
    "names of wrappers": (
        "fp8",
        lambda config: groups(config)["group_0"].update(targets=["re:.*_proj[.]linear$"]),
        {"stored-not-declared", "target-matches-nothing"},
    ),
    "schemes exchanged": ("mixed", swap_targets, {"tensor-missing", "tensor-undeclared"}),
    "a rule twice": (
        "mixed",
        lambda config: groups(config)["group_1"]["targets"].extend(groups(config)["group_0"]["targets"]),
        {"declared-twice"},
    ),
    "every linear is meant": (
        "fp8",
        catch_all("lm_head"),
        {"declared-not-stored", "name-matched-wrongly", "vision-name-not-covered", "draft-name-not-covered"},
    ),
    "the vision side by a name of another reader": (
        "fp8",
        catch_all("re:visual.*", "re:mtp.*", "re:.*in_proj_[ab]", "lm_head"),
        {"target-matches-nothing", "declared-not-stored", "vision-name-not-covered"},
    ),
    "a class beside other targets": (
        "mixed",
        lambda config: groups(config)["group_0"]["targets"].append("Linear"),
        {"match-depends-on-version"},
    ),
    "half of a fused layer ignored": ("nvfp4", ignore_one_shard, {"fused-shards-disagree"}),
    "a cache in E5M2": (
        "mixed",
        lambda config: config["quantization_config"]["kv_cache_scheme"].update(type="float8_e5m2"),
        {"cache-not-e4m3"},
    ),
    "a cache by token": (
        "mixed",
        lambda config: config["quantization_config"]["kv_cache_scheme"].update(strategy="token"),
        {"cache-scheme-unknown"},
    ),
    "a cache whose strategy nobody knows": (
        "mixed",
        lambda config: config["quantization_config"]["kv_cache_scheme"].update(strategy="Tensor"),
        {"cache-scheme-unknown"},
    ),
    "a cache with zero points": (
        "mixed",
        lambda config: config["quantization_config"]["kv_cache_scheme"].update(symmetric=False),
        {"cache-scheme-unknown"},
    ),
    "sparse weights": (
        "mixed",
        lambda config: config["quantization_config"].update(
            sparsity_config={"format": "sparse-24-bitmask", "targets": []}
        ),
        {"sparsity-declared"},
    ),
    "targets of sparsity": (
        "mixed",
        lambda config: config["quantization_config"].update(
            sparsity_config={"format": "dense", "targets": ["Linear"]}
        ),
        {"sparsity-declared"},
    ),
    "inputs in a way that nobody knows": (
        "mixed",
        lambda config: groups(config)["group_0"]["input_activations"].update(strategy="channel"),
        {"scheme-unknown"},
    ),
    "cache scales without a scheme": (
        "mixed",
        lambda config: config["quantization_config"].update(kv_cache_scheme=None),
        {"cache-not-declared"},
    ),
    "a scheme that nobody knows": (
        "mixed",
        lambda config: groups(config)["group_0"]["weights"].update(num_bits=3),
        {"scheme-unknown"},
    ),
    "flags of the head differ": (
        "mixed",
        lambda config: config.update(
            tie_word_embeddings=not config["text_config"].setdefault("tie_word_embeddings", False)
        ),
        {"tied-flags-differ"},
    ),
    "positions that are not said to be interleaved": (
        "mixed",
        lambda config: config["text_config"]["rope_parameters"].pop("mrope_interleaved"),
        {"positions-not-interleaved"},
    ),
    "an architecture that vLLM names in ways unknown here": (
        "mixed",
        lambda config: config.update(architectures=["SomeForConditionalGeneration"]),
        {"server-not-modelled"},
    ),
}


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_a_fault_in_the_configuration_is_found(copy, check, fault):
    plan, change, codes = CONFIG_FAULTS[fault]
    planted: Planted = copy(plan)
    planted.json("config.json", change)
    assert codes <= check(planted.folder).codes()


def test_a_cache_may_have_a_scale_a_head(copy, check):
    planted: Planted = copy()

    def two_heads(tensors):
        scales = [name for name in tensors if name.endswith((".k_scale", ".v_scale"))]
        tensors.update({name: tensors[name].reshape(1).repeat(2) for name in scales})

    planted.tensors(two_heads)
    assert check(planted.folder).codes() == {"tensor-shape"}
    planted.json(
        "config.json", lambda c: c["quantization_config"]["kv_cache_scheme"].update(strategy="attn_head")
    )
    assert check(planted.folder).codes() == set()


def test_a_promised_draft_without_tensors_is_found(copy, check):
    planted: Planted = copy()
    planted.json("config.json", lambda config: config["text_config"].update(mtp_num_hidden_layers=1))
    assert check(planted.folder).codes() == set()
    planted.tensors(lambda tensors: [tensors.pop(n) for n in list(tensors) if n.startswith("mtp.")])
    assert "draft-tensors-missing" in check(planted.folder).codes()


def test_modelopt_files_that_differ_are_found(copy, check):
    planted: Planted = copy("mixed", "modelopt")
    planted.json("hf_quant_config.json", lambda data: data["quantization"].update(kv_cache_quant_algo=None))
    assert check(planted.folder).codes() == {"configurations-differ"}
    (planted.folder / "hf_quant_config.json").unlink()
    assert check(planted.folder).codes() == {"configuration-incomplete"}


def test_the_file_of_modelopt_alone_is_followed(copy, check):
    planted: Planted = copy("fp8", "modelopt")
    planted.json("config.json", lambda config: config.pop("quantization_config"))
    assert check(planted.folder, source=True).codes() == {"configuration-incomplete"}


def test_modelopt_layers_that_are_not_listed_are_found(copy, check):
    planted: Planted = copy("mixed", "modelopt")

    def forget(data):
        layers = data.get("quantization_config", data.get("quantization"))["quantized_layers"]
        layers.pop(next(name for name in layers if name.endswith("down_proj")))

    for name in ("config.json", "hf_quant_config.json"):
        planted.json(name, forget)
    assert {"stored-not-declared", "tensor-undeclared", "name-not-matched"} <= check(planted.folder).codes()


def test_missing_and_odd_files_are_found(copy, check):
    planted: Planted = copy(shard=60_000)
    shards = sorted(planted.folder.glob("*.safetensors"))
    shards[0].unlink()
    (planted.folder / "pytorch_model.bin").write_bytes(b"")
    save_file({"x": torch.ones(1)}, planted.folder / "more.safetensors")
    shards[1].write_bytes(shards[1].read_bytes()[:-10])
    found = check(planted.folder).codes()
    assert {"shard-missing", "weights-in-other-form", "shard-unlisted", "shard-damaged"} <= found


def test_an_index_that_is_not_exact_is_found(copy, check):
    planted: Planted = copy(shard=60_000)
    name = "model.safetensors.index.json"
    planted.json(name, lambda index: index["metadata"].update(total_size=1))
    assert check(planted.folder).codes() == {"index-total-size"}
    planted.json(name, lambda index: index["weight_map"].popitem())
    assert "index-misses-tensor" in check(planted.folder).codes()
    first = next(iter(json.loads((planted.folder / name).read_text())["weight_map"].values()))
    planted.json(name, lambda index: index["weight_map"].update({"absent.weight": first}))
    assert "index-names-absent-tensor" in check(planted.folder).codes()


def test_what_prepares_pages_has_to_be_there(copy, check):
    planted: Planted = copy()
    planted.json("tokenizer.json", lambda data: data.update(truncation={"max_length": 2048}))
    assert "tokenizer-truncates" in check(planted.folder).codes()
    for name in ("preprocessor_config.json", "processor_config.json"):
        (planted.folder / name).unlink(missing_ok=True)
    assert "processor-missing" in check(planted.folder).codes()


def source_faults() -> Iterator[tuple[str, str, Callable[[Planted], object], str]]:
    def tensors(change):
        return lambda planted: planted.tensors(change)

    def swap_nibbles(found):
        name = part(found, "weight_packed")
        found[name] = (found[name] >> 4) | (found[name] << 4)

    def invert(found):
        name = part(found, "mlp.down_proj.weight_global_scale")
        found[name] = 1 / found[name]

    def undo_smoothing(found):
        found[part(found, "layers.0.input_layernorm.weight")] *= 0

    yield "nibbles swapped", "nvfp4", tensors(swap_nibbles), "error-too-large"
    yield "a global scale that was not inverted", "nvfp4", tensors(invert), "error-too-large"
    yield (
        "a row that vanished",
        "nvfp4",
        tensors(lambda f: f[part(f, "weight_packed")][3].zero_()),
        "rows-vanished",
    )
    yield "a fold that was not undone", "fp8", tensors(undo_smoothing), "error-too-large"
    yield (
        "a vision weight touched",
        "mixed",
        tensors(put("visual.blocks.0.attn.qkv.weight", 9.0)),
        "untouched-changed",
    )
    yield (
        "a norm dropped",
        "mixed",
        tensors(drop("layers.0.linear_attn.norm.weight")),
        "source-tensor-missing",
    )
    yield "a draft tensor dropped", "mixed", tensors(drop("mtp.norm.weight")), "source-tensor-missing"
    yield "a tensor added", "mixed", tensors(add("model.extra", 3)), "tensor-added"
    yield "FP8 codes of NaN", "fp8", tensors(nan_byte("_proj.weight")), "codes-not-finite"
    yield "a template missing", "mixed", lambda p: (p.folder / "chat_template.jinja").unlink(), "file-missing"
    yield (
        "a tokenizer written anew",
        "mixed",
        lambda planted: planted.json("tokenizer.json", lambda data: None),
        "file-written-anew",
    )
    yield (
        "a tokenizer with another rule",
        "mixed",
        lambda planted: planted.json("tokenizer.json", lambda data: data.update(pre_tokenizer=None)),
        "file-changed",
    )


@pytest.mark.parametrize(("plan", "change", "code"), [pytest.param(*f[1:], id=f[0]) for f in source_faults()])
def test_a_difference_from_the_source_is_found(copy, check, plan, change, code):
    planted: Planted = copy(plan)
    change(planted)
    assert code in check(planted.folder, source=True).codes()


def test_a_plan_that_differs_is_found(rounded, written, check):
    assert check(written("fp8"), plan="mixed").codes() == {"plan-differs", "size-differs"}
    other = verify_checkpoint(written("fp8"), plan=assignment(rounded, "fp8", cache="bf16"))
    assert other.codes() == {"plan-cache-differs"}
    wrong = assignment(rounded, "fp8")
    wrong.groups.pop(next(iter(wrong.groups)))
    with pytest.raises(ArtifactError, match="groups of this checkpoint"):
        verify_checkpoint(written("fp8"), plan=wrong)


def test_a_tied_head_must_not_be_quantized(copy, check):
    planted: Planted = copy("fp8")

    def quantize_head(found):
        rows = found["model.language_model.embed_tokens.weight"].shape[0]
        found["lm_head.weight"] = torch.ones(rows, 64).to(torch.float8_e4m3fn)
        found["lm_head.weight_scale"] = torch.ones(rows, 1)

    planted.tensors(quantize_head)
    planted.json("config.json", lambda config: config["text_config"].update(tie_word_embeddings=True))
    assert "tied-head-quantized" in check(planted.folder).codes()


def test_a_model_that_is_not_quantized_is_said_to_be_so(tiny_model_folder):
    findings = verify_checkpoint(tiny_model_folder)
    assert findings.codes() == {"not-quantized"}
    findings.raise_for_errors()


def test_other_formats_and_folders_are_refused(copy, tmp_path):
    planted: Planted = copy()
    planted.json("config.json", lambda config: config["quantization_config"].update(quant_method="gptq"))
    with pytest.raises(ModelError, match="gptq"):
        verify_checkpoint(planted.folder)
    with pytest.raises(ModelError):
        verify_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("config_groups", 7),
        ("config_groups", {"group_0": None}),
        ("config_groups", {"group_0": {"targets": [None]}}),
        ("config_groups", {"group_0": {"weights": {"num_bits": []}}}),
        ("config_groups", {"group_0": {"input_activations": "dynamic"}}),
        ("ignore", [3]),
        ("sparsity_config", "2:4"),
        ("sparsity_config", {"format": 24}),
        ("kv_cache_scheme", {"strategy": 1}),
    ],
)
def test_fields_of_a_wrong_type_are_refused(copy, field, value):
    planted: Planted = copy()
    planted.json("config.json", lambda config: config["quantization_config"].update({field: value}))
    for look in (verify_checkpoint, inspect_checkpoint):
        with pytest.raises(ModelError, match=field):
            look(planted.folder)


def test_a_configuration_that_is_no_object_is_not_taken_for_none(copy):
    planted: Planted = copy()
    planted.json("config.json", lambda config: config.update(quantization_config=["fp8"]))
    with pytest.raises(ModelError, match="config.json"):
        verify_checkpoint(planted.folder)


def test_what_is_left_of_a_damaged_checkpoint_is_not_shown(copy):
    planted: Planted = copy()
    path = planted.folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match="model.safetensors"):
        inspect_checkpoint(planted.folder)


def test_errors_end_with_a_code_of_their_own():
    findings = Findings("folder")
    for code in CODES:
        findings.add(code, "thing", expected="one", given="another", fix="do it")
    with pytest.raises(VerificationError, match="shard-missing") as caught:
        findings.raise_for_errors()
    assert caught.value.exit_code == 32
    text = findings.render()
    assert all(f"{kind.severity} {code}" in text for code, kind in CODES.items())
    assert text.index("error ") < text.index("warning ") < text.index("note ")
    assert findings.to_json()["counts"] == {str(s): findings.count(s) for s in Severity}
    for _ in range(6):
        findings.add("tensor-shape", "more", expected="one", given="two", fix="do it")
    assert "and 2 more" in findings.render()
