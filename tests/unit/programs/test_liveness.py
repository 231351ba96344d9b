"""What is alive at the peak of a program, against what the compiler says it allocates."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardlab.programs.hlo import Program
from shardlab.programs.liveness import alive_at_peak

N = 256


def unrolled(x):
    for _ in range(4):
        x = jnp.tanh(x @ x)
    return jnp.sum(x)


def scanned(x):
    return jnp.sum(lax.scan(lambda h, _: (jnp.sin(h @ x), None), x, None, length=5)[0])


def carrying(x):
    """Two arrays, over which each iteration writes."""
    step = lambda _, carry: (jnp.sin(carry[0] @ x), carry[1] + carry[0] @ x)  # noqa: E731
    return lax.fori_loop(0, 5, step, (x, jnp.zeros_like(x)))[0] + 1


def branching(x):
    return lax.cond(x[0, 0] > 0, lambda: jnp.sum(jnp.sin(x @ x) @ x), lambda: jnp.sum(x))


@pytest.mark.parametrize("f", [unrolled, scanned, carrying, branching])
@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_sum_is_near_what_the_compiler_allocates(f, is_gradient, dtype):
    gradient = jax.grad(lambda x: jnp.sum(f(x)))
    compiled = (
        jax.jit(gradient if is_gradient else f).lower(jax.ShapeDtypeStruct((N, N), dtype)).compile()
    )
    alive = alive_at_peak(Program(compiled.as_text()))
    allocated = compiled.memory_analysis().temp_size_in_bytes
    results = compiled.memory_analysis().output_size_in_bytes
    total = sum(one.bytes for one in alive)
    assert allocated - results - 2**12 <= total <= 2 * allocated + 2**12, alive


def test_what_a_scan_keeps_is_a_stack_with_the_line_of_its_part():
    def loss(x):
        def body(h, _):
            return jnp.sin(h @ x), None  # kept

        return jnp.sum(lax.scan(body, x, None, length=7)[0])

    text = jax.jit(jax.grad(loss)).lower(jax.ShapeDtypeStruct((N, N), "float32")).compile()
    stacks = [one for one in alive_at_peak(Program(text.as_text())) if one.is_stack]
    assert stacks and {one.type for one in stacks} == {f"f32[7,{N},{N}]"}
    assert stacks[0].bytes == 7 * N * N * 4
    assert not any("dynamic-update-slice" in one.instruction.kind for one in stacks)
