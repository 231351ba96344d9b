"""Models that are not in the book, in the frame of its recipes: python foreign.py NAME FOLDER STEPS.

Each trains in bfloat16 with float32 parameters. `unet` puts its own model, loss, batches and rules
in the place of train.py's.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "book" / "recipes"))

import jax
import jax.numpy as jnp
import numpy as np
import train
from flax import nnx
from jax.sharding import PartitionSpec as P

LOW = jnp.bfloat16


class Block(nnx.Module):
    """A block of a U-Net, which also gets the time."""

    def __init__(self, channels, out, rngs):
        self.norm = nnx.GroupNorm(channels, 4, dtype=LOW, rngs=rngs)
        self.mix = nnx.Conv(channels, out, (3, 3), dtype=LOW, rngs=rngs)
        self.time = nnx.Linear(8, out, dtype=LOW, rngs=rngs)

    def __call__(self, x, time):
        return nnx.silu(self.mix(self.norm(x)) + self.time(time)[:, None, None])


class UNet(nnx.Module):
    """The noise in images of three channels; its own stream draws the noise of the loss."""

    def __init__(self, rngs):
        self.first = nnx.Conv(3, 16, (3, 3), dtype=LOW, rngs=rngs)
        self.down = Block(16, 16, rngs)
        self.halve = nnx.Conv(16, 32, (3, 3), strides=2, dtype=LOW, rngs=rngs)
        self.middle = Block(32, 32, rngs)
        self.double = nnx.ConvTranspose(32, 16, (2, 2), strides=2, dtype=LOW, rngs=rngs)
        self.up = Block(32, 16, rngs)
        self.last = nnx.Conv(16, 3, (3, 3), dtype=LOW, rngs=rngs)
        self.noise = rngs.noise.fork()

    def __call__(self, x, time):
        time = jnp.sin(time[:, None] * 2.0 ** jnp.arange(8))
        x = kept = self.down(self.first(x), time)
        x = self.double(self.middle(self.halve(x), time))
        return self.last(self.up(jnp.concatenate([x, kept], -1), time)).astype(jnp.float32)


def noise_loss(model, images):
    """The error of the noise that the network finds in noisy images."""
    time = jax.random.uniform(model.noise(), images.shape[:1])
    noise = jax.random.normal(model.noise(), images.shape)
    share = time[:, None, None, None]
    found = model(images * (1 - share) + noise * share, time)
    return jnp.mean((found - noise) ** 2)


def images_of(step):
    """A batch of smooth images."""
    waves = np.random.default_rng(step).normal(size=(16, 1, 1, 3)) * 3
    grid = np.linspace(0, 1, 8)
    return np.sin(waves * (grid[:, None, None] + grid[:, None])).astype(np.float32)


def unet(folder, steps):
    """train.py with another model: four names of its top are replaced."""
    train.new = lambda: UNet(nnx.Rngs(params=0, noise=1))
    train.loss_of, train.batch_of = noise_loss, images_of
    train.RULES = [
        (r"(first|mix|halve)/kernel", P(None, None, None, "data")),
        (r"double/kernel", P(None, None, "data")),
        (r"", P()),  # the rest; three output channels cannot be divided
    ]
    train.main(folder, steps)


if __name__ == "__main__":
    {"unet": unet}[sys.argv[1]](Path(sys.argv[2]).absolute(), int(sys.argv[3]))
