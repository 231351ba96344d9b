"""Gradients of a Flax NNX model that keep all of its other state: statistics, keys, counters.

    value, gradients = loss_and_gradients(loss, model, batch)
    optimizer.update(model, gradients)

Needs Flax 0.11.2 or newer, which shardlab does not install.
"""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

__all__ = ["loss_and_gradients"]


def loss_and_gradients(
    loss: Callable[..., jax.Array], model: nnx.Module, *args: Any, wrt: Any = nnx.Param
) -> tuple:
    """The loss of a model, and its gradients with respect to one type of variable.

    >>> from flax import nnx
    >>> from shardlab.networks.gradients import loss_and_gradients
    >>> layer = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    >>> value, gradients = loss_and_gradients(lambda model, x: model(x).sum(), layer, jnp.ones((3, 4)))
    >>> gradients["bias"][...].tolist()  # three examples
    [3.0, 3.0]

    All other variables are then as the forward pass left them: running means of BatchNorm, keys and
    counters of dropout. It works as `nnx.value_and_grad(loss)(model, *args)` does, inside `nnx.jit`
    and in graph and tree mode.

    Args:
      loss: a function of the model and `args` that returns a scalar.
      model: an `nnx.Module`; what is not differentiated in it is updated in place.
      *args: what `loss` takes besides, such as a batch.
      wrt: the type of the variables to differentiate, or another filter of NNX, such as
        `nnx.LoRAParam`.

    Returns:
      The loss, and an `nnx.State` of gradients with the paths, shapes and dtypes of the variables.

    Raises:
      ValueError: the model has no variable of that kind.
    """  # noqa: E501
    definition, chosen, others = nnx.split(model, wrt, ...)
    if not jax.tree.leaves(chosen):
        kinds = sorted(
            {
                type(v).__name__
                for v in jax.tree.leaves(others, is_leaf=lambda v: isinstance(v, nnx.Variable))
            }
        )
        raise ValueError(
            f"the model has no variable that {wrt} selects; it has "
            f"{', '.join(kinds) or 'none at all'}"
        )

    def loss_of(chosen):
        own = jax.tree.map(lambda a: a, others)  # variables of this trace
        inside = nnx.merge(definition, chosen, own)
        value = loss(inside, *args)
        return value, nnx.split(inside, wrt, ...)[2]

    (value, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(chosen)
    nnx.update(model, others)
    return value, gradients
