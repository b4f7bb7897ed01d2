"""`python -m bench [NAME…] [--json]`: measures and prints a table; 1 if a figure is not reached."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from bench import append, brokers, consume, groups, maintenance, produce, shell, spark
from bench.measure import Result


def _produce() -> list[Result]:
    return [Result(name, value, required) for name, value, required in produce.run()]


BENCHES: dict[str, Callable[[], list[Result]]] = {
    "append": append.run,
    "produce": _produce,
    "consume": consume.run,
    "groups": groups.run,
    "shell": shell.run,
    "maintenance": maintenance.run,
    "spark": spark.run,
    "brokers": brokers.run,
}


def main(arguments: Sequence[str]) -> int:
    """Run the benches that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.names if name not in BENCHES]
    if unknown:
        parser.error(f"there is no bench {unknown[0]!r}; there are {', '.join(BENCHES)}")
    results: list[Result] = []
    console = Console(stderr=True)
    for name in chosen.names or BENCHES:
        with console.status(f"measuring {name} …"):
            results += BENCHES[name]()
    if chosen.json:
        print(json.dumps([asdict(result) | {"good": result.good} for result in results]))
    else:
        Console().print(_table(results))
    return 0 if all(result.good for result in results) else 1


def _table(results: Sequence[Result]) -> Table:
    table = Table()
    table.add_column("what")
    for title in ("measured", "required"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("detail")
    for result in results:
        bound = "≥" if result.at_least else "≤"
        table.add_row(
            result.name,
            f"{result.value:.2f} {result.unit}",
            f"{bound} {result.required:g} {result.unit}",
            "[green]✓[/]" if result.good else "[red]✗[/]",
            result.detail,
        )
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
