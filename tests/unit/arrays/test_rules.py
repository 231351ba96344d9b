"""shardlab.arrays.rules: specs by paths, what is restored, and what a device stores."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from shardlab import apply_rules, paths_of, shardings, stored_bytes, target

pytestmark = pytest.mark.reads("src/shardlab")


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


PARAMS = {
    "layers": [{"kernel": jnp.ones((16, 8)), "bias": jnp.zeros(8)} for _ in range(2)],
    "embedding": jnp.ones((12, 16), jnp.bfloat16),
}


def test_paths_are_in_the_order_of_the_leaves():
    paths = paths_of(PARAMS)
    assert paths == [
        "embedding",
        "layers/0/bias",
        "layers/0/kernel",
        "layers/1/bias",
        "layers/1/kernel",
    ]
    assert paths_of(3.0) == [""] and paths_of({}) == []


def test_the_first_rule_that_matches_counts():
    rules = [("1/kernel$", P("model")), ("kernel$", P("data", "model")), ("bias", P())]
    applied = apply_rules(rules, PARAMS)
    specs = {"kernel": P("data", "model"), "bias": P()}
    assert applied.specs == {"layers": [specs, specs | {"kernel": P("model")}], "embedding": P()}
    assert applied.unmatched == ("embedding",) and applied.idle == ()
    assert applied.several == {"layers/1/kernel": ("1/kernel$", "kernel$")}


def test_moments_follow_their_parameters_and_numbers_have_no_dimensions():
    applied = apply_rules([("kernel", P("data")), ("", P())], optax.adam(1e-3).init(PARAMS))
    by_path = dict(zip(paths_of(applied.specs), jax.tree.leaves(applied.specs), strict=True))
    assert by_path["0/mu/layers/0/kernel"] == by_path["0/nu/layers/1/kernel"] == P("data")
    assert by_path["0/count"] == P() and apply_rules([("step", P())], {"step": 3}).specs == {
        "step": P()
    }


def test_rules_that_may_be_wrong_are_named():
    rules = [("", P()), ("layers/0", P()), ("biases", P())]
    text = str(apply_rules(rules, PARAMS))
    assert "3 rules, 5 arrays" in text
    assert "'layers/0' is never the first that matches" in text
    assert "no array matches the rule 'biases'; the nearest name is 'bias'" in text
    assert "layers/0/bias is matched by '', which counts, and by 'layers/0'" in text
    assert "no rule matches embedding: replicated" in str(apply_rules(rules[1:], PARAMS))
    assert str(apply_rules([("", P())], PARAMS)) == "1 rules, 5 arrays"
    of_nnx = {"up": {"kernel": {"value": jnp.ones((4, 4))}}}  # the paths of an nnx.State
    assert "end in '/value', so leave out the '$'" in str(apply_rules([("kernel$", P())], of_nnx))


@pytest.mark.parametrize(
    ("rules", "kind", "message"),
    [
        (
            [("bias", P("data", "model"))],
            ValueError,
            "'bias' gives layers/0/bias the spec .* its shape is \\(8,\\)",
        ),
        ([("(", P())], ValueError, "'\\(' is not a regular expression"),
        ([("bias", "data")], TypeError, "a rule is a pair such as .*, not \\('bias', 'data'\\)"),
        ([P("data")], TypeError, "a rule is a pair"),
        (["ab"], TypeError, "a rule is a pair .*, not 'ab'"),
    ],
)
def test_a_wrong_rule_is_named(rules, kind, message):
    with pytest.raises(kind, match=message):
        apply_rules(rules, PARAMS)


def test_a_state_is_created_in_shards_and_restored_as_a_target_says(mesh):
    specs = apply_rules([("kernel", P("data", "model"))], PARAMS).specs
    created = jax.jit(lambda: PARAMS, out_shardings=shardings(specs, mesh))()
    goal = target(jax.eval_shape(lambda: PARAMS), specs, mesh)
    assert jax.tree.all(
        jax.tree.map(
            lambda a, b: a.sharding == b.sharding and (a.shape, a.dtype) == (b.shape, b.dtype),
            created,
            goal,
        )
    )
    assert goal["embedding"].dtype == jnp.bfloat16
    assert stored_bytes(created) == 2 * (16 * 8 * 4 // 8 + 8 * 4) + 12 * 16 * 2


def test_a_size_that_does_not_divide_is_named_by_path(mesh):
    with pytest.raises(
        ValueError,
        match=r"embedding: dimension 0 has size 12, which the 8 devices of .*'data', 'model'",
    ):
        target(PARAMS, apply_rules([("embedding", P(("data", "model")))], PARAMS).specs, mesh)
    with pytest.raises(ValueError, match="5 arrays, but there are 1 specs"):
        target(PARAMS, P(), mesh)


def test_stored_bytes_are_those_of_the_fullest_device(mesh):
    on_first = jax.device_put(np.ones(10, np.float32), jax.devices()[0])
    sharded = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("data")))
    assert stored_bytes({"a": on_first, "b": sharded, "f": print}) == 40 + 64
    assert stored_bytes(jax.random.key(0)) == 8 and stored_bytes([]) == 0


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["kernel", "bias", "layers/0", "mu", "", "nothing"]),
            st.sampled_from([P(), P("data"), P(None)]),
        ),
        max_size=5,
    )
)
def test_every_path_has_one_spec_and_every_rule_a_place(rules):
    """Against a search by hand."""
    applied = apply_rules(rules, PARAMS)
    first = [next((pair for pair in rules if pair[0] in path), None) for path in paths_of(PARAMS)]
    assert jax.tree.leaves(applied.specs, is_leaf=lambda s: isinstance(s, P)) == [
        p[1] if p else P() for p in first
    ]
    assert set(applied.unmatched) == {
        p for p, pair in zip(paths_of(PARAMS), first, strict=True) if pair is None
    }
    assert set(applied.idle) == {pattern for pattern, _ in rules} - {
        pair[0] for pair in first if pair
    }
