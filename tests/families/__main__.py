"""``python -m tests.families``: a tiny model of every family, every stage, every format, as one table."""

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

from ocrquant.artifacts import CheckpointRecord, Report
from tests.families.making import TINY, make_folder
from tests.families.whole_way import FORMATS, go_the_whole_way


def row(name: str, folder: Path) -> tuple[list[str], bool]:
    """What became of a family, format by format, and whether all went well."""
    cells, is_sound, model = [TINY[name].architecture], True, make_folder(name, folder / "model")
    begin = time.perf_counter()
    for number, kind in enumerate(FORMATS):
        try:
            with redirect_stderr(StringIO()):
                export = {"kv_cache": "fp8", "format": kind}
                run = go_the_whole_way(model, folder, adopt=number > 0, export=export)
            report, record = Report.load(run), CheckpointRecord.load(run)
            plan = report.runtimes["plan"]
            cells.append(f"{record.bits_per_weight:.2f} bits, KL {report.arms[-1].overall.mean_kl:.4f}")
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
    wanted = sys.argv[1:] or list(TINY)
    table = Table("family", *FORMATS, "evaluated in", "time", title="check to evaluate, random weights")
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
