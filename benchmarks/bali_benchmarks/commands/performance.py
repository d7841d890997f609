"""The measurements of docs/performance.md, as commands of `bali-benchmarks`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

Lines = Annotated[Path, typer.Option(help="JSON lines of all these measurements; what is there already is not run again.")]
Page = Annotated[Path, typer.Option(help="The page made from them.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of torch.", show_default="1, or torch's own choice for `peers`")
]
Again = Annotated[bool, typer.Option("--again", help="Measure again what is in the file already.")]

#: By name, the measurements of docs/performance.md.
PERFORMANCE = {
    "step": "A step of `bali.fit` over a step of Adam, on networks of many kinds (20 minutes).",
    "widths": "How a step grows with the width of the layers (20 minutes).",
    "memory": "The most memory that a step of `bali.fit` and one of Adam hold, at many sizes (10 minutes).",
    "arrival": "Seconds until validation rows of MNIST are as likely as Adam makes them at best (5 minutes).",
    "predict": "A prediction over as many plain forward passes (5 minutes).",
    "members": "Twenty small networks at once, and the arithmetic they need (a minute).",
    "peers": "BALI beside other Bayesian networks; needs the extra `peers` (10 minutes).",
    "distributed": "A step by one, two and four processes of one thread each, and what a cost model says (a minute).",
}


def _performance(names: Sequence[str]) -> Callable[..., None]:
    def command(
        out: Lines = Path("results/performance.jsonl"),
        page: Page = Path("docs/performance.md"),
        threads: Threads = None,
        again: Again = False,
    ) -> None:
        from bali_benchmarks.datasets import DataError
        from bali_benchmarks.performance import performance_page as pages
        from bali_benchmarks.performance.peer_trainings import MissingPeerError
        from bali_benchmarks.performance.performance_runs import run

        for name in names:
            try:
                lines = run(name, out, page, threads=threads, again=again)
            except (DataError, MissingPeerError, OSError) as error:
                typer.echo(f"error: {error}", err=True)
                raise typer.Exit(1) from error
            typer.echo(pages.to_markdown(lines))
            for line in lines:
                typer.echo(json.dumps(line))

    return command


def add_performance(bench: typer.Typer) -> None:
    """A command for each of the measurements, and one for all of them."""
    for name, meaning in PERFORMANCE.items():
        bench.command(name, help=meaning)(_performance([name]))
    bench.command("performance", help=f"All of {', '.join(PERFORMANCE)}.")(_performance(list(PERFORMANCE)))
