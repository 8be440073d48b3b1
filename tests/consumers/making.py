"""Tiny models that went through the pipeline, their checkpoints, and what our own simulation computes.

Runs in the environment of this package. A family gives one folder with everything that the other program
needs and everything that its answers are held against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from torch import Tensor

from ocrquant.adapters import DocumentModel, ModelMap, PageInput, load_model
from ocrquant.artifacts import Rounding
from ocrquant.errors import TargetError
from ocrquant.export import Target, check_target, write_checkpoint
from ocrquant.export.names import planned_precisions
from ocrquant.formats import Precision
from ocrquant.pipeline.run import run_recipe
from ocrquant.recipe import Recipe
from ocrquant.recipe.sections import MAX_SHARD_BYTES
from ocrquant.simulate import SimulatedLinear, apply_plan, rounded_linears, rounded_smoothing
from tests.consumers.corrupting import CORRUPTIONS, corrupted, victim
from tests.consumers.published import complete
from tests.families.making import make_folder

ROOT = Path(__file__).parents[2]
FORMATS = ("compressed-tensors", "modelopt")
PLANS: Mapping[str, tuple[str, ...]] = {
    "mixed": ("nvfp4", "fp8", "bf16"),
    "fp8": ("fp8",),
    "nvfp4": ("nvfp4",),
}
"""Precisions dealt out to the groups in turn."""

TEXT = "Invoice No. 4711, total 1,204.50 due 2026-12-01"
NUM_TOKENS = 12
STD = 0.02


def make_source(family: str, folder: Path) -> Path:
    """A folder as a published model has it, processor included; the model never says the image token."""
    make_folder(family, folder, std=STD)
    complete(family, folder)
    image_token = load_model(folder).encoder.image_token_id
    weights = load_file(folder / "model.safetensors")
    (head,) = (name for name in weights if name.endswith("lm_head.weight"))
    weights[head][image_token] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def round_source(source: Path, run: Path) -> None:
    """The first stages of the pipeline on shipped crops: pages, statistics, weights in both formats."""
    recipe = {
        "model": {"path": str(source)},
        "pages": {
            "source": str(ROOT / "calibration_data"),
            "num_calibration_pages": 6,
            "num_heldout_pages": 1,
            "kinds": ["line"],
        },
        "weights": {"num_held_back_pages": 1},
        "sensitivity": {"score": "gradient", "candidates": ["fp8", "nvfp4"]},
        "assign": {"budget": {"bits_per_weight": 8}},
        "output": str(run),
    }
    run_recipe(Recipe.model_validate(recipe), device="cpu", until="rounding")


def deal(model_map: ModelMap, precisions: tuple[str, ...]) -> dict[str, Precision]:
    """Precisions dealt out to the groups in turn; experts get one for each layer, and FP8 only if all do."""
    experts = [group for group in model_map.groups if group.kind.startswith("experts.")]
    others = (group for group in model_map.groups if group not in experts)
    found = {group.name: Precision(precisions[i % len(precisions)]) for i, group in enumerate(others)}
    layers = sorted({group.block for group in experts if group.block is not None})
    open_to_them = [x for x in precisions if x != "fp8"] or precisions
    for group in experts:
        assert group.block is not None
        found[group.name] = Precision(open_to_them[layers.index(group.block) % len(open_to_them)])
    return found


def picture() -> Image.Image:
    """A line of text, wide enough for several tokens of every family."""
    image = Image.new("RGB", (168, 56), "white")
    ImageDraw.Draw(image).text((6, 20), "Total 1,204.50 EUR", fill="black")
    return image


class Prompt:
    """What the model is asked, as tokens for it and as a request for a server."""

    def __init__(self, document: DocumentModel, image: Image.Image | None) -> None:
        self.image = image
        if image is None:
            ids = document.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
            self.inputs: dict[str, Any] = {"input_ids": torch.tensor([ids])}
            self.request = list(ids)
            return
        encoded = document.encode([PageInput(image, "line")])
        before, after = document.encoder.prompt_ids["line"]
        self.inputs = encoded.forward_inputs()
        self.request = [*before, document.encoder.image_token_id, *after]

    @property
    def ids(self) -> Tensor:
        """Tokens of the prompt, those of the image among them."""
        ids: Tensor = self.inputs["input_ids"][0]
        return ids

    def extended(self, answer: list[int]) -> dict[str, Any]:
        """The inputs with some tokens more; text counts on from the last position in every direction."""
        inputs, more = dict(self.inputs), len(answer)
        inputs["input_ids"] = torch.cat([self.inputs["input_ids"], torch.tensor([answer]).long()], dim=1)
        if "position_ids" in inputs:
            positions = inputs["position_ids"]
            following = positions[..., -1:] + torch.arange(1, more + 1)
            inputs["position_ids"] = torch.cat([positions, following], dim=-1)
        if "mm_token_type_ids" in inputs:
            kinds = inputs["mm_token_type_ids"]
            inputs["mm_token_type_ids"] = torch.cat([kinds, kinds.new_zeros(1, more)], dim=1)
        return inputs


@torch.no_grad()
def answers(document: DocumentModel, prompt: Prompt) -> dict[str, Tensor]:
    """Log-probabilities over the vocabulary after each token of the prompt, and of the greedy answer."""
    answer: list[int] = []
    steps = []
    for _ in range(NUM_TOKENS):
        logits = document.model(**prompt.extended(answer), use_cache=False).logits[0].float()
        steps.append(logits.log_softmax(-1))
        answer.append(int(logits[-1].argmax()))
        if answer[-1] in document.stop_ids:
            break
    return {
        "ids": prompt.ids.clone(),
        "logprobs": steps[0][:-1].clone(),
        "answer": torch.tensor(answer),
        "answer_logprobs": torch.stack([step[-1] for step in steps]),
    }


@dataclass(frozen=True)
class Family:
    """A tiny model with its rounded weights, and what our simulation makes of the prompts.

    Attributes:
        name: Of the family.
        folder: Everything that was made.
        document: The model in bf16.
        prompts: By name.
        rounding: Of all groups in both formats.
        expected: Plan -> ``PROMPT.WHAT`` -> tensor; see `answers`.
    """

    name: str
    folder: Path
    document: DocumentModel
    prompts: Mapping[str, Prompt]
    rounding: Rounding
    expected: Mapping[str, Mapping[str, Tensor]]

    def linears(self, plan: str) -> dict[str, SimulatedLinear]:
        """The quantized linears of a plan, by name."""
        if plan not in PLANS:
            return {}
        with self.rounding.open_weights(self.folder / "run") as weights:
            return rounded_linears(self.rounding, weights, deal(self.document.map, PLANS[plan]))


def simulated(document: DocumentModel, prompts: Mapping[str, Prompt]) -> dict[str, Tensor]:
    """All answers to all prompts, as ``PROMPT.WHAT``."""
    found = {name: answers(document, prompt) for name, prompt in prompts.items()}
    return {f"{name}.{what}": x for name, tensors in found.items() for what, x in tensors.items()}


def make_family(name: str, folder: Path) -> tuple[Family, list[dict[str, Any]]]:
    """Writes source, checkpoints and damaged checkpoints of a family; returns it with a reader's jobs."""
    source, run = make_source(name, folder / "source"), folder / "run"
    round_source(source, run)
    document, rounding = load_model(source), Rounding.load(run)
    image = folder / "image.png"
    picture().save(image)
    prompts = {"text": Prompt(document, None), "image": Prompt(document, picture())}
    requests = [{"name": "text", "ids": prompts["text"].request}]
    requests += [{"name": "image", "ids": prompts["image"].request, "image": str(image)}]
    jobs: list[dict[str, Any]] = [{"name": "bf16", "plan": "bf16", "folder": str(source)}]
    expected = {"bf16": simulated(document, prompts)}
    with rounding.open_weights(run) as weights:
        for plan, precisions in PLANS.items():
            groups = deal(document.map, precisions)
            linears = rounded_linears(rounding, weights, groups)
            with apply_plan(document.model, linears, smoothing=rounded_smoothing(weights)):
                expected[plan] = simulated(document, prompts)
            for kind in FORMATS:
                out = folder / f"{plan}-{kind}"
                write_checkpoint(
                    source,
                    out,
                    model_map=document.map,
                    groups=groups,
                    weights=weights,
                    file_format=kind,
                    max_shard_bytes=MAX_SHARD_BYTES,
                )
                job = {"name": out.name, "plan": plan, "folder": str(out)}
                jobs.append(job | refusal(document.map, groups, kind))
    jobs = [{**job, "prompts": requests} for job in (*jobs, *damaged(document.map, folder))]
    return Family(name, folder, document, prompts, rounding, expected), jobs


def refusal(model_map: ModelMap, groups: Mapping[str, Precision], kind: str) -> dict[str, str]:
    """What this package says of a plan for vLLM that it would not export; nothing where it would."""
    try:
        precisions = planned_precisions(model_map, groups)
        check_target(Target.parse("vllm"), kind, model_map, precisions, has_kv=False)
    except TargetError as error:
        return {"refused": str(error)}
    return {}


def damaged(model_map: ModelMap, folder: Path) -> list[dict[str, Any]]:
    """Every planted fault in the mixed plan, in both formats."""
    linear = victim(model_map, deal(model_map, PLANS["mixed"]))
    jobs = []
    for kind in FORMATS:
        for corruption in CORRUPTIONS:
            name = f"mixed-{kind}, {corruption}"
            out = corrupted(folder / f"mixed-{kind}", folder / name, kind, linear, corruption)
            jobs.append({"name": name, "plan": "mixed", "folder": str(out), "corruption": corruption})
    return jobs
