"""One small module per framework: where its optimizer goes, and what it needs.

In most frameworks nothing is needed: `om.muoneq(3e-3)` goes where `optax.adamw(3e-3)`
was. These modules have the lines for the frameworks in which the optimizer is chosen by
name, built by a configuration, or whose parameters the default rule cannot read. Lines
are those that a user adds, without imports.

================  =====  ==================================================  ==========
framework         lines  what they do                                        tested with
================  =====  ==================================================  ==========
`big_vision`      1      `scale_by_<name>` for `config.optax_name`           stand-in
`equinox_rule`    1      the axes of `(out, in)` weights                     Equinox
`haiku_rule`      1      what is the head                                    Haiku
`kauldron`        2      a named chain in a configuration                    stand-in
`keras_optimizer` 30     a subclass of `keras.optimizers.Optimizer`          Keras
`levanter`        8      `OptimizerConfig.register_subclass`                 stand-in
`maxtext`         1      the keywords of `optax.contrib.muon`                stand-in
`nanodo`          5      a branch of `_get_base_optimizer`                   stand-in
`tunix`           1      names for `optimizer_config.opt_type`               stand-in
================  =====  ==================================================  ==========
"""
