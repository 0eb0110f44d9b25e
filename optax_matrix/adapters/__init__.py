"""One small module per framework: where its optimizer goes, and what it needs.

In most frameworks nothing is needed: `om.muoneq(3e-3)` goes where `optax.adamw(3e-3)`
was. These modules are for frameworks that choose the optimizer by name, that build it
from a configuration, or whose parameters the default rule cannot read. "Lines" are
those that a user adds to a program, imports aside; where the module itself has to be
copied, they are those of the module. All tests are in `tests/clients`; they run with
the framework where it is installed.

===============  =====  ==============================================  ===============
module           lines  what it does                                    tested with
===============  =====  ==============================================  ===============
big_vision       2      names for `config.optax_name`                   stand-in
easydel          2      recipes for `TrainingArguments.optimizer`       EasyDeL
equinox_rule     1      the axes of weights (out, in)                   Equinox
haiku_rule       1      which layers embed or give logits               Haiku
kauldron         2      a named chain in a configuration                konfig, stand-in
keras_optimizer  1      a subclass of `keras.optimizers.Optimizer`      Keras
levanter         1      an `OptimizerConfig` for any recipe; 15 where   Levanter,
                        it is copied                                    stand-in
maxtext          1      `opt_type: "muon"`, for all trainers            MaxText
nanodo           2      a branch of `_get_base_optimizer`               stand-in
penzai_rule      1      the axes that linear layers reduce              Penzai
tunix            1      names for `optimizer_config.opt_type`           Tunix
===============  =====  ==============================================  ===============

The docstring of each test with a stand-in names the files whose code it follows.
"""
