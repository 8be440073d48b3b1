"""Reads checkpoints with vLLM on a CPU and writes down what it computed; runs in the environment of vLLM.

``python reading.py JOBS OUT``: JOBS is a JSON list of objects with ``name`` and ``folder`` and a list of
``prompts``, each with ``name``, ``ids`` and, for one with an image, the path ``image``. OUT gets a
``NAME.safetensors`` a checkpoint with tensors ``PROMPT.ids`` [T], ``PROMPT.logprobs`` [T - 1, vocabulary]
float32 of what follows each token of the prompt, and ``PROMPT.answer`` [at most `NUM_TOKENS`], greedy; and
for every linear that vLLM takes for quantized, ``PROMPT.linear.MODULE.x`` [T, in] and ``.y`` [T, out], what
went in and out while it read the prompt; for experts of a layer ``PROMPT.experts.MODULE.x``, ``.y``, and
``.ids`` and ``.weights`` [T, k] of those that each token was sent to. A checkpoint that cannot be read leaves
``NAME.error`` instead. Knows nothing of this package.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
NUM_TOKENS = 12
MAX_LENGTH = 1024


def whole_vocabulary(rows: list[Any], vocabulary: int) -> Any:
    """vLLM's dictionaries of log-probabilities, one a token of the prompt, as [T - 1, vocabulary]."""
    import torch

    found = torch.full((len(rows) - 1, vocabulary), float("nan"))
    for row, values in zip(found, rows[1:], strict=True):
        for token, value in values.items():
            row[token] = value.logprob
    return found


@contextmanager
def watched_linears(model: Any) -> Iterator[dict[str, Any]]:
    """What goes into and out of each quantized linear, head and experts included, in its longest call."""
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        UnquantizedEmbeddingMethod,
    )

    seen: dict[str, Any] = {}
    plain = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod, UnquantizedFusedMoEMethod)

    def noting(name: str, apply: Any) -> Any:
        def noted(layer: Any, x: Any, bias: Any = None) -> Any:
            y = apply(layer, x, bias)
            # Models that run through transformers have an axis of one in front.
            note(f"linear.{name}", x=x.flatten(0, -2), y=y.flatten(0, -2))
            return y

        return noted

    def noting_experts(name: str, apply: Any) -> Any:
        def noted(layer: Any, x: Any, topk_weights: Any, topk_ids: Any, *others: Any, **named: Any) -> Any:
            # Some experts write into their input.
            before = x.clone()
            y = apply(layer, x, topk_weights, topk_ids, *others, **named)
            note(f"experts.{name}", x=before, y=y, weights=topk_weights, ids=topk_ids)
            return y

        return noted

    def note(name: str, **tensors: Any) -> None:
        if len(tensors["x"]) > len(seen.get(f"{name}.x", ())):
            seen.update({f"{name}.{what}": tensor.detach().clone() for what, tensor in tensors.items()})

    methods = []
    for name, module in model.named_modules():
        is_linear = isinstance(module, LinearBase | ParallelLMHead)
        if (is_linear or isinstance(module, RoutedExperts)) and not isinstance(module.quant_method, plain):
            methods.append(module.quant_method)
            kind = noting if is_linear else noting_experts
            module.quant_method.apply = kind(name, module.quant_method.apply)
    try:
        yield seen
    finally:
        for method in methods:
            del method.apply


def read(folder: str, prompts: list[dict[str, Any]], num_tokens: int) -> dict[str, Any]:
    """Loads one checkpoint and answers every prompt by itself."""
    import torch
    from PIL import Image
    from vllm import LLM, SamplingParams

    images = any("image" in prompt for prompt in prompts)
    model = LLM(
        folder,
        dtype="bfloat16",
        max_model_len=MAX_LENGTH,
        max_num_batched_tokens=MAX_LENGTH,
        max_num_seqs=1,
        enforce_eager=True,
        block_size=32,
        max_logprobs=-1,
        enable_prefix_caching=False,
        limit_mm_per_prompt={"image": 1 if images else 0, "video": 0},
        mm_processor_cache_gb=0,
        seed=0,
    )
    vocabulary = model.llm_engine.model_config.get_vocab_size()
    wanted = SamplingParams(temperature=0.0, max_tokens=num_tokens, prompt_logprobs=-1, detokenize=False)
    found = {}
    (module,) = model.apply_model(lambda module: module)
    for prompt in prompts:
        request: dict[str, Any] = {"prompt_token_ids": prompt["ids"]}
        if "image" in prompt:
            request["multi_modal_data"] = {"image": Image.open(prompt["image"]).convert("RGB")}
        with watched_linears(module) as seen:
            (output,) = model.generate([request], wanted, use_tqdm=False)
        name = prompt["name"]
        found |= {f"{name}.{key}": tensor for key, tensor in seen.items()}
        found[f"{name}.ids"] = torch.tensor(output.prompt_token_ids)
        found[f"{name}.logprobs"] = whole_vocabulary(output.prompt_logprobs, vocabulary)
        found[f"{name}.answer"] = torch.tensor(list(output.outputs[0].token_ids))
    return found


def define_image_operators() -> None:
    """Lets torchvision be imported without its compiled part, which is built for another torch.

    vLLM and transformers import it and call none of its operators. It registers two of them on import, which
    therefore have to exist; and vLLM looks at a model's class in a process of its own, where they would not.
    """
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    KEPT.append(library)

    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda function: function()


KEPT: list[Any] = []
"""Operators go away with the library that defines them."""


def main(jobs: str, out: str) -> None:
    """Reads every checkpoint of a list."""
    os.environ |= {name: os.environ.get(name, value) for name, value in SETTINGS.items()}
    define_image_operators()
    from safetensors.torch import save_file
    from vllm.distributed import cleanup_dist_env_and_memory

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for job in json.loads(Path(jobs).read_text(encoding="utf-8")):
        try:
            found = read(job["folder"], job["prompts"], job.get("num_tokens", NUM_TOKENS))
            save_file(found, folder / f"{job['name']}.safetensors")
        except Exception:
            (folder / f"{job['name']}.error").write_text(traceback.format_exc(), encoding="utf-8")
        gc.collect()
        cleanup_dist_env_and_memory()
        print(job["name"], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
