"""Checks of what surrounds the linears: tied head, draft heads, scales of the cache, the processor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from ocrquant.adapters.headers import PROCESSING_FILES
from ocrquant.checkpoint import FILE_FORMATS
from ocrquant.verify.declaration import Declaration
from ocrquant.verify.findings import Findings
from ocrquant.verify.folder import CheckpointFolder
from ocrquant.verify.linears import CACHE_NAMES, Linears
from ocrquant.verify.value_checks import check_values

__all__ = ["check_cache", "check_drafts", "check_positions", "check_processor", "check_ties"]

_INTERLEAVED = ("Qwen3VL", "Qwen3_5")
"""Beginnings of architectures that interleave the three directions of M-RoPE."""

_TIED = "tie_word_embeddings"
_DRAFT_LAYERS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")


def check_processor(folder: Path, findings: Findings) -> None:
    """Files that prepare a page are there, and cut no prompt."""
    for names in PROCESSING_FILES:
        if not any((folder / name).is_file() for name in names):
            findings.add(
                "processor-missing",
                folder.name,
                expected=" or ".join(names),
                given="none of them",
                fix="copy it from the source",
            )
    path = folder / "tokenizer.json"
    try:
        tokenizer = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        findings.add(
            "processor-missing", path.name, expected="JSON", given=error, fix="copy it from the source"
        )
        return
    if limits := tokenizer.get("truncation"):
        findings.add(
            "tokenizer-truncates",
            path.name,
            expected="no truncation",
            given=f"max_length {limits.get('max_length')}",
            fix="copy the file from the source",
        )


def check_ties(folder: CheckpointFolder, linears: Linears, findings: Findings) -> None:
    """Whether the flags agree: transformers reads of ``text_config``, vLLM inside."""
    inside, outside = folder.text_config.get(_TIED), folder.config.get(_TIED)
    head = next((n for n in linears.items if n.rpartition(".")[2] == "lm_head"), None)
    if inside is not None and outside is not None and inside != outside:
        findings.add(
            "tied-flags-differ",
            "config.json",
            expected=f"one value of {_TIED}",
            given=f"{outside} outside of text_config, {inside} inside",
            fix=f"set both to {'false' if head else 'true'}",
        )
    if head is not None and inside is True and linears.items[head].stored:
        findings.add(
            "tied-head-quantized",
            head,
            expected="a plain weight, since text_config ties it to the embedding",
            given=f"{linears.items[head].stored} codes",
            fix=f"keep the head in bf16, or store an embedding of its own and set {_TIED} to false",
        )


def check_drafts(folder: CheckpointFolder, findings: Findings) -> None:
    """Where the configuration promises layers that guess ahead, their weights are there."""
    text = folder.text_config
    promised = next((key for key in _DRAFT_LAYERS if text.get(key) or folder.config.get(key)), None)
    has_them = any(name.startswith(("mtp.", "model.mtp.")) or ".mtp." in name for name in folder.tensors)
    # Some families store such a layer behind the last one.
    count = text.get("num_hidden_layers")
    has_them = has_them or any(f".layers.{count}." in name for name in folder.tensors)
    if promised and not has_them:
        findings.add(
            "draft-tensors-missing",
            "config.json",
            expected=f"tensors of the draft layers that {promised} promises",
            given="none",
            fix="copy them from the source if it has them, without quantizing them",
        )


def check_positions(folder: CheckpointFolder, findings: Findings) -> None:
    """M-RoPE as servers read it: transformers interleaves it in any case, vLLM 0.32 only where told."""
    architectures = folder.config.get("architectures") or [""]
    text = folder.config.get("text_config")
    if not str(architectures[0]).startswith(_INTERLEAVED) or not isinstance(text, dict):
        return
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    if isinstance(rope, dict) and "mrope_section" in rope and rope.get("mrope_interleaved") is not True:
        findings.add(
            "positions-not-interleaved",
            "mrope_interleaved in config.json",
            expected=True,
            given=rope.get("mrope_interleaved"),
            fix="set it beside mrope_section, in the source too",
        )


def check_cache(
    folder: CheckpointFolder, declaration: Declaration | None, linears: Linears, findings: Findings
) -> None:
    """Scales of the cache: on full-attention layers alone, on all of them, and by the names of the format."""
    found = list(_cache_scales(folder))
    by_head = declaration is not None and declaration.cache_by_head
    for name in found:
        shape = list(folder.tensors[name].shape)
        # How many heads there are is the server's to know; one number is right for one head.
        if len(shape) != 1 if by_head else folder.tensors[name].num_elements != 1:
            wanted = "one number a head" if by_head else "one number"
            findings.add("tensor-shape", name, expected=wanted, given=shape, fix="export it again")
        check_values(folder, name, findings)
    if declaration is None or linears.model_map is None:
        return
    row = FILE_FORMATS[declaration.method]
    layers = linears.model_map.kv_attention
    expected = {name for layer in layers for name in row.kv_tensors(layer)}
    queries = {f"{layer}.q_scale" for layer in layers}
    for name in found:
        if name not in expected | queries:
            findings.add(
                "cache-scale-misplaced",
                name,
                expected=f"scales of full-attention layers, such as {next(iter(sorted(expected)), 'none')}",
                given="one elsewhere",
                fix="export it again",
            )
    absent = sorted(expected - set(found))
    if declaration.cache == "fp8" and absent:
        findings.add(
            "cache-scales-incomplete",
            absent[0],
            expected=f"{len(expected)} scales",
            given=f"{len(expected) - len(absent)}",
            fix="calibrate the cache on pages and export it again",
        )
    if found and declaration.cache is None:
        findings.add(
            "cache-not-declared",
            found[0],
            expected="a scheme of the cache",
            given="none",
            fix="export it again",
        )


def _cache_scales(folder: CheckpointFolder) -> Iterator[str]:
    for name in folder.tensors:
        if name.rpartition(".")[2] in CACHE_NAMES:
            yield name
