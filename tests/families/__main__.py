"""``python -m tests.families``: every family, check to evaluate and verify, every format, as one table.

Qwen3.5 is the shipped model, the others are tiny ones with random weights.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from ocrquant.adapters import model_folder
from ocrquant.artifacts import Assignment, CheckpointRecord, Report
from ocrquant.verify import Severity, verify_checkpoint
from tests.families.making import TINY, make_folder
from tests.families.whole_way import FORMATS, go_the_whole_way

SHIPPED = "pico"


def verified(run: Path, model: Path) -> str:
    """What `ocrquant verify` says of the checkpoint of a run, held against its model and plan.

    Raises:
        AssertionError: It found an error.
    """
    checkpoint = run / CheckpointRecord.load(run).folder
    found = verify_checkpoint(checkpoint, source=model, plan=Assignment.load(run)).items
    errors = [item for item in found if item.severity is Severity.ERROR]
    assert not errors, f"verify: {errors[0]}"
    return f"verified, {len(found)} notes" if found else "verified"


def row(name: str, folder: Path) -> tuple[list[str], bool]:
    """What became of a family, format by format, and whether all went well."""
    if name == SHIPPED:
        cells, model = ["Qwen3_5ForConditionalGeneration"], model_folder(SHIPPED)
    else:
        cells, model = [TINY[name].architecture], make_folder(name, folder / "model")
    is_sound = True
    begin = time.perf_counter()
    for number, kind in enumerate(FORMATS):
        try:
            with redirect_stderr(StringIO()):
                export = {"kv_cache": "fp8", "format": kind}
                run = go_the_whole_way(model, folder, adopt=number > 0, export=export)
            report, record = Report.load(run), CheckpointRecord.load(run)
            plan = report.runtimes["plan"]
            kl = report.arms[-1].overall.mean_kl
            cells.append(f"{record.bits_per_weight:.2f} bits, KL {kl:.4f}, {verified(run, model)}")
            on = "transformers" if plan.kernels == "simulated" else "the runtime"
        except Exception as error:  # each family is reported, whatever stopped it
            is_sound, on = False, "-"
            cells.append(f"{type(error).__name__}: {error}")
    return [*cells, on, f"{time.perf_counter() - begin:.0f} s"], is_sound


def main() -> int:
    """Prints the table; 1 where some family did not get through."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    wanted = sys.argv[1:] or [SHIPPED, *TINY]
    table = Table("family", *FORMATS, "evaluated in", "time", title="check to evaluate, then verify")
    sound = []
    for name in wanted:
        with tempfile.TemporaryDirectory() as folder:
            cells, is_sound = row(name, Path(folder))
        table.add_row(*cells)
        sound.append(is_sound)
    Console(width=140).print(table)
    return 0 if all(sound) else 1


if __name__ == "__main__":
    sys.exit(main())
