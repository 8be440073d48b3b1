"""``python -m tests.consumers [FAMILY ...]``: what vLLM and transformers read in our checkpoints, as a table.

``--python`` names the interpreter of vLLM's environment; `make consumers` builds one. Ends with 1 where a
checkpoint is read otherwise than it was meant, or a planted fault passes unseen.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from transformers.utils import logging

from tests.consumers import by_transformers
from tests.consumers.comparing import Comparison, compare, faults
from tests.consumers.making import PLANS, Family, make_family
from tests.families.making import TINY

READER = Path(__file__).with_name("reading.py")
FAMILIES = ("qwen3_5", *TINY)


# Run through transformers, whose processors of these models cannot tell how long an image is.
_NO_LENGTHS = "has no attribute '_get_num_multimodal_tokens'"
UNREAD_PROMPTS: Mapping[str, Mapping[str, str]] = {
    "got_ocr2": {"image": _NO_LENGTHS},
    "deepseek_ocr2": {"image": _NO_LENGTHS},
}
"""Family -> prompts that vLLM 0.32 on a CPU cannot read even in bf16, with a part of what it says.

As with the next table, asked anew in every run: what it learns to read has to be taken off the list.
"""

SPARSE = ("qwen3_5_moe", "qwen3_vl_moe", "deepseek_ocr2")
UNREAD: Mapping[tuple[str, str], str] = {
    **{(name, "vllm: fp8-compressed-tensors"): "Unsupported FP8 MoE backend" for name in SPARSE},
    # Experts are parts of one tensor there: those of NVFP4 find no place in it, and of Qwen3-VL none do.
    **{
        (name, f"transformers: {plan}-compressed-tensors"): "_keys: model."
        for name in SPARSE
        for plan in PLANS
        if plan != "fp8" or name == "qwen3_vl_moe"
    },
    ("deepseek_ocr2", "transformers: mixed-compressed-tensors"): "automatic conversion of the weights",
}
"""Family and checkpoint that a reader cannot load, with a part of what it says."""

WIDER: Mapping[tuple[str, str], float] = {
    (name, "transformers: fp8-compressed-tensors"): 2.0 for name in ("qwen3_5_moe", "deepseek_ocr2")
}
"""What limits of linears are multiplied with: compressed-tensors 0.19 scales inputs of two axes, as those of
MLPs in sparse layers, element by element, which leaves them as they are; measured: 0.037.
"""


def read_by_vllm(python: str, jobs: list[dict[str, Any]], folder: Path) -> None:
    """Runs the reader in vLLM's environment; what it says goes into a file."""
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    command = [str(Path(python).absolute()), str(READER), str(folder / "jobs.json"), str(folder / "vllm")]
    with (folder / "vllm.log").open("w", encoding="utf-8") as log:
        subprocess.run(command, stdout=log, stderr=log, cwd=folder, check=False)


def last_words(folder: Path, job: dict[str, Any]) -> str:
    """What a reader said when it stopped at a checkpoint."""
    error = folder / f"{job['name']}.error"
    return error.read_text(encoding="utf-8").strip().splitlines()[-1] if error.exists() else "no answer"


def judged(family: Family, job: dict[str, Any], reader: str) -> Iterator[tuple[list[str], bool]]:
    """A line of the table a prompt, and whether it is as it should be."""
    answers = family.folder / reader / f"{job['name']}.safetensors"
    wanted = UNREAD.get((family.name, f"{reader}: {job['name']}"), "" if "refused" in job else None)
    if wanted is not None or not answers.exists():
        said = "it was read" if answers.exists() else last_words(family.folder / reader, job)
        is_known = wanted is not None and not answers.exists() and wanted in said
        verdict = (
            f"refused by --target vllm, and not read: {said}" if "refused" in job else f"skipped: {said}"
        )
        yield [family.name, reader, job["name"], "-", *[""] * 5, verdict if is_known else said], is_known
        return
    read, linears = load_file(answers), family.linears(job["plan"])
    for prompt in (item["name"] for item in job["prompts"]):
        result = compare(read, family.expected[job["plan"]], family.expected["bf16"], prompt, linears)
        yield line(family.name, reader, job, prompt, result)


def line(
    family: str, reader: str, job: dict[str, Any], prompt: str, result: Comparison
) -> tuple[list[str], bool]:
    """Cells of one comparison; a planted fault has to be seen."""
    wider = WIDER.get((family, f"{reader}: {job['name']}"), 1.0)
    planted, seen = "corruption" in job, ", ".join(faults(result, job["plan"], wider))
    is_good = bool(seen) == planted
    verdict = (f"caught: {seen}" if seen else "NOT CAUGHT") if planted else seen or "as meant"
    cells = [
        f"{result.kl:.1e}",
        f"{result.own_kl:.1e}",
        f"{result.max_difference:.3f}",
        f"{result.worst_linear[1]:.1e}",
        result.answer,
    ]
    return [family, reader, job["name"], prompt, *cells, verdict], is_good


def family_lines(name: str, python: str, folder: Path) -> Iterator[tuple[list[str], bool]]:
    """A tiny model in every plan and format, read by vLLM and, where that can be, by transformers."""
    with redirect_stderr(StringIO()):
        family, jobs = make_family(name, folder)
    unread = UNREAD_PROMPTS.get(name, {})
    readable = [item for item in jobs[0]["prompts"] if item["name"] not in unread]
    read = [{**job, "prompts": readable} for job in jobs if readable]
    stopped = [{**jobs[0], "name": f"bf16, {prompt}"} for prompt in unread]
    read_by_vllm(python, [*read, *stopped], folder)
    for job in read:
        yield from judged(family, job, "vllm")
    for job, (prompt, says) in zip(stopped, unread.items(), strict=True):
        said = last_words(folder / "vllm", job)
        verdict = "skipped" if says in said else f"expected {says}"
        yield [name, "vllm", "bf16", prompt, *[""] * 5, f"{verdict}: {said}"], says in said
    with redirect_stderr(StringIO()):
        read_here = by_transformers.read_all(family, jobs)
    for job in read_here:
        yield from judged(family, job, "transformers")


def main() -> int:
    """Prints the table; 1 where something is not as it should be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", default=list(FAMILIES), help=f"of {', '.join(FAMILIES)}")
    parser.add_argument("--python", default=".venv-consumers/bin/python")
    parser.add_argument("--keep", type=Path, help="folder for everything that is made")
    options = parser.parse_args()
    if odd := set(options.families) - set(FAMILIES):
        parser.error(f"no such family: {', '.join(sorted(odd))}")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    heads = ("family", "reader", "checkpoint", "prompt", "KL", "plan's own", "max|dlogp|", "linear")
    table = Table(*heads, "answer", "verdict", title="what other programs read in our checkpoints")
    sound = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.families:
            folder = (options.keep or Path(temporary)).absolute() / name
            lines = list(family_lines(name, options.python, folder))
            for cells, is_good in lines:
                table.add_row(*cells, style="" if is_good else "red")
            sound += [is_good for _, is_good in lines]
            # The table comes when all are done.
            num_bad = sum(not is_good for _, is_good in lines)
            print(f"{name}: {len(lines)} lines, {num_bad} not as meant", file=sys.stderr, flush=True)
    Console(width=190).print(table)
    return 0 if sound and all(sound) else 1


if __name__ == "__main__":
    sys.exit(main())
