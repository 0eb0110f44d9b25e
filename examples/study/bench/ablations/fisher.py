"""Structured Fisher: the parts of Alice, RACS and Shampoo."""

from examples.study.bench.ablations.form import (
    Ablation,
    Variant,
    around,
    pairs,
    ranking,
)

_ALICE = "alice:last_layer=method"
_UNCOMPENSATED = f"{_ALICE}:compensation=None"

ABLATIONS = (
    Ablation(
        "Parts of Alice",
        "Alice, Table 5: LLaMA 130M on C4, perplexity",
        ranking(
            (_ALICE, "21.95"),
            (_UNCOMPENSATED, "25.11"),
            (f"{_UNCOMPENSATED}:switch=none:b3=0", "26.96"),
            (f"{_UNCOMPENSATED}:switch=none", "27.35"),
        ),
    ),
    Ablation(
        "Tracking without compensation",
        "Alice, Figure 5 (a): LLaMA 130M on C4",
        ranking(
            (_UNCOMPENSATED, ""),
            (f"{_UNCOMPENSATED}:b3=0", ""),
        ),
        finding="Tracking averages over `b3=0.999`, 1000 steps, more than the run has; "
        "without it `b3` is 0. Neither that memory nor the number of subspaces is the "
        "reason: tracking is behind or level with shorter intervals, in the next "
        "table, and behind with four times the steps. We have not found the reason; "
        "scale is the main difference left: rank 24 (12 for keys and values) and at "
        "most 1600 steps here, rank 256 and 20,000 steps in the paper.",
    ),
    Ablation(
        "Tracking over shorter intervals",
        "",
        pairs(
            *(
                (f"{_UNCOMPENSATED}{interval}", f"{_UNCOMPENSATED}{interval}:b3=0")
                for interval in ("", ":update_interval=50", ":update_interval=20")
            )
        ),
    ),
    Ablation(
        "Switching",
        "Alice, Figure 5 (b): LLaMA 130M on C4",
        around(
            _ALICE,
            f"{_ALICE}:switch=full_basis",
            f"{_ALICE}:switch=gaussian_mix",
            f"{_ALICE}:switch=gaussian",
        ),
    ),
    Ablation(
        "Compensation",
        "Alice, Figure 5 (c): LLaMA 130M on C4",
        ranking(
            (_ALICE, ""),
            (f"{_ALICE}:compensation=fira_plus", ""),
            (f"{_ALICE}:compensation=fira", ""),
            (_UNCOMPENSATED, ""),
        ),
    ),
    Ablation(
        "Last layer",
        "Alice, Table 2 and Figure 5 (d): LLaMA 130M on C4, perplexity",
        (
            Variant("galore", "25.36"),
            Variant("galore:last_layer=method", "27.18", "galore"),
            Variant("fira", "22.73"),
            Variant("fira:last_layer=method", "25.21", "fira"),
            Variant("alice", "21.79"),
            Variant(_ALICE, "21.95", "alice"),
        ),
    ),
    Ablation(
        "Averages of RACS",
        "RACS, Figure 5 (e): LLaMA 130M on C4",
        (Variant("racs"), Variant("racs:b1=0", "much worse", "racs")),
    ),
    Ablation(
        "Shampoo's roots",
        "",
        around("shampoo:method=eigh", "shampoo", "shampoo:update_interval=10"),
    ),
    Ablation("Mousse's roots", "", around("mousse", "mousse:method=eigh")),
)
