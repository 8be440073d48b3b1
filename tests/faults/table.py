"""What people have met with other tools and servers, and what keeps it from happening here.

Reports are those of public trackers. A guard is a function, or a line of one, with the test that misses it;
further tests show what no single function guards.
"""

from __future__ import annotations

from dataclasses import dataclass

VERIFY = "tests/verify/test_verify.py::"
TENSOR = f"{VERIFY}test_a_fault_in_a_tensor_is_found"
CONFIG = f"{VERIFY}test_a_fault_in_the_configuration_is_found"
SOURCE = f"{VERIFY}test_a_difference_from_the_source_is_found"
PATTERNS = "tests/adapters/test_patterns.py::"
HEADERS = "tests/adapters/test_headers.py::"
TARGET = "tests/export/test_target.py::"
WRITE = "tests/export/test_write.py::"
FORMATS = "tests/export/test_formats.py::"
NAMES = "tests/checkpoint/test_patterns.py::"


@dataclass(frozen=True)
class Guard:
    """A function without which a test fails.

    Attributes:
        function: ``module:qualified.name``, inside the package.
        test: Name of the test, with or without its parameters.
        becomes: What stands in for it, of ``removal.STANDINS``, or ``no error``, or a text of it with the one
            that takes its place.
    """

    function: str
    test: str
    becomes: str | tuple[str, str] = "nothing"


@dataclass(frozen=True)
class Fault:
    """One report.

    Attributes:
        number: Its number in the list of reports.
        report: Where it was made.
        met: What somebody met.
        guards: What keeps it away.
        tests: Further tests that show it is away.
        reason: Why it cannot happen here; only where there is neither guard nor test.
    """

    number: str
    report: str
    met: str
    guards: tuple[Guard, ...] = ()
    tests: tuple[str, ...] = ()
    reason: str = ""


names = Guard("ocrquant.verify.name_checks:check_names", f"{CONFIG}[layers without a rule]")
shards = Guard("ocrquant.verify.name_checks:_disagree", f"{CONFIG}[half of a fused layer ignored]")
aliases = Guard("ocrquant.verify.name_checks:check_aliases", f"{CONFIG}[every linear is meant]")
torn = Guard("ocrquant.export.target:_torn", f"{TARGET}test_linears_that_servers_fuse_share_a_precision")
target = Guard("ocrquant.export.target:check_target", f"{TARGET}test_what_it_cannot_read_is_refused")
spellings = Guard(
    "ocrquant.checkpoint.patterns:LinearNames.roots",
    f"{NAMES}test_the_vision_side_is_ignored_in_both_spellings",
    "none of them",
)
no_match = Guard(
    "ocrquant.adapters.patterns:match_patterns",
    f"{PATTERNS}test_pattern_that_matches_nothing_names_the_nearest",
    "no error",
)
vision_pattern = Guard(
    "ocrquant.adapters.patterns:match_patterns",
    f"{PATTERNS}test_pattern_that_touches_the_vision_side",
    "no error",
)
unmatched = Guard(
    "ocrquant.verify.tensor_checks:check_patterns",
    f"{CONFIG}[the vision side by a name of another reader]",
)
untouched = Guard("ocrquant.verify.source_checks:_equal", f"{SOURCE}[a vision weight touched]", "true")
shared = Guard(
    "ocrquant.export.tensors:CheckpointTensors._check_shared",
    f"{WRITE}test_faults_in_rounded_weights_are_found",
)
global_scales = Guard(
    "ocrquant.verify.value_checks:_compare", f"{TENSOR}[global scales of gate and up differ]"
)
tensor_scales = Guard(
    "ocrquant.verify.value_checks:check_shared_scales", f"{TENSOR}[input scales of q and k differ]"
)
finite = Guard("ocrquant.verify.value_checks:check_values", f"{TENSOR}[NaN in a block scale]")
positive = Guard("ocrquant.verify.value_checks:check_values", f"{TENSOR}[a scale of zero]")
written_scale = Guard(
    "ocrquant.export.tensor_list:TensorList.make",
    f"{WRITE}test_faults_in_rounded_weights_are_found",
    "no error",
)
cache = "ocrquant.verify.model_checks:check_cache"
cache_names = Guard(
    "ocrquant.export.export:_check_names", f"{WRITE}test_groups_and_caches_must_be_those_of_the_model"
)
error = Guard("ocrquant.verify.source_checks:_judge", f"{SOURCE}[a global scale that was not inverted]")
logits = Guard(
    "ocrquant.pipeline.verification:_check_logits",
    "tests/pipeline/test_verification.py::test_logits_that_are_far_off_are_found",
)
files = Guard("ocrquant.verify.source_checks:check_files", f"{SOURCE}[a tokenizer with another rule]")
copies = Guard("ocrquant.checkpoint.writer:copy_other_files", f"{WRITE}test_files_are_those_of_the_source")
gate = Guard(
    "ocrquant.evaluate.gate:gate_checks",
    "tests/evaluate/test_gate.py::test_planted_corruption_fails_every_threshold",
    "none of them",
)
worst_kind = Guard(
    "ocrquant.evaluate.gate:gate_checks",
    "tests/evaluate/test_gate.py::test_one_broken_kind_fails_where_the_mean_hides_it",
    "none of them",
)
splits = Guard("ocrquant.adapters.patterns:_refuse_split", f"{PATTERNS}test_pattern_that_splits_a_group")

FAULTS: tuple[Fault, ...] = (
    # Ignore lists, targets, names
    Fault("B1", "sglang 22287", "weights of Gated DeltaNet dropped in silence", (names,)),
    Fault("B2", "vllm 40252", "ignored names not mapped to fused modules", (shards, torn)),
    Fault("B3", "llm-compressor 2641", "ignore list rewritten, vision not matched", (spellings, aliases)),
    Fault(
        "B4", "llm-compressor 1652", "a pattern matches nothing, vision is quantized", (no_match, unmatched)
    ),
    Fault(
        "B5",
        "llm-compressor 1428",
        "ignore list and targets of another naming",
        (unmatched,),
        (f"{PATTERNS}test_counts",),
    ),
    Fault(
        "B6",
        "llm-compressor 687",
        "smoothing ignores the ignore list",
        (untouched,),
        (
            f"{WRITE}test_every_tensor_is_as_planned",
            "tests/calibrate/test_rounding.py::test_kept_readers_matter",
        ),
    ),
    Fault(
        "B7",
        "sglang 24927",
        "names of wrappers in the ignore list",
        (Guard("ocrquant.verify.tensor_checks:check_declared", f"{CONFIG}[names of wrappers]"),),
    ),
    Fault(
        "B8", "sglang 9504, vllm 22949", "vision qkv or qkv_proj taken for quantized", (spellings, aliases)
    ),
    Fault("B9", "Model-Optimizer 1690", "wildcards quantize the vision tower", (vision_pattern,)),
    Fault(
        "B11",
        "auto-round 1312, 1776",
        "vision, router or embedding quantized unexpectedly",
        (untouched,),
        (f"{WRITE}test_every_tensor_is_as_planned",),
    ),
    Fault(
        "B12",
        "auto-round 1199",
        "cache scales on vision attention",
        (cache_names, Guard(cache, f"{TENSOR}[cache scales on the vision side]")),
    ),
    Fault(
        "B14",
        "GPTQModel 2221",
        "keys that do not fit after saving",
        (Guard("ocrquant.verify.source_checks:check_weights", f"{SOURCE}[a norm dropped]", "none of them"),),
        (f"{WRITE}test_every_tensor_is_as_planned",),
    ),
    Fault("B15", "vllm-ascend 4313", "KeyError at the vision qkv", (spellings,)),
    # Fused layers, Gated DeltaNet, mixed schemes
    Fault(
        "B16",
        "vllm 38197, sglang 23062",
        "one FP8 scale not spread over the parts of in_proj_qkv",
        (tensor_scales,),
        ("tests/checkpoint/test_compressed_tensors.py::test_mixed_config_is_what_the_library_writes",),
    ),
    Fault(
        "B17",
        "vllm 47396",
        "an assertion on a scale of length three",
        (Guard("ocrquant.verify.tensor_checks:_check_part", f"{TENSOR}[a fused layer's three scales]"),),
    ),
    Fault(
        "B18",
        "vllm 47241",
        "an unlisted in_proj_ba taken for FP8",
        (
            Guard(
                "ocrquant.verify.name_checks:check_names",
                f"{VERIFY}test_modelopt_layers_that_are_not_listed_are_found",
            ),
        ),
        (f"{NAMES}test_every_linear_is_found_under_every_prefix",),
    ),
    Fault("B19", "vllm 47215", "a mixed W4A16 checkpoint does not load", (target,)),
    Fault("B20", "vllm 41021, 40934", "one FP8 scale over in_proj_qkvz, NaN", (tensor_scales,)),
    Fault("B21", "vllm 47515, 41045", "global scales of gate and up differ", (shared, global_scales)),
    Fault(
        "B22",
        "auto-round 2380",
        "grouping of global scales misses projections",
        (
            Guard(
                "ocrquant.export.target:_torn",
                f"{TARGET}test_linears_that_servers_fuse_share_a_global_scale",
            ),
        ),
    ),
    Fault(
        "B23",
        "llm-compressor 0.14, own finding",
        "global scales of in_proj_qkv and in_proj_z differ",
        (shared, global_scales),
        (f"{WRITE}test_members_of_a_group_share_their_global_scales",),
    ),
    Fault("B24", "vllm 41457, 37448, sglang 23973", "half of a fused layer left out", (splits, shards)),
    Fault("B25", "auto-round 2174", "a mixed result fails while columns are merged", (splits, torn)),
    Fault(
        "B26",
        "auto-round 1496",
        "a width that no kernel takes",
        (
            Guard(
                "ocrquant.adapters.structure:Group.reason_against",
                f"{PATTERNS}test_widths_decide_what_is_open",
            ),
            Guard(
                "ocrquant.verify.tensor_checks:_check_parts",
                f"{VERIFY}test_a_width_that_no_block_divides_is_found",
            ),
        ),
        (f"{HEADERS}test_recurrence_gates_are_kept_with_a_reason",),
    ),
    Fault(
        "B28",
        "vllm 47473, 53996",
        "a layer without v_proj breaks a mixed plan",
        (
            Guard(
                "ocrquant.adapters.builder:_Builder.linear",
                f"{HEADERS}test_absent_members_leave_the_group_smaller",
                ("if tensor is None:", "if False:"),
            ),
        ),
    ),
    Fault(
        "B29",
        "mlx-vlm 1706, llama.cpp 27161, vllm 49893",
        "mixed-precision is read by few",
        (Guard("ocrquant.export.target:_mixed", f"{TARGET}test_what_it_cannot_read_is_refused"),),
        (
            "tests/checkpoint/test_compressed_tensors.py::test_one_format_is_named_plainly",
            f"{FORMATS}test_one_precision_gives_a_plain_file",
        ),
    ),
    Fault("B30", "vllm 46311", "scales not loaded, garbage", (logits, error)),
    Fault(
        "B31",
        "modular 6600",
        "a dividing global scale read as a factor",
        (
            error,
            Guard(
                "ocrquant.formats.nvfp4_scales:to_modelopt",
                "tests/formats/test_nvfp4_scales.py::test_conventions_by_hand",
                "its argument",
            ),
        ),
    ),
    Fault(
        "B33",
        "1Cat-vLLM 649",
        "NVFP4 on attention, answers never end",
        (gate,),
        ("tests/assign/test_solve.py::test_equals_brute_force_under_every_kind_of_budget",),
    ),
    Fault("B34", "vllm 36094", "accuracy lost in export", (gate,)),
    Fault("B35", "sglang 18937, 31220", "a server takes kinds of layers for unquantized", (target,)),
    Fault(
        "B36",
        "sglang 27906",
        "the cache is said in one file alone",
        (
            Guard(
                "ocrquant.checkpoint.modelopt:_check_agreement",
                f"{FORMATS}test_files_that_contradict_each_other_are_refused",
            ),
            Guard(
                "ocrquant.verify.declaration:_compare_files",
                f"{VERIFY}test_modelopt_files_that_differ_are_found",
            ),
        ),
    ),
    # Numbers
    Fault(
        "B38",
        "Model-Optimizer 1633",
        "NaN bytes in a scale that was not clamped",
        (finite, written_scale),
        ("tests/formats/test_nvfp4_scales.py::test_saturation_does_not_rest_on_the_conversion",),
    ),
    Fault(
        "B39",
        "Model-Optimizer 1265, 1382",
        "scales of zero blocks",
        (positive, written_scale),
        ("tests/formats/test_nvfp4.py::test_dead_and_tiny_channels_store_usable_scales_and_exact_zeros",),
    ),
    Fault("B40", "vllm 42601", "NaN in the scale of a dead expert", (finite,)),
    Fault(
        "B41",
        "ModelOpt 0.47, own finding",
        "an all-zero weight gives NaN in silence",
        (finite,),
        (
            "tests/rounding/test_scales.py::test_all_zero_weight",
            "tests/verify/test_foreign.py::test_a_dead_layer_of_modelopt_is_found",
        ),
    ),
    Fault(
        "B43",
        "GPTQModel 2331",
        "smoothing gives NaN",
        (Guard("ocrquant.verify.value_checks:check_values", f"{TENSOR}[an infinite input scale]"),),
        ("tests/rounding/test_smoothing.py::test_dead_channels_are_not_moved",),
    ),
    Fault(
        "B44",
        "Model-Optimizer 2038",
        "half of the block scales",
        (Guard("ocrquant.verify.tensor_checks:_check_part", f"{TENSOR}[block scales of half the blocks]"),),
    ),
    Fault(
        "B46",
        "llm-compressor 2630",
        "q_proj also holds the gate of the output",
        (Guard("ocrquant.verify.source_checks:_judge", f"{SOURCE}[a fold that was not undone]"),),
        ("tests/simulate/test_plan.py::test_smoothing_alone_changes_nothing_but_rounding",),
    ),
    Fault(
        "B47",
        "llm-compressor 2514",
        "one mapping matches all norms",
        (
            Guard(
                "ocrquant.adapters.builder:_Builder.layer",
                f"{HEADERS}test_norm_folds_name_every_reader",
                ("setdefault(part.norm, [])", 'setdefault("input_layernorm", [])'),
            ),
        ),
    ),
    Fault(
        "B48",
        "llm-compressor 2522",
        "a transform that makes it worse",
        (
            Guard(
                "ocrquant.rounding.layer:_is_worth_it",
                "tests/rounding/test_layer.py::test_smoothing_that_hurts_on_held_back_pages_is_rejected",
                "true",
            ),
        ),
    ),
    Fault(
        "B49",
        "exllamav3 108",
        "a searched plan worse than a uniform one",
        (
            Guard(
                "ocrquant.assign.solve:check_plan",
                "tests/assign/test_solve.py::test_planted_faults_are_found",
            ),
        ),
        ("tests/assign/test_solve.py::test_large_is_never_over_budget_nor_worse_than_uniform",),
    ),
    # Calibration
    Fault(
        "B50",
        "GPTQModel 2928, LightCompress 353, llm-compressor 3032",
        "calibrated on text alone",
        (
            Guard(
                "ocrquant.adapters.encoding:Encoded.forward_inputs",
                "tests/adapters/test_model.py::test_image_changes_the_answer",
                (", **self.vision", ""),
            ),
            Guard(
                "ocrquant.calibrate.sites:positions_of",
                "tests/calibrate/test_statistics.py::test_figures_equal_a_plain_recomputation",
                ("encoded.valid & encoded.image_mask", "encoded.valid & ~encoded.valid"),
            ),
        ),
    ),
    Fault(
        "B51",
        "auto-round 1773, 1815",
        "which pages were used depends on another flag",
        (
            Guard(
                "ocrquant.artifacts.run_folder:RunFolder.is_current",
                "tests/artifacts/test_run_folder.py::"
                "test_stage_is_current_until_something_that_it_depends_on_changes",
                ("artifact.inputs != dict(inputs) or ", ""),
            ),
        ),
    ),
    Fault(
        "B52",
        "InternVL 876",
        "calibrated on text, a large loss on images",
        (
            Guard(
                "ocrquant.pages.splits:_quotas",
                "tests/pages/test_splits.py::test_kinds_keep_their_share",
                ("wanted * sizes[kind] / len(members)", "wanted / len(kinds)"),
            ),
        ),
    ),
    Fault(
        "B53",
        "llm-compressor 3011",
        "out of memory without a word on the setting",
        (
            Guard(
                "ocrquant.pipeline.effort:Effort.lines",
                "tests/test_cli.py::test_check_prints_the_plan_of_work_and_writes_nothing",
                "none of them",
            ),
        ),
    ),
    Fault(
        "B54",
        "llm-compressor 2472, 3055, Qwen3-VL 522, GPTQModel 2678",
        "out of memory while calibrating with images",
        (
            Guard(
                "ocrquant.adapters.residency:Residency._free",
                "tests/adapters/test_residency.py::test_one_block_is_in_memory_at_a_time",
            ),
        ),
    ),
    Fault(
        "B55",
        "llm-compressor 3071, transformers 42077",
        "tracing fails in the vision tower",
        tests=("tests/calibrate/test_sites.py::test_hooks_see_each_site_once_in_order_and_go_away",),
    ),
    Fault(
        "B56",
        "llm-compressor 1579, 1583, 1590",
        "errors in the calibration of one family",
        (
            Guard(
                "ocrquant.adapters.preparing:prepare_modules",
                "tests/families/test_models.py::test_the_map_names_every_linear_of_the_decoder_once",
            ),
        ),
        (
            "tests/families/test_models.py::test_every_family_of_the_table_has_a_tiny_model",
            "tests/families/test_whole_way.py::test_pages_are_seen_with_their_images",
        ),
    ),
    Fault(
        "B59",
        "llm-compressor 2826, Model-Optimizer 1340, 1354",
        "experts that saw no token have no scale, or NaN",
        (
            Guard("ocrquant.verify.tensor_checks:_check_parts", f"{TENSOR}[an input scale is missing]"),
            Guard(
                "ocrquant.evaluate.notes:_starved_experts",
                "tests/families/test_experts.py::test_starved_experts_are_counted_and_told",
                "none of them",
            ),
        ),
        ("tests/rounding/test_layer.py::test_dead_input_is_safe",),
    ),
    Fault(
        "B-mllm",
        "auto-round calibration/mllm.py",
        "exceptions of a forward pass logged and skipped",
        (
            Guard(
                "ocrquant.calibrate.sites:watch_inputs",
                "tests/calibrate/test_sites.py::test_errors_inside_the_model_are_not_swallowed",
                (
                    "observe(site, arguments[0].flatten(0, -2), tokens)",
                    "try:\n                observe(site, arguments[0].flatten(0, -2), tokens)"
                    "\n            except ValueError:\n                pass",
                ),
            ),
        ),
    ),
    # Quality of the output
    Fault(
        "B60",
        "mlx-vlm 578",
        "one phrase over and over",
        (
            Guard(
                "ocrquant.metrics.text:repetition_loop",
                "tests/metrics/test_text.py::test_loop_of_an_ngram",
            ),
        ),
    ),
    Fault(
        "B61",
        "mlx-vlm 1427",
        "loops, cured by a precise vision side",
        (vision_pattern,),
        ("tests/evaluate/test_equivalence.py::test_a_rise_in_broken_outputs_beyond_chance_is_worse",),
    ),
    Fault(
        "B62",
        "vllm-ascend 15166, 6925, 10831",
        "answers run to the token limit",
        (
            Guard(
                "ocrquant.metrics.text:repetition_loop",
                "tests/evaluate/test_scoring.py::test_loops_and_cut_off_outputs_are_counted",
            ),
        ),
    ),
    Fault("B63", "mlx-vlm 817", "a broken tokenizer was shipped", (files, copies)),
    Fault(
        "B64",
        "vllm 19876",
        "the projector was quantized",
        (untouched,),
        ("tests/families/test_models.py::test_everything_outside_the_decoder_is_vision",),
    ),
    Fault("B-strata", "OpenRAL 107", "a mean hides the kind that fell", (worst_kind,)),
    # Speed
    Fault(
        "B65",
        "Model-Optimizer 2015, vllm 49723",
        "a narrower format that is slower",
        (
            Guard(
                "ocrquant.assign.narrow:slower_formats",
                "tests/assign/test_terms.py::test_slower_format_is_never_chosen_for_speed",
                "empty",
            ),
        ),
    ),
    Fault(
        "B66",
        "vllm 45735, xinfer 319, 466",
        "a mix no faster than a uniform plan",
        (
            Guard(
                "ocrquant.evaluate.stage:_note_speed",
                "tests/evaluate/test_stage.py::test_how_fast_each_arm_was_is_beside_the_report",
            ),
        ),
    ),
    Fault(
        "B67",
        "imp 465",
        "the head takes a fifth of the time",
        (
            Guard(
                "ocrquant.adapters.builder:_Builder.head",
                f"{HEADERS}test_groups_are_exactly_those_of_the_structure",
            ),
        ),
    ),
    # Cache
    Fault(
        "B68",
        "vllm 37554",
        "scales of the cache from garbage",
        (
            Guard(
                "ocrquant.calibrate.rounding:_kv_scales",
                "tests/calibrate/test_rounding.py::test_cache_scales_come_from_the_statistics",
                ("[layer.k_amax, layer.v_amax]", "[448.0, 448.0]"),
            ),
        ),
    ),
    Fault(
        "B69",
        "sgl-cookbook 237, sglang 22671, vllm 42179",
        "no scales, so 1.0",
        (Guard(cache, f"{TENSOR}[one cache scale of two]"),),
    ),
    Fault(
        "B70",
        "vllm 41343",
        "a cache in E5M2",
        (
            Guard("ocrquant.verify.declaration:_cache", f"{CONFIG}[a cache in E5M2]"),
            Guard(
                "ocrquant.checkpoint.compressed_tensors:check",
                "tests/checkpoint/test_compressed_tensors.py::test_foreign_schemes_are_refused",
            ),
        ),
    ),
    Fault(
        "B71",
        "vllm 25047, sglang 25794, llm-compressor 2494",
        "cache scales under another name are not loaded",
        (Guard(cache, f"{TENSOR}[cache scales by ModelOpt's names]"),),
        (f"{FORMATS}test_tensors_of_modelopt_by_hand",),
    ),
    Fault(
        "B-shared",
        "vLLM 0.32, own finding",
        "experts in bf16 taken for what their shared expert is",
        (
            Guard(
                "ocrquant.checkpoint.modelopt:_kept_experts",
                "tests/checkpoint/test_modelopt.py::"
                "test_experts_that_stay_beside_a_shared_one_that_does_not_are_excluded",
                "none of them",
            ),
            Guard(
                "ocrquant.verify.servers:_of_experts",
                "tests/families/test_stacked_experts.py::"
                "test_experts_that_a_server_takes_for_their_shared_expert_are_found",
            ),
        ),
    ),
    # Files
    Fault("B73", "llm-compressor 1305", "preprocessor_config.json is missing", (copies, files)),
    Fault(
        "B74",
        "vllm 19733, llm-compressor 1418",
        "a tokenizer saved with truncation",
        (
            files,
            Guard(
                "ocrquant.verify.model_checks:check_processor",
                f"{VERIFY}test_what_prepares_pages_has_to_be_there",
            ),
        ),
    ),
    Fault(
        "B75",
        "llm-compressor 2153",
        "a tokenizer changed while saving",
        (Guard("ocrquant.verify.source_checks:check_files", f"{SOURCE}[a tokenizer written anew]"), copies),
    ),
    Fault(
        "B77",
        "vllm 34859, GPTQModel 3077",
        "a missing shard loads as garbage",
        (
            Guard(
                "ocrquant.checkpoint.reader:CheckpointReader._add",
                "tests/checkpoint/test_files.py::test_damaged_folders_are_refused",
                "no error",
            ),
        ),
        (
            f"{VERIFY}test_missing_and_odd_files_are_found",
            f"{WRITE}test_a_kill_leaves_nothing_and_the_next_run_is_whole",
        ),
    ),
    Fault(
        "B79",
        "sglang 35797, vllm 53387, 37667",
        "draft weights dropped, or taken for quantized; a wrong total_size",
        (
            Guard(
                "ocrquant.verify.source_checks:check_weights",
                f"{SOURCE}[a draft tensor dropped]",
                "none of them",
            ),
            aliases,
            Guard(
                "ocrquant.verify.folder:CheckpointFolder._compare",
                f"{VERIFY}test_an_index_that_is_not_exact_is_found",
            ),
        ),
        (f"{WRITE}test_drafting_heads_are_copied_and_ignored",),
    ),
    Fault(
        "B81",
        "auto-round 2188",
        "an exception while a quantized head is saved",
        (
            Guard(
                "ocrquant.adapters.patterns:_forced",
                f"{PATTERNS}test_tied_head_can_be_kept_but_not_forced",
                "no error",
            ),
            Guard(
                "ocrquant.verify.model_checks:check_ties",
                f"{VERIFY}test_a_tied_head_must_not_be_quantized",
            ),
        ),
    ),
    Fault(
        "B82",
        "vllm 43967, llm-compressor 2255",
        "a KeyError at a tensor that no scheme declares",
        (Guard("ocrquant.verify.tensor_checks:check_tensors", f"{TENSOR}[a zero point]"),),
    ),
    Fault("B83", "Model-Optimizer 2276", "weights spoilt in export, in silence", (logits, error)),
    Fault(
        "B84",
        "llm-compressor, own finding",
        "nothing matched, and no error",
        (
            no_match,
            Guard("ocrquant.adapters.patterns:search_space", f"{PATTERNS}test_no_group_fits", "no error"),
        ),
    ),
    Fault(
        "B85",
        "ModelOpt, own finding",
        "a group in two formats, or a width that does not fit, found at export alone",
        (
            Guard(
                "ocrquant.adapters.patterns:search_space",
                f"{PATTERNS}test_forced_precision_must_fit",
                "no error",
            ),
            splits,
        ),
    ),
)

NUMBERS = """
B1 B2 B3 B4 B5 B6 B7 B8 B9 B11 B12 B14 B15
B16 B17 B18 B19 B20 B21 B22 B23 B24 B25 B26 B28 B29 B30 B31 B33 B34 B35 B36
B38 B39 B40 B41 B43 B44 B46 B47 B48 B49
B50 B51 B52 B53 B54 B55 B56 B59 B-mllm
B60 B61 B62 B63 B64 B-strata
B65 B66 B67
B68 B69 B70 B71
B-shared
B73 B74 B75 B77 B79 B81 B82 B83 B84 B85
"""
"""Every report of the list, a line a section."""
