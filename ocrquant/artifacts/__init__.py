"""The files between the stages, and the run folder that holds them.

Knows what a stage file says, how it is written whole or not at all, and when it is up to date. Does not know
how any number in it is found, and imports no stage.
"""

from __future__ import annotations

from ocrquant.artifacts.assignment import (
    Assignment,
    MeasuredKl,
    Pareto,
    ParetoPoint,
    RepairRecord,
    StepRecord,
    Swap,
)
from ocrquant.artifacts.atomic import atomic_folder, atomic_path, write_bytes, write_tensors
from ocrquant.artifacts.base import Artifact, FileRecord, FrozenModel, Producer
from ocrquant.artifacts.checkpoint import CheckpointRecord
from ocrquant.artifacts.digests import DigestCache, sha256_bytes, sha256_data, sha256_file
from ocrquant.artifacts.drafts import DraftMetrics, DraftReport, Drafts, PageDrafts
from ocrquant.artifacts.equivalence import BrokenOutput, Equivalence, MarginTest, Outcome, RiseTest
from ocrquant.artifacts.interval import Interval
from ocrquant.artifacts.page_scores import PageScoreRow, PageScores, ScoredPage
from ocrquant.artifacts.page_set import PageRecord, PageSet
from ocrquant.artifacts.report import (
    ArmReport,
    ChainLink,
    Comparison,
    GateCheck,
    PageOutput,
    Report,
    TextMetrics,
)
from ocrquant.artifacts.resume import Journal, PartialStage
from ocrquant.artifacts.rounding import (
    GroupInput,
    GroupRounding,
    KvScales,
    NormSmoothing,
    RoundedWeights,
    Rounding,
    RoundingStep,
    norm_tensor_name,
    weight_tensor_name,
)
from ocrquant.artifacts.run_folder import RunFolder
from ocrquant.artifacts.sensitivity import (
    GroupRecord,
    GrowthStep,
    KvCacheScore,
    Sensitivity,
    SensitivityRow,
)
from ocrquant.artifacts.statistics import (
    ExpertStatistics,
    KvStatistics,
    LinearStatistics,
    PositionStatistics,
    Statistics,
    tensor_name,
)
from ocrquant.artifacts.transcripts import (
    ArmName,
    ArmTranscript,
    LinearsRecord,
    PageTranscripts,
    RuntimeRecord,
    Transcripts,
)

__all__ = [
    "ArmName",
    "ArmReport",
    "ArmTranscript",
    "Artifact",
    "Assignment",
    "BrokenOutput",
    "ChainLink",
    "CheckpointRecord",
    "Comparison",
    "DigestCache",
    "DraftMetrics",
    "DraftReport",
    "Drafts",
    "Equivalence",
    "ExpertStatistics",
    "FileRecord",
    "FrozenModel",
    "GateCheck",
    "GroupInput",
    "GroupRecord",
    "GroupRounding",
    "GrowthStep",
    "Interval",
    "Journal",
    "KvCacheScore",
    "KvScales",
    "KvStatistics",
    "LinearStatistics",
    "LinearsRecord",
    "MarginTest",
    "MeasuredKl",
    "NormSmoothing",
    "Outcome",
    "PageDrafts",
    "PageOutput",
    "PageRecord",
    "PageScoreRow",
    "PageScores",
    "PageSet",
    "PageTranscripts",
    "Pareto",
    "ParetoPoint",
    "PartialStage",
    "PositionStatistics",
    "Producer",
    "RepairRecord",
    "Report",
    "RiseTest",
    "RoundedWeights",
    "Rounding",
    "RoundingStep",
    "RunFolder",
    "RuntimeRecord",
    "ScoredPage",
    "Sensitivity",
    "SensitivityRow",
    "Statistics",
    "StepRecord",
    "Swap",
    "TextMetrics",
    "Transcripts",
    "atomic_folder",
    "atomic_path",
    "norm_tensor_name",
    "sha256_bytes",
    "sha256_data",
    "sha256_file",
    "tensor_name",
    "weight_tensor_name",
    "write_bytes",
    "write_tensors",
]
