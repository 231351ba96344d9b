"""`transfers`, against JAX's transfer guard and the elements that each device stores."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P, SingleDeviceSharding

from shardlab import collectives, explain, transfers

SPECS = [P(), P("x"), P(None, "y"), P(("y", "x"))]


def mesh_of(first, count, sizes, kind=AxisType.Auto):
    devices = jax.devices()[first : first + count]
    return jax.make_mesh(sizes, ("x", "y"), devices=devices, axis_types=(kind,) * 2)


def places():
    """Layouts on the first four devices, the last four, some of both, all, and one."""
    meshes = (
        mesh_of(0, 4, (2, 2)),
        mesh_of(4, 4, (2, 2)),
        mesh_of(2, 4, (4, 1)),
        mesh_of(0, 8, (2, 4)),
    )
    named = [NamedSharding(mesh, spec) for mesh in meshes for spec in SPECS]
    return [*named, SingleDeviceSharding(jax.devices()[1])]


def goes_through_host(array, after):
    with jax.transfer_guard_host_to_device("disallow_explicit"):
        try:
            jax.block_until_ready(jax.device_put(array, after))
        except RuntimeError as error:
            assert "host-to-device" in str(error)
            return True
    return False


def lacking(array, after):
    """Bytes of the device that lacks most, by the numbers of all elements."""
    numbers = np.arange(array.size).reshape(array.shape)
    has = {one.device: set(numbers[one.index].flat) for one in array.addressable_shards}
    needs = after.devices_indices_map(array.shape).items()
    most = max(len(set(numbers[index].flat) - has.get(device, set())) for device, index in needs)
    return most * array.dtype.itemsize


def test_each_pair_of_layouts():
    """The bytes are those that a device lacks, and JAX's guard agrees about the host."""
    hosts = 0
    for n, (before, after) in enumerate(product(places(), repeat=2)):
        dtype = (jnp.float32, jnp.bfloat16)[n % 2]
        array = jax.device_put(jnp.ones((8, 16), dtype), before)
        found = transfers(lambda a, after=after: jax.device_put(a, after), array)
        through_host, lacks = goes_through_host(array, after), lacking(array, after)
        hosts += through_host
        assert bool(found.moves) == (through_host or lacks > 0), (before, after)
        if found.moves:
            (move,) = found.moves
            assert (move.bytes, move.through_host) == (lacks, through_host), (before, after)
            assert (move.before, move.after) == (before, after)
        assert not found.programs and found.bytes == sum(move.bytes for move in found.moves)
    assert 0 < hosts < len(places()) ** 2


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_programs_between_transfers(kind):
    """Programs keep their order and their collectives; shapes alone are enough."""
    first, second = mesh_of(0, 4, (2, 2), kind), mesh_of(4, 4, (2, 2), kind)
    by_rows, by_columns = (NamedSharding(first, P(*spec)) for spec in (("x",), (None, "x")))
    there = NamedSharding(second, P(None, "x"))

    def change(a):
        if kind == AxisType.Explicit:
            return jax.sharding.reshard(a, by_columns)
        return jax.lax.with_sharding_constraint(a, by_columns)

    move = jax.jit(change)
    total = jax.jit(lambda a: a.sum(1))

    def both(a):
        return total(jax.device_put(move(a), there))

    array = jax.device_put(jnp.ones((8, 16)), by_rows)
    shape = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=by_rows)
    for argument in (array, shape):
        found = transfers(both, argument)
        (one, inside), transfer, (other, outside) = found.steps
        assert (one, inside) == ("change", collectives(move, array))
        assert (other, outside) == ("<lambda>", {"all-reduce": 1})
        assert transfer.bytes == found.bytes == 8 * 8 * 4 and not transfer.through_host
        assert transfer.array == "f32[8,16]"
    text = str(found)
    assert "P(None, 'x') on devices 0 to 3  P(None, 'x') on devices 4 to 7  256" in text
    assert "<td>256</td>" in found._repr_html_()


def test_what_is_no_transfer():
    """Numbers of the host, uncommitted arrays, arrays that stay: no row."""
    there = NamedSharding(mesh_of(4, 4, (2, 2)), P("x"))
    array = jax.device_put(np.ones((8, 16)), there)

    def f(a, b, c):
        return jax.device_put(a, there), jax.device_put(b, there) + jnp.ones(16), jnp.asarray(c) + 1

    found = transfers(f, np.ones((8, 16)), array, c=jnp.ones(3))
    assert found.steps == () and str(found) == found._repr_html_() == "no communication"


def test_a_closed_over_array_and_a_loop():
    """An array from outside counts, and so does each pass of a loop in Python."""
    first, second = mesh_of(0, 4, (2, 2)), mesh_of(4, 4, (2, 2))
    weights = jax.device_put(jnp.ones((8, 16)), NamedSharding(first, P("x")))

    def twice(a):
        for _ in range(2):
            a = a + jax.device_put(weights, NamedSharding(second, P("x")))
        return a

    there = jax.device_put(jnp.ones((8, 16)), NamedSharding(second, P("x")))
    assert [move.bytes for move in transfers(twice, there).moves] == [256, 256]


def test_errors():
    first, second = mesh_of(0, 4, (2, 2)), mesh_of(4, 4, (2, 2))
    array = jax.device_put(jnp.ones((8, 16)), NamedSharding(first, P("x")))

    def put(a):
        return jax.device_put(a, NamedSharding(second, P("x")))

    with pytest.raises(TypeError, match="takes a function and its arguments, not ArrayImpl"):
        transfers(array)
    with pytest.raises(ValueError, match="incompatible devices"):
        transfers(jax.jit(put), array)  # inside a program
    with pytest.raises(ValueError, match="incompatible devices"):
        transfers(lambda a: a + put(a), array)
    for read in (collectives, explain):
        with pytest.raises(ValueError, match="incompatible devices") as error:
            read(put, array)
        assert "shardlab.transfers(f, *args) lists" in " ".join(error.value.__notes__)
