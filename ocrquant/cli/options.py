"""Options that several commands share, and how their errors end a process.

Knows names, help texts and exit codes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from ocrquant.errors import OcrQuantError

__all__ = ["Adopt", "Device", "Generic", "Overrides", "RecipeFile", "RecipeOrRun", "Server", "reported"]

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="YAML recipe; see recipes/README.md.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of the recipe; may be repeated."),
]
Device = Annotated[str | None, typer.Option(metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")]
Server = Annotated[
    str | None,
    typer.Option(metavar="SERVER", help="Who will read it: vllm, sglang or tensorrt-llm, also ==VERSION."),
]
Adopt = Annotated[
    bool, typer.Option("--adopt", help="Go on in a run folder of another recipe: redo what differs.")
]
Generic = Annotated[
    bool,
    typer.Option("--allow-generic", help="Guess the structure of an architecture that is not known."),
]
RecipeOrRun = Annotated[Path, typer.Argument(metavar="RECIPE", help="YAML recipe, or a run folder.")]


def reported(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn an `OcrQuantError` into its one line on stderr and its exit code.

    Of several processes that share a run all have the error, and the first one prints it.
    """

    @wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        from ocrquant.distributed import is_first_process
        from ocrquant.env import check_environment

        try:
            check_environment()
            return command(*args, **kwargs)
        except OcrQuantError as error:
            if is_first_process():
                print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            if is_first_process():
                print("interrupted; run the same command again to go on", file=sys.stderr)
            raise typer.Exit(130) from None

    return wrapper
