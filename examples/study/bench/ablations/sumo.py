"""SUMO: polar factors, rank, side, momentum, and interval."""

from examples.study.bench.ablations.form import Ablation, around, pairs

ABLATIONS = (
    Ablation(
        "Exact polar factors in SUMO",
        "SUMO, Tables 2 and 6, Figure 2: fine-tuning of RoBERTa and LLaMA",
        pairs(
            ("sumo", "sumo:polar=newton_schulz"),
            ("sumo", "galore"),
            ("sumo:rank=0.0625", "sumo:rank=0.0625:polar=newton_schulz"),
            ("sumo:rank=0.0625", "galore:rank=0.0625"),
        ),
        finding="Exact and approximate factors are level here. GaLore is ahead of SUMO "
        "on this task only (the tables of the three tasks, matched). The next table "
        "shows why: SUMO projects the longer side of a matrix, so that the same rank "
        "keeps a smaller share of it, and it averages over more steps. With GaLore's "
        "side and momentum SUMO is ahead. With four times the steps GaLore stays ahead "
        "at rank 1/4. At 1/16 the gap is nearly as large as before, and its interval "
        "is wider.",
    ),
    Ablation(
        "SUMO and GaLore",
        "",
        around(
            "galore",
            "sumo",
            "sumo:side=short",
            "sumo:b1=0.9",
            "sumo:side=short:b1=0.9",
        ),
    ),
    Ablation(
        "Interval of SUMO's subspaces",
        "",
        around("sumo", *(f"sumo:update_interval={count}" for count in (100, 50, 10))),
    ),
)
