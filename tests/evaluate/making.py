"""Stage files as earlier stages leave them, their numbers made up by a formula, and transcripts to judge."""

from __future__ import annotations

import math
from pathlib import Path

from PIL import Image, ImageDraw

from ocrquant.artifacts import (
    ArmTranscript,
    Assignment,
    CheckpointRecord,
    Drafts,
    FileRecord,
    GroupRecord,
    LinearsRecord,
    LinearStatistics,
    PageRecord,
    PageScoreRow,
    PageScores,
    PageSet,
    PageTranscripts,
    Pareto,
    ParetoPoint,
    PositionStatistics,
    Report,
    Rounding,
    RunFolder,
    RuntimeRecord,
    ScoredPage,
    Sensitivity,
    SensitivityRow,
    Statistics,
    Transcripts,
    sha256_data,
)
from ocrquant.artifacts.rounding import GroupInput, GroupRounding, RoundingStep
from ocrquant.evaluate.report import IMAGE_FOLDER, RunFacts, build_report
from ocrquant.formats import FORMATS, Precision
from ocrquant.recipe.sections import EvaluateSection, GateSection

ZERO = "0" * 64
RECIPE = """\
model: {path: pico}
pages: {source: pages, num_calibration_pages: 32, num_heldout_pages: 8}
sensitivity: {candidates: [fp8, nvfp4]}
assign: {budget: {bits_per_weight: 6.5}}
output: run
"""
ARMS = ("bf16", "fp8", "nvfp4", "plan")
SIZES = {"attention.qkv": 60_000, "attention.o": 50_000, "gdn.qkvz": 110_000, "gdn.out": 50_000}
SIZES |= {"mlp.gate_up": 190_000, "mlp.down": 98_000}
CANDIDATES = (Precision.FP8, Precision.NVFP4)


def group_names(num_layers: int = 8) -> dict[str, int]:
    """Groups of a model with three recurrent layers to one of attention, and their weights."""
    names = {}
    for layer in range(num_layers):
        mixer = "attention" if layer % 4 == 3 else "gdn"
        roles = [role for role in SIZES if role.split(".")[0] in (mixer, "mlp")]
        names |= {f"layers.{layer}.{role}": SIZES[role] for role in roles}
    return names | {"lm_head": 61_440}


def score(index: int, precision: Precision) -> float:
    """A score over three decades, FP8 far below NVFP4."""
    wave = math.sin(1.7 * index) + 0.6 * math.sin(0.37 * index)
    return (0.004 if precision is Precision.NVFP4 else 0.0002) * math.exp(1.4 * wave)


def weight_bytes(num_weights: int, precision: Precision) -> int:
    return round(num_weights * FORMATS[precision].bits_per_weight / 8)


def sensitivity() -> Sensitivity:
    groups, rows = [], []
    for index, (name, size) in enumerate(group_names().items()):
        is_open = name != "layers.0.gdn.out"
        groups.append(
            GroupRecord(
                name=name,
                kind=name.split(".", 2)[-1],
                block=int(name.split(".")[1]) if name.startswith("layers.") else None,
                linears=[f"model.{name}"],
                shapes=[(1, size)],
                num_weights=size,
                precisions=[Precision.BF16, *CANDIDATES] if is_open else [Precision.BF16, Precision.FP8],
                reason="" if is_open else "width 100 is no multiple of 16",
            )
        )
        for precision in groups[-1].precisions[1:]:
            mean = score(index, precision)
            rows.append(
                SensitivityRow(
                    group=name,
                    precision=precision,
                    score="kl",
                    mean=mean,
                    standard_error=mean * (0.7 if index % 5 == 0 and precision == "fp8" else 0.1),
                    num_pages=32,
                    num_tokens=1400,
                    bits_per_weight=FORMATS[precision].bits_per_weight,
                    weight_bytes=weight_bytes(size, precision),
                )
            )
    return Sensitivity(inputs={"pages": ZERO}, groups=groups, rows=rows)


def page_scores(num_pages: int = 32) -> PageScores:
    """Sums by page that grow and fall along the pages."""
    return PageScores(
        inputs={"pages": ZERO},
        pages=[ScoredPage(id=f"doc/crop-{i:02d}", num_tokens=30 + i) for i in range(num_pages)],
        rows=[
            PageScoreRow(
                group=row.group,
                precision=row.precision,
                score="kl",
                sums=[row.mean * (1.5 + math.sin(2.3 * i)) for i in range(num_pages)],
            )
            for row in sensitivity().rows
        ],
    )


def assignment(scores: Sensitivity) -> Assignment:
    means = {(row.group, row.precision): row.mean for row in scores.rows}
    groups = {}
    for group in scores.groups:
        nvfp4 = means.get((group.name, Precision.NVFP4), 1.0)
        groups[group.name] = (
            Precision.NVFP4 if nvfp4 < 0.006 else Precision.FP8 if nvfp4 < 0.018 else Precision.BF16
        )
    groups["layers.0.gdn.out"] = Precision.FP8
    total = sum(group.num_weights for group in scores.groups)
    bits = sum(group.num_weights * FORMATS[groups[group.name]].bits_per_weight for group in scores.groups)
    return Assignment(
        inputs={"sensitivity": ZERO},
        budget={"bits_per_weight": 7.0},
        score="kl",
        predicted_loss=sum(means.get((name, precision), 0.0) for name, precision in groups.items()),
        bits_per_weight=bits / total,
        weight_bytes=sum(weight_bytes(group.num_weights, groups[group.name]) for group in scores.groups),
        groups=groups,
    )


def pareto() -> Pareto:
    def point(bits: float, loss: float, name: str = "") -> ParetoPoint:
        return ParetoPoint(
            name=name,
            bits_per_weight=bits,
            weight_bytes=round(1e6 * bits),
            predicted_loss=loss,
            num_groups={Precision.FP8: 1},
        )

    front = [point(4.6 + 0.4 * step, 0.3 * math.exp(-0.33 * step)) for step in range(28)]
    return Pareto(
        inputs={"sensitivity": ZERO},
        score="kl",
        front=[*front, point(16.0, 0.0)],
        uniform=[
            point(4.6, 0.3, "nvfp4"),
            point(8.0, 0.03, "fp8"),
            point(16.0, 0.0, "bf16"),
        ],
        hand=[point(5.2, 0.26, "nvidia/Qwen3.6-27B-NVFP4"), point(6.1, 0.2, "a map that is not listed")],
    )


def statistics() -> Statistics:
    def positions(ratio: float) -> PositionStatistics:
        return PositionStatistics(num_tokens=900, amax=ratio / 3, outlier_ratio=ratio, dead_channels=[3])

    linears = [
        LinearStatistics(
            name=f"model.{name}",
            in_features=192,
            text=positions(4 + 60 * abs(math.sin(index))),
            image=positions(3 + 20 * abs(math.sin(2 * index))),
        )
        for index, name in enumerate(group_names())
    ]
    return Statistics(
        inputs={"pages": ZERO},
        num_pages=96,
        tensors=FileRecord(sha256=ZERO, num_bytes=0),
        linears=linears,
        kv=[],
    )


def rounding() -> Rounding:
    groups = []
    for index, name in enumerate(group_names()):
        for precision in CANDIDATES:
            steps = [
                RoundingStep(
                    step=step,
                    accepted=(index + order) % 3 > 0,
                    error_before=0.02,
                    error_after=0.02 - 0.003 * order,
                )
                for order, step in enumerate(("smoothing", "scale_search", "gptq"))
            ]
            groups.append(
                GroupRounding(
                    group=name, precision=precision, linears=[f"model.{name}"], steps=steps, error=0.01
                )
            )
    return Rounding(
        inputs={"statistics": ZERO},
        num_held_back_pages=16,
        tensors=FileRecord(sha256=ZERO, num_bytes=0),
        groups=groups,
        group_inputs=[GroupInput(group=name, amax=3.0, encode_scale=896.0) for name in group_names()],
        norms=[],
        kv=[],
    )


TEXTS = [
    "The quick brown fox jumps over 13 lazy dogs.",
    "Verteiler: Die Vereinsvorsitzende",
    "Invoice 2024-117, total 1,284.50 EUR",
    "a short line",
]
BLOCK = "First line of a block with words,\nsecond line with the year 1987,\nand a third one."


def output(text: str, *, finished: bool = True, kl: float | None = 0.0, tokens: int = 40) -> ArmTranscript:
    return ArmTranscript(text=text, num_tokens=tokens, finished=finished, kl_sum=kl, num_kl_tokens=tokens)


def damage(text: str, every: int) -> str:
    """Replaces every n-th character."""
    return "".join("#" if (index + 1) % every == 0 else character for index, character in enumerate(text))


def runtimes(*arms: str) -> dict[str, RuntimeRecord]:
    """Arms as the runtime describes them: bf16, and others with one FP8 linear of two."""
    plain = LinearsRecord(stored="bf16", asked="plain", reads="plain", count=2)
    halves = [plain.model_copy(update={"count": 1})]
    halves.append(
        LinearsRecord(stored="fp8", asked="fp8, scaled by token", reads="fp8, scaled by token", count=1)
    )
    base = RuntimeRecord(device="cpu", dtype="bf16", kernels="native", linears=[plain], kv_cache="bf16")
    other = base.model_copy(update={"linears": halves, "kv_cache": "fp8"})
    return {arm: base if arm == "bf16" else other for arm in arms}


def transcripts(
    num_pages: int = 48, *, documents: int = 12, truth_source: str = "ground_truth", plan_every: int = 60
) -> Transcripts:
    """bf16 errs rarely, FP8 as rarely, NVFP4 every 12th character, the plan every `plan_every`-th."""
    pages = []
    for index in range(num_pages):
        is_block = index % 4 == 3
        truth = BLOCK if is_block else TEXTS[index % 3]
        base = damage(truth, 31) if index % 5 == 0 and truth_source == "ground_truth" else truth
        pages.append(
            PageTranscripts(
                page=f"doc{index % documents}/crop-{index:03d}",
                kind="block" if is_block else "line",
                document=f"doc{index % documents}",
                truth=truth,
                truth_source=truth_source,
                arms={
                    "bf16": output(base),
                    "fp8": output(base if index % 7 else damage(base, 30), kl=0.04),
                    "nvfp4": output(damage(base, 12), kl=4.0 + index % 3),
                    "plan": output(
                        damage(base, plan_every) if index % 3 == 0 else base, kl=0.4 + 0.1 * (index % 4)
                    ),
                },
            )
        )
    return Transcripts(
        inputs={"pages": ZERO, "model": ZERO}, max_new_tokens=128, runtimes=runtimes(*ARMS), pages=pages
    )


def page_set(outputs: Transcripts) -> PageSet:
    return PageSet(
        inputs={"source": ZERO},
        source="pages",
        pages=[
            PageRecord(
                id=page.page,
                document=page.document,
                kind=page.kind,
                split="heldout",
                file=f"{page.page}.png",
                storage="image",
                index=0,
                dpi=None,
                sha256=ZERO,
                width=300,
                height=20,
                text=page.truth if page.truth_source == "ground_truth" else None,
                truth_source=page.truth_source,
            )
            for page in outputs.pages
        ],
    )


def checkpoint(plan: Assignment) -> CheckpointRecord:
    contents = {"model.safetensors": FileRecord(sha256=ZERO, num_bytes=plan.weight_bytes + 5_000_000)}
    return CheckpointRecord(
        inputs={"assignment": ZERO, "rounding": ZERO},
        folder="checkpoint",
        format="compressed-tensors",
        bits_per_weight=plan.bits_per_weight,
        weight_bytes=plan.weight_bytes,
        contents=contents,
    )


def draw_page(path: Path, text: str) -> None:
    """A picture with the text on it."""
    lines = text.split("\n")
    image = Image.new("L", (12 + 7 * max(map(len, lines)), 10 + 14 * len(lines)), 255)
    ImageDraw.Draw(image).multiline_text((5, 3), text, fill=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def fill(run: RunFolder, outputs: Transcripts) -> None:
    """Writes every artefact before the report into a run folder."""
    scores = sensitivity()
    plan = assignment(scores)
    before = (statistics(), rounding(), scores, page_scores(), plan, pareto(), checkpoint(plan))
    for artifact in (*before, page_set(outputs), outputs):
        run.save(artifact)


def uniform(precision: Precision) -> dict[str, Precision]:
    """Every group in one format, where it is open to it."""
    found = {}
    for group in sensitivity().groups:
        found[group.name] = precision if precision in group.precisions else Precision.BF16
    return found


def report_of(
    run: RunFolder,
    outputs: Transcripts,
    *,
    gate: GateSection | None = None,
    evaluate: EvaluateSection | None = None,
    drafts: Drafts | None = None,
    has_fp8_cache: bool = False,
    arm_groups: dict[str, dict[str, Precision]] | None = None,
) -> Report:
    """Fills a run folder and makes the report, with drawn images."""
    fill(run, outputs)

    def save_images(pages: list[PageTranscripts]) -> dict[str, str]:
        images = {page.page: f"{IMAGE_FOLDER}/{index}.png" for index, page in enumerate(pages)}
        for page in pages:
            draw_page(run.path / images[page.page], page.truth)
        return images

    groups = (
        {"fp8": uniform(Precision.FP8), "nvfp4": uniform(Precision.NVFP4)}
        if arm_groups is None
        else arm_groups
    )
    return build_report(
        run,
        outputs,
        drafts=drafts,
        arm_groups={name: groups.get(name, {}) for name in outputs.arm_names if name != "plan"},
        save_images=save_images,
        evaluate=evaluate or EvaluateSection(num_bootstrap_samples=400),
        gate=gate,
        facts=RunFacts(
            model="pico", recipe_sha256=ZERO, source_bytes=20_000_000, seed=0, has_fp8_cache=has_fp8_cache
        ),
        inputs={"transcripts": sha256_data(outputs.model_dump(mode="json"))},
    )
