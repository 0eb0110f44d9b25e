"""The command line of a comparison of several optimizers."""

import dataclasses
import json
import re

from rich.console import Console

from examples.pretrain.cli import (
    Parser,
    add_shared,
    adder,
    check,
    model_of,
    opened,
    positive_rate,
    run,
    shared,
)

SEPARATOR = re.compile(r",(?![^({]*[)}])")  # Not inside of brackets.


def main(arguments: list[str] | None = None) -> int:
    """Runs a comparison; returns the exit code."""
    return run(_compare, _parser(), arguments, "start it again to go on")


def _parser():
    parser = Parser(
        prog="python -m examples.study compare", description=_compare.__doc__
    )
    add = adder(parser)
    add(
        "--optimizers",
        "A,B,C",
        None,
        "with options as in muoneq:mode=col; muon@8e-3 has a learning rate of its own; "
        "my_module:make is a function of yours from learning rate to optimizer; `help` "
        "lists all; default: all",
    )
    add("--learning-rates", "A,B,C", "2.5e-3,5e-3,1e-2", "of AdamW; see --sweep")
    parser.add_argument(
        "--sweep",
        choices=("adamw", "all"),
        default="adamw",
        help="adamw: the others run at AdamW's best rate; all: at every rate",
    )
    add("--seeds", "N", 1, "runs at each learning rate", type=int)
    add_shared(add, "runs/compare")
    return parser


def _compare(options):
    """Trains under several optimizers: a table, a page, pictures and JSON."""
    check(options)
    from examples.pretrain.optimizers import OPTIMIZERS, find
    from examples.pretrain.options import listing
    from examples.study.compare import comparison, plot, protocol, table
    from examples.study.report import comparisons, page

    if options.optimizers == "help":
        print(listing(OPTIMIZERS))
        return
    given = SEPARATOR.split(options.optimizers or ",".join(OPTIMIZERS))
    names, own_rates = ["adamw"], {}
    for one in given:
        name, at, rate = one.partition("@")
        find(name)
        names.append(name)
        if at:
            own_rates[name] = positive_rate(rate)
    rates = dict.fromkeys(map(positive_rate, options.learning_rates.split(",")))
    first = opened(options, 0)
    plan = comparison.Comparison(
        model=model_of(options, first.vocab),
        optimizers=tuple(dict.fromkeys(names)),
        own_rates=own_rates,
        learning_rates=tuple(rates),
        sweep=options.sweep,
        seeds=options.seeds,
        **shared(options, first.checksum),
    )
    with _claimed(options.out, plan):
        finished = comparison.Finished(options.out / "finished.jsonl")
        data = lambda seed: opened(options, seed)
        curves = comparison.compare(plan, data, finished)
        rows = protocol.summarize(curves)
        console = Console()
        table.show(plan, rows, console)
        for kind in ("png", "svg", "pdf"):
            plot.draw(curves, rows, options.out / f"curves.{kind}")
        comparison.write_results(options.out / "results.json", plan, curves, rows)
        page.write([comparisons.section(options.out)], options.out / "report.html")
        finished.drop()
    print(f"report in {options.out / 'report.html'}")


def _claimed(out, plan):
    """Refuses a directory that holds another comparison or run."""
    from examples.pretrain.directory import claimed, recorded

    same = json.loads(json.dumps(dataclasses.asdict(plan)))
    hint = "it holds another comparison or run; delete it or choose another --out"
    return claimed(out, same, resume=recorded(out) == same, hint=hint)
