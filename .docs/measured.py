"""What the committed runs say on the page of a method. It needs no Sphinx."""

import charts
import runs
from rst import title

from examples.study.bench import spectra

NOT_YET = "Not run yet: ``python -m examples.study bench {}``."


def losses(name: str) -> list[str]:
    """The method against a tuned AdamW, with equal budgets."""
    table = runs.of_equal_budgets(name)
    if not table.rows:
        return [
            title("Against a tuned AdamW", "-"),
            "This method is not in the :doc:`comparison with equal budgets",
            "</results/equal>`. The first study, below, compares it with an AdamW that",
            "was not tuned as well.",
            "",
        ]
    return [
        title("Against a tuned AdamW", "-"),
        ".. raw:: html",
        "",
        f"   {charts.against_tuned(name)}",
        "",
        "The charts show the shortest runs, as means over five seeds. The table has",
        "the difference in test loss with its 95% interval (five seeds). If the method",
        "reaches the final loss of AdamW, the speedup follows: how many times as many",
        "steps AdamW needs for that loss. Both had :doc:`equal budgets",
        "</results/equal>`.",
        table.rst(),
    ]


def first_study(name: str) -> list[str]:
    """Curves, losses and rates of the first study, whose AdamW has one rate."""
    heading = title("Appendix: the first study", "-")
    table = runs.of_study(name)
    if not table.rows:
        return [heading, NOT_YET.format("run books"), ""]
    lines = [
        heading,
        "Here AdamW has one rate for the whole model. It was not tuned as well as it",
        "could be, so the speedups are larger than those over a tuned AdamW. The",
        "dashed line is a tuned AdamW, where there is one. All numbers are means over",
        "five seeds, with each method at its best rate. Losses are final losses. *own*",
        "is the recipe with its defaults; *matched* has updates as large as those of",
        "AdamW (:doc:`protocol </results/protocol>`).",
        "",
    ]
    if drawn := charts.curves(name):
        lines += [".. raw:: html", "", f"   {drawn}", ""]
    return [*lines, table.rst()]


def spectrum(name: str) -> list[str]:
    """Singular values of one kernel."""
    if name not in runs.spectra():
        return [title("Spectrum", "-"), NOT_YET.format("spectra"), ""]
    c, kernel = runs.spectra()[name].config, "/".join(map(str, spectra.KERNEL[:-1]))
    return [
        title("Spectrum", "-"),
        ".. raw:: html",
        "",
        f"   {charts.spectra(name)}",
        "",
        f"Singular values of the kernel ``{kernel}`` in one run on *{c.task}*:",
        f"{c.steps} steps at the learning rate {c.rate:.2g} (*{c.setting}*), without",
        "weight decay. Those of the last update, of the gradient behind it and of the",
        "change since the start are divided by their largest one",
        f"(``{spectra.COMMAND}``).",
        "",
    ]
