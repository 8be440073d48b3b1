"""The command of the plan, which a recipe and a run folder answer alike.

Knows options; holds no logic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ocrquant.cli.options import Overrides, reported

__all__ = ["assign"]


@reported
def assign(
    source: Annotated[Path, typer.Argument(metavar="RECIPE|RUN", help="YAML recipe, or a run folder.")],
    overrides: Overrides = None,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Of a recipe: auto, cpu, cuda or cuda:N.")
    ] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Of a recipe: go on in a run folder of another one.")
    ] = False,
    bits: Annotated[float | None, typer.Option(help="Budget: bits a weight.")] = None,
    num_bytes: Annotated[int | None, typer.Option("--bytes", help="Budget: bytes of the weights.")] = None,
    max_kl: Annotated[float | None, typer.Option(help="Budget: predicted KL, nats a token.")] = None,
    step_us: Annotated[float | None, typer.Option(help="Budget: us of a step on assign.target.")] = None,
    layer: Annotated[
        str | None, typer.Option("--explain", metavar="LAYER", help="Say in words why it has its format.")
    ] = None,
    toolkit: Annotated[
        Literal["llm-compressor", "modelopt"] | None,
        typer.Option("--as", help="Of a run folder: print the plan as a recipe of another toolkit, no more."),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Put the plan into the run folder; a recipe always does.")
    ] = False,
) -> None:
    """Run a recipe up to its plan; of a run folder, say what another budget gives. Scores nothing again."""
    from ocrquant.assign.replan import budget_override, explain_run, refuse_for_run, replan

    limits = {"bits_per_weight": bits, "weight_bytes": num_bytes, "max_kl": max_kl, "step_us": step_us}
    given = [*(overrides or ()), *budget_override(limits, overrides or ())]
    if toolkit is not None:
        from ocrquant.pipeline.native import plan_as, refuse_with_as

        refuse_with_as(
            {"--write": write, "--explain": layer, "--device": device, "--adopt": adopt},
        )
        print(plan_as(source, given, toolkit), end="")
        return
    if source.is_dir():
        refuse_for_run({"--device": device is not None, "--adopt": adopt}, overrides or ())
        print(replan(source, given, layer=layer))
    else:
        from ocrquant.pipeline import run_recipe
        from ocrquant.recipe import load_recipe

        run_recipe(load_recipe(source, given), device=device, adopt=adopt, until="assign")
    if write and source.is_dir():
        from ocrquant.pipeline.adopt import write_plan

        print(write_plan(source, given))
    if layer is not None and not source.is_dir():
        print(explain_run(source, given, layer))
