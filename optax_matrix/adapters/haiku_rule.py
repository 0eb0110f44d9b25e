"""Haiku: which `linear/w` is the head.

The model tells it: ``om.matrices.by_use(loss, params, batch)`` reads it from the use of
its parameters. This rule is for where the model is not at hand.

Haiku's layers have the names that their author gave them, often none: a head is then
`linear/w`, which is a matrix by the default rule. The optimizer goes where optax's was.
"""

import optax_matrix as om


def rule(*vocabulary: str) -> om.matrices.PathRule:
    """A rule for the parameters of `hk.transform`.

    Args:
        *vocabulary: Names of modules that embed, give logits or hold positions, such as
            `"transformer/linear"`. Their parameters get the other optimizer.
    """
    names = "|".join(vocabulary)
    return om.matrices.by_path(exclude=rf"(^|/)({names})(/[^/]*)?$")
