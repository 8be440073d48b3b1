"""What a step reads on the device: views into the arena, the same ones whenever a step has the same shape.

Knows names of arrays and counts; writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ocrquant.engine.plan import PlanShape
from ocrquant.models.step import AttentionMetadata, Classes, Rows, StateMetadata, Step

__all__ = ["SamplingInputs", "StepInputs", "make_views"]


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """How to sample, M rows as in `Step.logit_rows`.

    Attributes:
        temperature: float32 [M].
        top_p: float32 [M].
        seed: int32 [M, 2].
        position: int32 [M], place in the sequence of the token to be sampled.
    """

    temperature: Tensor
    top_p: Tensor
    seed: Tensor
    position: Tensor


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Device views of one step; the same object whenever a step has the same shape.

    Attributes:
        step: For the model. Where it has an `image_index`, that counts the image rows of this step from 0, in
            the order of the plan's chunks: chunk by chunk `prompt.image_rows(chunk.start, chunk.end)`.
        drafter: Where a drafter's keys and values lie; None without one.
        places: int32 [1, R], place of each row in its sequence; None without a drafter.
        sampling: For the sampler.
    """

    step: Step
    drafter: AttentionMetadata | None
    places: Tensor | None
    sampling: SamplingInputs


def make_views(device: Mapping[str, Tensor], shape: PlanShape) -> StepInputs:
    """The first rows of every array, as a step of some shape reads them.

    Args:
        device: Arrays of the largest step by name, see `engine.arena`.
        shape: Counts of the step.
    """
    rows, requests = shape.num_rows, shape.num_requests
    sampled = shape.logit_rows
    classes = _classes(shape)
    q_start, kv_len = device["q_start"][: requests + 1], device["kv_len"][:requests]
    step = Step(
        tokens=device["tokens"][:rows],
        positions=device["positions"][:, :rows],
        image_index=device["image_index"][:rows] if shape.images else None,
        logit_rows=device["logit_rows"][:sampled],
        attention=AttentionMetadata(
            device["slot_mapping"][:rows], device["page_table"][:requests], q_start, kv_len
        ),
        state=StateMetadata(q_start, device["slots"][:requests], device["fresh"][:requests], classes),
        classes=classes,
    )
    drafter = None
    if "drafter_page_table" in device:
        drafter = AttentionMetadata(
            device["drafter_slot_mapping"][:rows],
            device["drafter_page_table"][:requests],
            q_start,
            kv_len,
        )
    sampling = SamplingInputs(
        device["temperature"][:sampled],
        device["top_p"][:sampled],
        device["seed"][:sampled],
        device["sample_position"][:sampled],
    )
    places = device["places"][:, :rows] if drafter is not None else None
    return StepInputs(step, drafter, places, sampling)


def _classes(shape: PlanShape) -> Classes:
    """The slices of the three classes, one after another."""
    drafted_rows = shape.drafted * shape.window
    decode_rows, decode = drafted_rows + shape.decode, shape.drafted + shape.decode
    return Classes(
        drafted=Rows(slice(0, drafted_rows), slice(0, shape.drafted)),
        decode=Rows(slice(drafted_rows, decode_rows), slice(shape.drafted, decode)),
        prefill=Rows(slice(decode_rows, shape.num_rows), slice(decode, shape.num_requests)),
    )
