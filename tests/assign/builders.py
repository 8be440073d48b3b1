"""Scores and problems made of random numbers, in the shapes that real models have."""

import random

from ocrquant.artifacts import GroupRecord, KvCacheScore, Sensitivity, SensitivityRow
from ocrquant.formats import FORMATS, Precision


def sensitivity_of(scores, *, sizes=None, open_to=None, score="kl", shuffle=None, reasons=None):
    """Scores {group: {precision: mean}} as an artefact; a group is 64 x 64 unless `sizes` says otherwise."""
    names = list(scores)
    if shuffle is not None:
        random.Random(shuffle).shuffle(names)
    groups, rows = [], []
    for name in names:
        out, width = (sizes or {}).get(name, (64, 64))
        precisions = (open_to or {}).get(name, [Precision.BF16, *scores[name]])
        groups.append(
            GroupRecord(
                name=name,
                kind=name.rpartition(".")[2],
                block=None,
                linears=[f"model.{name}"],
                shapes=[(out, width)],
                num_weights=out * width,
                precisions=precisions,
                reason=(reasons or {}).get(name, ""),
            )
        )
        rows += [
            SensitivityRow(
                group=name,
                precision=precision,
                score=score,
                mean=mean,
                standard_error=abs(mean) / 10,
                num_pages=8,
                num_tokens=100,
                bits_per_weight=FORMATS[precision].bits_per_weight,
                weight_bytes=FORMATS[precision].weight_bytes(out, width),
            )
            for precision, mean in scores[name].items()
            if precision in precisions
        ]
    if shuffle is not None:
        random.Random(shuffle + 1).shuffle(rows)
    return Sensitivity(inputs={}, groups=groups, rows=rows)


def with_cache(sensitivity, mean, elements_per_token=1024):
    """The same scores and one of an FP8 cache."""
    score = KvCacheScore(
        precision="fp8",
        mean=mean,
        standard_error=abs(mean) / 10,
        num_pages=8,
        num_tokens=100,
        elements_per_token=elements_per_token,
    )
    return sensitivity.model_copy(update={"kv_cache": [score]})


def random_scores(rng, num_groups, *, with_ties=False):
    """Scores that spread over orders of magnitude, now and then zero, below zero, or equal to another."""
    scores = {}
    for i in range(num_groups):
        nvfp4 = rng.choice([1e-3, 2e-3]) if with_ties else rng.lognormvariate(-7, 1.5)
        fp8 = nvfp4 * (rng.choice([0, 0.5]) if with_ties else rng.lognormvariate(-2.5, 1))
        if rng.random() < 0.1:
            fp8 = -fp8
        scores[f"layers.{i}"] = {Precision.FP8: fp8, Precision.NVFP4: nvfp4}
    return scores


def random_sizes(rng, names):
    return {name: (rng.randrange(1, 12) * 16, rng.randrange(1, 12) * 16) for name in names}
