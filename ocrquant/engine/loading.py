"""From a checkpoint folder to an engine that serves it.

Joins the parts: weights, model, processor, pools, runner. Decides sizes from the settings; computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from ocrquant.engine.config import EngineConfig, Policy
from ocrquant.engine.cuda_device import open_device
from ocrquant.engine.device import Device
from ocrquant.engine.draft_model import ModelDrafts
from ocrquant.engine.drafter_folder import DrafterFolder
from ocrquant.engine.drafting import DraftSource, NgramDrafts
from ocrquant.engine.engine import Engine
from ocrquant.engine.memory import MemoryReport, resident_bytes
from ocrquant.engine.runner import ModelRunner
from ocrquant.engine.source import CheckpointSource, StoredWeights
from ocrquant.engine.state import NativePool, ReplayPool, SnapshotPool, StatePool
from ocrquant.engine.vocabulary import read_vocabulary
from ocrquant.errors import EngineError, ModelError
from ocrquant.json_files import read_json
from ocrquant.models import ModelSpec
from ocrquant.models.decoder import Decoder
from ocrquant.models.drafter.model import Drafter
from ocrquant.models.layers.linear import Activations
from ocrquant.models.processing import PixelTable, Processor, open_processor
from ocrquant.models.registry import architecture, build_model
from ocrquant.models.workspace import Workspace

__all__ = ["DTYPES", "Runtime", "RuntimeSettings", "Speculation", "StateKind", "load_runtime", "make_runtime"]

Speculation = Literal["off", "ngram", "drafter"]
"""What guesses tokens."""

StateKind = Literal["native", "replay", "snapshot"]
"""How recurrent states are kept: as they are, with what is accepted of guesses done again; as a checkpoint
with records (ReplaySSM); or as they are, with a state more for each guess."""

DTYPES: Mapping[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
"""Dtypes of activations by name. Native kernels compute in bf16; the others run the references."""

DEFAULT_LENGTH = 4096
"""Longest sequence where the model could take more and nobody asks for it."""
MIN_STEP_TOKENS = 512
DEFAULT_WINDOW = 8
"""Rows of a page whose tokens are guessed without a drafter."""

_NATIVE_MULTIPLE = 16
_COUNTS = ("max_requests", "max_length", "max_step_tokens", "page_size", "num_pages", "queue_limit", "window")
_CHOICES = {
    "activations": Activations,
    "state": StateKind,
    "policy": Policy,
    "speculation": Speculation,
}
_OPTIONAL = frozenset({"max_length", "max_step_tokens", "num_pages", "window"})
_MOST = 2**31 - 1  # what an int32 of a step can say


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """How to serve a checkpoint.

    Attributes:
        max_requests: Most pages that are read at once.
        max_length: Longest sequence in tokens, page and answer together; None: what the model takes, at most
            4096.
        max_step_tokens: Most rows of a step; None: 512, or one a request where that is more.
        dtype: Of activations, a key of `DTYPES`.
        device: ``cpu`` or ``cuda:N``.
        activations: ``quantized`` as each linear's scheme asks, or ``plain``: weights alone are quantized.
        state: How recurrent states are kept.
        page_size: Tokens in a page of keys and values.
        num_pages: Pages of keys and values; None: enough for all requests at full length.
        prefix_cache_bytes: Memory for kept prefixes; 0 keeps none.
        policy: Which waiting page enters first.
        queue_limit: Most waiting pages.
        prompts: Instructions by kind of page in place of the model's own.
        speculation: What guesses tokens for the model to verify, several a step: ``ngram``, what followed the
            last tokens of the answer when they came before; ``drafter``, a model trained for this one; or
            nothing. Answers are the same.
        drafter: Folder of the drafter; exactly with ``drafter``.
        window: Most rows of a page in a step with guesses: its last token and guesses behind it. None: the
            drafter's block, or 8.

    Raises:
        EngineError: A setting is out of range; names it.
    """

    max_requests: int = 8
    max_length: int | None = None
    max_step_tokens: int | None = None
    dtype: str = "bf16"
    device: str = "cpu"
    activations: Activations = "quantized"
    state: StateKind = "native"
    page_size: int = 16
    num_pages: int | None = None
    prefix_cache_bytes: int = 0
    policy: Policy = "fcfs"
    queue_limit: int = 1024
    prompts: Mapping[str, str] | None = None
    speculation: Speculation = "off"
    drafter: Path | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            is_default = value is None and name in _OPTIONAL
            if not is_default and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise _refused(name, "a whole number of at least 1", value)
            if not is_default and value > _MOST:
                raise _refused(name, f"at most {_MOST}", value)
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in get_args(allowed):
                raise _refused(name, " or ".join(get_args(allowed)), value)
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise _refused("dtype", f"one of {', '.join(DTYPES)}", self.dtype)
        if (self.speculation == "drafter") != (self.drafter is not None):
            raise _refused("drafter", "a folder exactly with speculation = drafter", self.drafter)


@dataclass(frozen=True, slots=True)
class Runtime:
    """An engine with everything around it.

    Attributes:
        engine: Takes prompts, gives text.
        runner: Computes its steps.
        model: The model.
        processor: Pages to prompts, tokens to text.
        settings: What was asked for.
        memory: Where the bytes are.
        drafter: What drafts; None without a drafter.
    """

    engine: Engine
    runner: ModelRunner
    model: Decoder
    processor: Processor
    settings: RuntimeSettings
    memory: MemoryReport
    drafter: Drafter | None = None


def load_runtime(folder: Path, settings: RuntimeSettings | None = None) -> Runtime:
    """Loads a checkpoint and makes an engine for it.

    Args:
        folder: A checkpoint that this package exported, or the model that it was made from.
        settings: How to serve it.

    Raises:
        ModelError: The folder is no model that this package runs, or is not stored as its config says.
        EngineError: A setting is out of range.
    """
    config = read_json(folder / "config.json")
    with CheckpointSource(folder, config) as source:
        return make_runtime(folder, source, settings)


def make_runtime(folder: Path, weights: StoredWeights, settings: RuntimeSettings | None = None) -> Runtime:
    """Makes an engine for weights that need not lie in the folder as they are.

    Args:
        folder: Says everything but the weights: configuration, tokenizer, image settings.
        weights: All tensors of the model.
        settings: How to serve them.

    Raises:
        ModelError: The folder is no model that this package runs, or the weights are not its own.
        EngineError: A setting is out of range.
    """
    settings = settings or RuntimeSettings()
    dtype, place = DTYPES[settings.dtype], _place(settings.device)
    config = read_json(folder / "config.json")
    architecture(config)  # before the tokenizer, whose errors say less
    processor = open_processor(folder, settings.prompts)
    length = _length(settings, processor.encoder.max_positions)
    folder_of_drafter = None if settings.drafter is None else DrafterFolder(settings.drafter)
    window = _window(settings, folder_of_drafter)
    rows = settings.max_step_tokens or max(MIN_STEP_TOKENS, settings.max_requests * window)
    model = build_model(config, weights, dtype, place, activations=settings.activations, max_rows=rows)
    device = open_device(place, dtype)
    _check_native(model.spec, device)
    engine_config = _engine_config(settings, model.spec, length, rows, window)
    state = _make_state(settings, engine_config, model.spec, dtype, place)
    pixels = PixelTable(processor.encoder.images, dtype, place)
    drafter = None
    if folder_of_drafter is not None:
        folder_of_drafter.require(weights, config, folder)
        drafter = folder_of_drafter.load(model, engine_config)
    runner = ModelRunner(model, engine_config, device, state, pixels, drafter)
    runner.capture_all()
    drafts = _make_drafts(settings, engine_config, device, drafter)
    engine = Engine(engine_config, runner, processor.eos_ids, read_vocabulary(processor.tokenizer), drafts)
    memory = MemoryReport(
        stored_bytes=weights.num_bytes,
        num_parameters=weights.num_parameters,
        weight_bytes=resident_bytes(model, but=(Workspace,)),
        kv_bytes=runner.page_bytes * engine_config.num_pages,
        state_bytes=0 if state is None else state.bytes_per_slot * engine_config.state_rows,
        scratch_bytes=model.scratch_bytes + (0 if drafter is None else drafter.scratch_bytes),
    )
    return Runtime(engine, runner, model, processor, settings, memory, drafter)


def _window(settings: RuntimeSettings, drafter: DrafterFolder | None) -> int:
    """Most rows of a page in a step of its answer."""
    if settings.speculation == "off":
        return 1
    if drafter is None:
        return settings.window or DEFAULT_WINDOW
    most = drafter.config.block_size
    if settings.window is not None and settings.window > most:
        raise _refused("window", f"at most {most}, the block of the drafter", settings.window)
    return settings.window or most


def _make_drafts(
    settings: RuntimeSettings, config: EngineConfig, device: Device, drafter: Drafter | None
) -> DraftSource | None:
    if drafter is not None:
        return ModelDrafts(drafter, config, device)
    return NgramDrafts() if settings.speculation == "ngram" else None


def _check_native(spec: ModelSpec, device: Device) -> None:
    """Refuses what the first step would refuse, before anybody waits for it."""
    state = spec.state
    if state is None or not device.is_native:
        return
    sizes = (state.key_dim, state.value_dim)
    if any(size % _NATIVE_MULTIPLE for size in sizes):
        raise ModelError(
            "heads of linear attention",
            expected=f"sizes that are multiples of {_NATIVE_MULTIPLE}, for the native kernels",
            given=sizes,
            fix="run it in fp32, or with OCRQUANT_KERNELS=reference",
        )


def _refused(name: str, expected: str, given: object) -> EngineError:
    return EngineError(f"engine.{name}", expected=expected, given=given, fix="correct the setting")


def _place(name: str) -> torch.device:
    fix = "name a device that is there"
    try:
        place = torch.device(name)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise EngineError("engine.device", expected="cpu or cuda:N", given=error, fix=fix) from error
    if place.type not in ("cpu", "cuda"):
        raise EngineError("engine.device", expected="cpu or cuda:N", given=name, fix=fix)
    return place


def _length(settings: RuntimeSettings, most: int) -> int:
    length = settings.max_length or min(most, DEFAULT_LENGTH)
    if not 1 <= length <= most:
        raise _refused("max_length", f"1 to {most}, the context of the model", length)
    return length


def _engine_config(
    settings: RuntimeSettings, spec: ModelSpec, length: int, rows: int, window: int
) -> EngineConfig:
    pages = settings.num_pages or settings.max_requests * -(-length // settings.page_size)
    return EngineConfig(
        max_positions=length,
        num_pages=pages,
        position_axes=spec.position_axes,
        page_size=settings.page_size,
        max_requests=settings.max_requests,
        max_step_tokens=rows,
        max_window=window,
        drafter_pages=0 if settings.drafter is None else pages,
        policy=settings.policy,
        queue_limit=settings.queue_limit,
        prefix_cache_bytes=settings.prefix_cache_bytes,
        recurrent=spec.state is not None,
    )


def _make_state(
    settings: RuntimeSettings,
    config: EngineConfig,
    spec: ModelSpec,
    dtype: torch.dtype,
    place: torch.device,
) -> StatePool | None:
    if spec.state is None:
        return None
    pool = {"native": NativePool, "replay": ReplayPool, "snapshot": SnapshotPool}[settings.state]
    made: StatePool = pool(
        spec.state,
        num_slots=config.state_rows,
        max_rows=config.max_step_tokens,
        window=config.max_window,
        dtype=dtype,
        device=place,
        state_dtype=torch.float64 if dtype is torch.float64 else torch.float32,
    )
    return made
