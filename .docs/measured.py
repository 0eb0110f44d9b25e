"""What the committed runs say on the page of a method. It needs no Sphinx."""

import charts
import runs
from rst import title

from examples.study.bench import spectra

NOT_YET = "Not run yet: ``python -m examples.study bench {}``."


def losses(name: str) -> list[str]:
    """Curves, losses and rates of the study."""
    table = runs.of_study(name)
    if not table.rows:
        return [title("In the study", "-"), NOT_YET.format("run books"), ""]
    lines = [title("In the study", "-")]
    if drawn := charts.curves(name):
        lines += [".. raw:: html", "", f"   {drawn}", ""]
    return [
        *lines,
        "Means over five seeds, each method at its best rate; losses are those of the",
        "end. *own* is the recipe as it stands, *matched* has updates of AdamW's size",
        "(:doc:`protocol </results/protocol>`). The AdamW of one rate is not the best",
        "AdamW; where it was tuned, that is the dashed line.",
        table.rst(),
    ]


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
