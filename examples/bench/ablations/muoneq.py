"""MuonEq: its modes, Newton-Schulz, momentum, and the methods beside it."""

from examples.bench.ablations.form import Ablation, around, mapped, pairs, ranking


def _steps(method: str, count: int) -> str:
    return method if count == 5 else f"{method}:polar=newton_schulz(steps={count})"


def _table(method: str, name: str) -> str:
    return f"{method}:polar=newton_schulz(coefficients={name})"


def _momentum(method: str, b1: float) -> str:
    return method if b1 == 0.95 else f"{method}:b1={b1}"


COEFFICIENTS = Ablation(
    "Coefficients of Newton-Schulz",
    "Polar Express, arXiv 2505.16932: GPT-2 on FineWeb",
    pairs(
        *(
            (_table(method, "POLAR_EXPRESS"), other)
            for method in ("muon", "muoneq")
            for other in (method, _table(method, "YOU"))
        )
    ),
    finding="For Muon the default coefficients are ahead, and the interval nearly "
    "contains zero. With four times the steps, and for MuonEq, they are level with "
    "Polar Express's. The next table shows that a more accurate polar factor does not "
    "help here: the exact one is level.",
)
ABLATIONS = (
    Ablation(
        "Modes of MuonEq",
        "MuonEq, Table 3: GPT-2 small on FineWeb, perplexity",
        ranking(
            ("muoneq", "24.88"),
            ("muoneq:mode=rowcol", "24.94"),
            ("adamuon", "24.99"),
            ("muon_plus", "25.12"),
            ("mousse", "25.16"),
            ("muon", "25.23"),
            ("muoneq:mode=col", "25.23"),
            ("adamw", "26.48"),
        ),
        finding="The sign before the polar factor, which AdaMuon's second version has, "
        "puts it behind Muon. The first version, in the next table, is ahead of Muon "
        "and level with Muon+. Rows and columns stay ahead of rows alone with four "
        "times the steps and in the search, and columns ahead of Mousse with four "
        "times the steps, so that scale is the reason left. The paper's gaps are "
        "small, too: 0.003 in the loss, or less.",
    ),
    Ablation(
        "AdaMuon's two versions",
        "",
        around(
            "adamuon:variant=unsigned",
            "muoneq",
            "muon_plus",
            "muon",
            "adamuon:b2=0.999",
            "adamuon",
        ),
    ),
    Ablation(
        "MuonEq with and without Nesterov's momentum",
        "MuonEq, Table 1: LLaMA 130M on C4, perplexity",
        ranking(
            ("muoneq", "19.56"),
            ("muoneq:nesterov=False", "19.96"),
            ("mars_adamw", "20.03"),
            ("muon", "20.18"),
            ("muon:nesterov=False", "20.52"),
            ("adamw", "21.35"),
        ),
        finding="MARS's betas (0.95 and 0.99) are too slow for 400 steps: in the next "
        "table they are far behind AdamW's where neither has variance reduction. With "
        "AdamW's betas, MARS is level with AdamW, and still far behind Muon. With four "
        "times the steps the gap is less than half.",
    ),
    Ablation(
        "Parts of MARS",
        "",
        around(
            "adamw",
            "mars_adamw",
            "mars_adamw:b1=0.9:b2=0.95",
            "mars_adamw:gamma=0",
            "mars_adamw:gamma=0:b1=0.9:b2=0.95",
        ),
    ),
    COEFFICIENTS,
    Ablation(
        "Accuracy of the polar factor",
        "",
        around(
            "muon",
            _table("muon", "POLAR_EXPRESS"),
            "muon:polar=polar_svd",
        ),
    ),
    Ablation(
        "Steps of Newton-Schulz",
        "MuonEq, Figure 4 (a): GPT-2 small on FineWeb",
        pairs(*((_steps("muoneq", k), _steps("muon", k)) for k in range(1, 6))),
    ),
    Ablation(
        "Momentum and learning rate",
        "MuonEq, Figures 5 and 8: GPT-2 small on FineWeb",
        mapped(
            pairs(
                *(
                    (_momentum("muoneq", b1), _momentum("muon", b1))
                    for b1 in (0.8, 0.9, 0.95, 0.98)
                )
            )
        ),
        shows_rates=True,
    ),
)
