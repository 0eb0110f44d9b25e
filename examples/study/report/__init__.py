"""One HTML page of runs, comparisons or studies; it needs no other file.

    python -m examples.study report runs/train
    python -m examples.study report runs/adamw runs/muon --out muon.html
    python -m examples.study report bench:books bench:digits

`runs`, `comparisons` and `studies` read what `examples.pretrain`, `compare` and `bench`
wrote, with their own statistics, into a `section`. `page` writes sections: `curves`
draws losses, `layers` what monitored runs recorded, both with `svg`; `markup` makes the
elements, `style` their looks.
"""
