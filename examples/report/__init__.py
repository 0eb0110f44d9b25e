"""One HTML page of runs, comparisons or studies; it needs no other file.

    python -m examples.report runs/train
    python -m examples.report runs/adamw runs/muon --out muon.html
    python -m examples.report bench:books bench:digits

`runs`, `comparisons` and `studies` read what `examples.pretrain` and `examples.bench`
wrote, with their own statistics, into a `section`. `page` writes sections: `curves`
draws losses, `layers` what monitored runs recorded, both with `svg`; `markup` makes the
elements, `style` their looks.
"""
