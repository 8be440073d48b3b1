"""From a checkpoint folder to an engine that serves it.

Joins the parts: weights, model, processor, pools, runner. Decides sizes from the settings; computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ocrquant.engine.config import EngineConfig
from ocrquant.engine.cuda_device import open_device
from ocrquant.engine.device import Device
from ocrquant.engine.draft_model import ModelDrafts
from ocrquant.engine.drafter_folder import DrafterFolder
from ocrquant.engine.drafting import DraftSource, NgramDrafts
from ocrquant.engine.engine import Engine
from ocrquant.engine.memory import MemoryReport, resident_bytes
from ocrquant.engine.runner import ModelRunner
from ocrquant.engine.settings import DTYPES, RuntimeSettings, Speculation, StateKind, refused
from ocrquant.engine.source import CheckpointSource, StoredWeights
from ocrquant.engine.state import NativePool, ReplayPool, SnapshotPool, StatePool
from ocrquant.engine.statistics import DecodeStatistics
from ocrquant.engine.vocabulary import read_vocabulary
from ocrquant.engine.window_policy import FixedWindow, MeasuredWindow, WindowPolicy
from ocrquant.errors import EngineError, ModelError
from ocrquant.json_files import read_json
from ocrquant.models import ModelSpec
from ocrquant.models.decoder import Decoder
from ocrquant.models.drafter.model import Drafter
from ocrquant.models.processing import PixelTable, Processor, open_processor
from ocrquant.models.registry import architecture, build_model
from ocrquant.models.workspace import Workspace

__all__ = ["DTYPES", "Runtime", "RuntimeSettings", "Speculation", "StateKind", "load_runtime", "make_runtime"]

DEFAULT_LENGTH = 4096
"""Longest sequence where the model could take more and nobody asks for it."""
MIN_STEP_TOKENS = 512
DEFAULT_WINDOW = 8
"""Rows of a page whose tokens are guessed without a drafter."""

_NATIVE_MULTIPLE = 16


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

    @property
    def statistics(self) -> DecodeStatistics:
        """What guessing brought so far."""
        found = self.engine.statistics
        found.flushes = self.runner.num_folds
        return found

    def speculation_line(self) -> str:
        """What was asked for and what guesses, in one line."""
        asked, most = self.settings, self.engine.config.max_window
        if asked.speculation == "off":
            return "speculation: off"
        what = asked.speculation if asked.drafter is None else f"{self._drafter_name()} from {asked.drafter}"
        is_chosen = isinstance(self.engine.scheduler.windows, MeasuredWindow)
        rows = f"1 to {most} rows as measured" if is_chosen else f"up to {most} rows"
        return f"speculation: {what}, windows of {rows}"

    def _drafter_name(self) -> str:
        assert self.drafter is not None, "asked for"
        return "DFlash2" if self.drafter.config.is_second else "DFlash"


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
    if isinstance(drafts, ModelDrafts):
        drafts.capture_all()
    engine = Engine(
        engine_config,
        runner,
        processor.eos_ids,
        read_vocabulary(processor.tokenizer),
        drafts,
        _make_windows(settings, window, folder_of_drafter),
    )
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
        raise refused("window", f"at most {most}, the block of the drafter", settings.window)
    return settings.window or most


def _make_windows(settings: RuntimeSettings, window: int, drafter: DrafterFolder | None) -> WindowPolicy:
    if drafter is None or settings.window is not None:
        return FixedWindow(window)
    return MeasuredWindow(window, prior=drafter.survival())


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
        raise refused("max_length", f"1 to {most}, the context of the model", length)
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
