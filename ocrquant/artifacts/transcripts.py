"""``transcripts.json``: what every arm read on every held-out page, and how far its logits were from bf16.

Knows texts and sums. Does not know how a model is run, nor how a text is judged: the report is made from this
file, so another threshold or interval costs no second run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ocrquant.artifacts.base import Artifact, FrozenModel
from ocrquant.artifacts.page_set import PageKind, TruthSource
from ocrquant.formats import Precision

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ArmName",
    "ArmTranscript",
    "LinearsRecord",
    "PageTranscripts",
    "RuntimeRecord",
    "Transcripts",
]

ArmName = Literal["bf16", "fp8", "nvfp4", "plan"]


class ArmTranscript(FrozenModel):
    """What one arm made of one page.

    Attributes:
        text: Its greedy, free-running output.
        num_tokens: Tokens of the output, the end token included.
        finished: Whether it ended by itself; False where the token limit cut it off.
        kl_sum: KL divergence from bf16 in nats, summed over the answer tokens of the truth; None where a
            logit of either was NaN or infinite.
        num_kl_tokens: Tokens in that sum.
    """

    text: str
    num_tokens: int = Field(ge=0)
    finished: bool
    kl_sum: float | None
    num_kl_tokens: int = Field(gt=0)


class PageTranscripts(FrozenModel):
    """One held-out page.

    Attributes:
        page: Its id.
        kind: Its kind.
        document: What it was cut from.
        truth: The text to read; the transcription by bf16 where `truth_source` is ``model``.
        truth_source: Where the truth comes from.
        arms: Output of each arm.
    """

    page: str
    kind: PageKind
    document: str
    truth: str
    truth_source: TruthSource
    arms: dict[ArmName, ArmTranscript] = Field(min_length=1)


class LinearsRecord(FrozenModel):
    """Linears of one kind in an arm.

    Attributes:
        stored: Precision of their weights.
        asked: Activations that their scheme asks for.
        reads: Activations that they got.
        count: How many there are.
    """

    stored: Precision
    asked: str
    reads: str
    count: int = Field(gt=0)


class RuntimeRecord(FrozenModel):
    """What computed an arm.

    Attributes:
        device: ``cpu``, or the name of the GPU.
        dtype: Of activations between linears.
        kernels: Of the package's runtime: ``native`` where every op was compiled code, ``reference`` where
            none was. ``simulated``: the modules of `transformers`, with quantized linears simulated in them.
        linears: All linears, by what was asked and what ran.
        kv_cache: Format of keys and values.
    """

    device: str
    dtype: str
    kernels: Literal["native", "reference", "mixed", "simulated"]
    linears: list[LinearsRecord]
    kv_cache: str


class Transcripts(Artifact):
    """All held-out pages, in the order of ``pages.json``.

    Attributes:
        max_new_tokens: Longest answer.
        runtimes: What computed each arm.
        pages: The pages.
    """

    FILE_NAME: ClassVar[str] = "transcripts.json"
    # 2: every arm runs on the runtime and says on what.
    SCHEMA_VERSION: ClassVar[int] = 2
    STAGE: ClassVar[str] = "evaluate"

    max_new_tokens: int = Field(gt=0)
    runtimes: dict[ArmName, RuntimeRecord]
    pages: list[PageTranscripts] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        arms = list(self.pages[0].arms)
        if odd := [page.page for page in self.pages if list(page.arms) != arms]:
            raise ValueError(f"page {odd[0]!r} has other arms than the first")
        if list(self.runtimes) != arms:
            raise ValueError(f"runtimes of {', '.join(self.runtimes)}, pages of {', '.join(arms)}")
        return self

    @property
    def arm_names(self) -> list[ArmName]:
        """The arms, in their order."""
        return list(self.pages[0].arms)

    def to_frame(self) -> pd.DataFrame:
        """One row a page and arm."""
        import pandas as pd

        rows = []
        for page in self.pages:
            head = page.model_dump(exclude={"arms"})
            rows += [{**head, "arm": arm, **output.model_dump()} for arm, output in page.arms.items()]
        return pd.DataFrame(rows)
