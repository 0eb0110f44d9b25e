"""Structured Fisher: the parts of Alice, RACS and Shampoo."""

import dataclasses

from examples.study.bench.ablations.form import (
    Ablation,
    Variant,
    around,
    pairs,
    ranking,
)

_ALICE = "alice:last_layer=method"
_UNCOMPENSATED = f"{_ALICE}:compensation=None"

# Here the better of their settings; the others are better when matched.
_OWN = {"racs", "fira", "apollo_svd", "apollo_mini", "galore"}
_TABLE_2 = ranking(
    ("alice", "21.79"),
    ("alice_0", "22.43"),
    ("racs", "22.67"),
    ("fira", "22.73"),
    ("apollo_svd", "22.84"),
    ("apollo_mini", "23.84"),
    ("adamw", "25.03"),
    ("galore", "25.36"),
)

ABLATIONS = (
    Ablation(
        "The methods of the paper",
        "Alice, Table 2: LLaMA 130M on C4, last layer by Adam, perplexity",
        tuple(
            dataclasses.replace(v, setting="own" if v.method in _OWN else v.setting)
            for v in _TABLE_2
        ),
        finding="Each method is in the better of its settings. Fira is ahead of Alice "
        "and RACS here, on *shakespeare* as well, the reverse of the paper. We have "
        "not found the reason. APOLLO-Mini, of rank one, is behind AdamW.",
    ),
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
        (
            Variant("racs", setting="own"),
            Variant("racs:b1=0", "much worse", "racs", setting="own"),
        ),
    ),
    Ablation(
        "Shampoo's roots",
        "",
        around("shampoo:method=eigh", "shampoo", "shampoo:update_interval=10"),
    ),
    Ablation("Mousse's roots", "", around("mousse", "mousse:method=eigh")),
)
