"""Finding a learning rate: `sweep` trains a model at several, and says which is best.

===============  =======================================================================
``_sweep``       `sweep`: the arguments, and the bracket that widens
``_trainings``   a model, its loss or its step as functions of trees of arrays
``_runs``        runs of several rates and seeds, in one program or one after the other
``_batches``     the batches of every seed
``_progress``    bars
``_result``      `Sweep`: the rates, their losses, the table and the picture
===============  =======================================================================
"""

from optax_matrix.tuning._result import Sweep
from optax_matrix.tuning._sweep import sweep

__all__ = ["Sweep", "sweep"]
