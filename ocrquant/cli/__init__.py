"""The command line: arguments to a recipe, a recipe to one pipeline function, errors to exit codes.

Knows options and exit codes; holds no logic. Heavy modules are imported inside the commands, so that `--help`
is quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ocrquant import __version__
from ocrquant.cli.checkpoints import inspect, verify
from ocrquant.cli.doctor import doctor
from ocrquant.cli.drafter import drafter_app
from ocrquant.cli.options import Adopt, Device, Generic, Overrides, RecipeFile, RecipeOrRun, Server, reported
from ocrquant.cli.planning import assign

app = typer.Typer(
    name="ocrquant",
    help="Mixed-precision NVFP4/FP8 quantization of document-parsing models, measured on your own pages.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
pages_app = typer.Typer(help="Make pages out of your own documents.", no_args_is_help=True)
app.add_typer(pages_app, name="pages")
recipe_app = typer.Typer(help="Look at recipes as they are resolved.", no_args_is_help=True)
app.add_typer(recipe_app, name="recipe")
app.add_typer(drafter_app, name="drafter")


def _print_version(value: bool) -> None:
    if value:
        print(f"ocrquant {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the whole program."""


def _load(
    recipe: Path, overrides: list[str] | None, target: str | None, *, allow_generic: bool = False
) -> Any:
    from ocrquant.recipe import load_recipe

    options = [] if target is None else [f"export.target={target}"]
    options += ["model.allow_generic=true"] if allow_generic else []
    return load_recipe(recipe, [*(overrides or ()), *options])


@app.command()
@reported
def check(
    recipe: RecipeFile,
    overrides: Overrides = None,
    target: Server = None,
    device: Device = None,
    allow_generic: Generic = False,
) -> None:
    """Refuse whatever would fail later, reading only configs, tensor headers and page headers."""
    from ocrquant.pipeline import check_recipe

    found = _load(recipe, overrides, target, allow_generic=allow_generic)
    print(check_recipe(found, device=device).render())


@app.command()
@reported
def calibrate(
    recipe: RecipeFile,
    overrides: Overrides = None,
    target: Server = None,
    device: Device = None,
    adopt: Adopt = False,
    until: Annotated[
        str,
        typer.Option(
            metavar="STAGE", help="Stop after pages, statistics, rounding, sensitivity, assign or export."
        ),
    ] = "evaluate",
    allow_generic: Generic = False,
) -> None:
    """The whole way: pages and a model to a smaller checkpoint and a report. Resumes where it was stopped."""
    from ocrquant.pipeline import run_recipe

    found = _load(recipe, overrides, target, allow_generic=allow_generic)
    run_recipe(found, device=device, adopt=adopt, until=until)


def _stage_command(stage: str, text: str) -> None:
    @app.command(name=stage, help=text)
    @reported
    def command(
        recipe: RecipeFile,
        overrides: Overrides = None,
        target: Server = None,
        device: Device = None,
        adopt: Adopt = False,
        allow_generic: Generic = False,
    ) -> None:
        calibrate(recipe, overrides, target, device, adopt, stage, allow_generic)


for _stage, _text in {
    "statistics": "Run up to the activation statistics.",
    "rounding": "Run up to the rounded weights of every group in every format.",
    "sensitivity": "Run up to the scores of every group in every format.",
    "export": "Run up to the checkpoint.",
    "evaluate": "Run up to the report.",
}.items():
    _stage_command(_stage, _text)


@app.command("export-as")
@reported
def export_as(
    checkpoint: Annotated[Path, typer.Argument(help="Folder that was exported.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.")],
    target: Server = None,
    file_format: Annotated[
        str | None, typer.Option("--format", help="compressed-tensors or modelopt; else that of the target.")
    ] = None,
) -> None:
    """Write an exported checkpoint again for another server; no weight changes, and no run is needed."""
    from ocrquant.export import Target, convert_checkpoint

    server = None if target is None else Target.parse(target)
    print(convert_checkpoint(checkpoint, out, target=server, file_format=file_format).name)


app.command()(assign)
for _command in (inspect, verify, doctor):
    app.command()(_command)


@app.command()
@reported
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder with a finished evaluation.")],
) -> None:
    """Write report.md and report.html again from what a run folder holds, with the time of each stage."""
    from ocrquant.evaluate import write_report

    for path in write_report(run, with_timings=True):
        print(path)


@app.command()
@reported
def run(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Folder of a checkpoint, or pico, which ships.")
    ],
    pages: Annotated[
        list[str], typer.Argument(metavar="PAGES...", help="Images, PDFs, folders, or patterns in quotes.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the texts.")],
    kind: Annotated[
        Literal["line", "block", "page"] | None,
        typer.Option(help="Of all pages; else metadata.jsonl beside them says it, else page."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Instruction in place of the model's own.")
    ] = None,
    requests: Annotated[int, typer.Option(help="Most pages that are read at once.")] = 8,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of a page; else what --max-length has room for.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Probability mass to draw from.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draws, the same for every page.")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Ends a text; may be repeated.")
    ] = None,
    stop_at_loop: Annotated[
        bool, typer.Option(help="End a text that repeats one phrase over and over.")
    ] = True,
    device: Device = None,
    dtype: Annotated[Literal["bf16", "fp32", "fp64"], typer.Option(help="Of activations.")] = "bf16",
    activations: Annotated[
        Literal["quantized", "plain"], typer.Option(help="As the checkpoint asks, or in --dtype.")
    ] = "quantized",
    state: Annotated[
        Literal["native", "replay"], typer.Option(help="How recurrent states are kept.")
    ] = "native",
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens of a page and its text together, 4096 by default.")
    ] = None,
    prefix_cache: Annotated[
        int, typer.Option(metavar="MIB", help="Memory for beginnings that pages share.")
    ] = 0,
    workers: Annotated[
        int | None, typer.Option(help="Processes that open pages; 0 for none. Chosen by cores.")
    ] = None,
    dpi: Annotated[int, typer.Option(help="Resolution of PDF pages.")] = 150,
    force: Annotated[bool, typer.Option("--force", help="Read again what is up to date.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say first which kernels run.")] = False,
    speculation: Annotated[
        Literal["off", "ngram", "drafter"], typer.Option(help="What guesses tokens; texts are the same.")
    ] = "off",
    drafter: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For --speculation drafter; pico-dflash2 ships.")
    ] = None,
    window: Annotated[int | None, typer.Option(help="Rows of a page in a step; else as measured.")] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Say what guessing brought.")] = False,
) -> None:
    """Read pages with a checkpoint, one text file a page. Resumes where it was stopped."""
    options = {key: value for key, value in locals().items() if key not in ("checkpoint", "pages")}
    from ocrquant.run import RunOptions, run_pages

    options |= {"stop": tuple(stop or ()), "prefix_cache_mib": options.pop("prefix_cache")}
    summary = run_pages(checkpoint, pages, RunOptions(**options))
    print(summary.line())
    summary.raise_if_failed()


def _print_benchmarks(value: bool) -> None:
    if value:
        from ocrquant.bench.registry import BENCHMARKS

        width = max(map(len, BENCHMARKS))
        print("\n".join(f"{name:<{width}}  {entry.summary}" for name, entry in BENCHMARKS.items()))
        raise typer.Exit


@app.command()
@reported
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which one; --list shows them.")],
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace a setting of it; may be repeated."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Exported checkpoint to measure; short for --set checkpoint=DIR."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="MACHINE", help="b200, h200, ...; short for --set target=MACHINE.")
    ] = None,
    acceptance: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="A step's, or a file; short for --set acceptance=...")
    ] = None,
    context: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Of each request; short for --set context=TOKENS.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Of each arm, 12 by default; fewer are marked as too few.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the result here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in place of a table.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Also keep it in ocrquant/bench/results.")] = False,
    listing: Annotated[
        bool, typer.Option("--list", callback=_print_benchmarks, is_eager=True, help="Show all benchmarks.")
    ] = False,
) -> None:
    """Measure one thing on this machine, arms interleaved; prints JSON or a table last."""
    from ocrquant.bench.run import run_benchmark

    short = {"checkpoint": checkpoint, "target": target, "acceptance": acceptance, "context": context}
    given = [f"{key}={value}" for key, value in short.items() if value is not None]
    run_benchmark(name, [*(assignments or ()), *given], repeats=repeats, out=out, keep=keep, as_json=as_json)


@pages_app.command("make")
@reported
def make(
    pdfs: Annotated[
        list[Path], typer.Argument(metavar="PDF...", help="Born-digital PDFs, or folders of them.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="New folder for images and metadata.jsonl.")
    ],
    dpi: Annotated[
        list[int] | None, typer.Option(help="Resolution to draw from; may be repeated (96, 120, 150).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the choice of crops and resolutions.")] = 0,
    max_crops: Annotated[int, typer.Option(help="Most crops to write.")] = 1000,
) -> None:
    """Cut line and block crops with exact text out of your own PDFs."""
    import json
    from dataclasses import asdict

    from ocrquant.pages.make import DEFAULT_DPIS, make_pages

    summary = make_pages(pdfs, out, dpis=dpi or DEFAULT_DPIS, seed=seed, max_crops=max_crops)
    print(json.dumps(asdict(summary), indent=1))


@recipe_app.command("show")
@reported
def recipe_show(recipe: RecipeOrRun, overrides: Overrides = None) -> None:
    """Print a recipe with everything that it imports and every default filled in."""
    from ocrquant.recipe import load_recipe

    print(load_recipe(recipe, overrides or ()).to_yaml(), end="")


@recipe_app.command("diff")
@reported
def recipe_diff(old: RecipeOrRun, new: RecipeOrRun) -> None:
    """Print the values in which two resolved recipes differ; ends with 1 if there are any, as diff does."""
    from ocrquant.recipe import load_recipe, recipe_differences

    found = recipe_differences(load_recipe(old), load_recipe(new))
    print("".join(f"{difference}\n" for difference in found), end="")
    if found:
        raise typer.Exit(1)
