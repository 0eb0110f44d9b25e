"""States as arguments of programs that `jax.export` saves."""

import jax.export

_registered: set[type] = set()


def register_export() -> None:
    """Lets `jax.export` save and load programs whose arguments are optimizer states.

    It registers every NamedTuple of optax and of this package, which all their states
    are, under the name of its module and class. Call it once before ``serialize``, and
    in the process that calls ``jax.export.deserialize``. Your own registrations stay; a
    second call changes nothing. JAX needs ``flatbuffers`` for it.

    Examples:
        >>> import jax.export, jax.numpy as jnp
        >>> import optax_matrix as om
        >>> om.checkpoint.register_export()
        >>> params, tx = {"kernel": jnp.ones((4, 8))}, om.muon(0.02)
        >>> step = jax.export.export(jax.jit(tx.update))
        >>> program = step(params, tx.init(params), params)
        >>> saved = program.serialize()  # doctest: +SKIP
        >>> loaded = jax.export.deserialize(saved)  # doctest: +SKIP
        >>> updates, state = program.call(params, tx.init(params), params)
    """
    # Every NamedTuple is a direct subclass of tuple.
    for kind in tuple.__subclasses__():
        package = kind.__module__.partition(".")[0]
        ours = package in ("optax", "optax_matrix") and hasattr(kind, "_fields")
        if not ours or kind in _registered:
            continue
        _registered.add(kind)
        try:
            jax.export.register_namedtuple_serialization(
                kind, serialized_name=f"{kind.__module__}.{kind.__qualname__}"
            )
        except ValueError as error:  # The user has registered it.
            if "uplicate" not in str(error):
                raise
