"""Old forms of JAX are run, and what is said of them has to hold."""

import re

import jax
import jax.numpy as jnp
import pytest

from shardlab.book.old_jax import OLD_FORMS, OldForm, attempt, table_of, tried

pytestmark = pytest.mark.reads("src/shardlab")
NEXT = (*jax.__version_info__[:2], jax.__version_info__[2] + 1)

WRONG = {
    "a form that works although it is said to fail": (
        OldForm("out = 1", "out = 1", gone=(0, 7, 0)),
        "is said to fail since 0.7.0, but here works",
    ),
    "a form that fails although it is said to work": (
        OldForm("jax.nothing", "out = 1"),
        "in no release, but here module 'jax' has no attribute 'nothing'",
    ),
    "a form that fails before the release that is said": (
        OldForm("jax.nothing", "out = 1", gone=NEXT),
        "is said to fail since",
    ),
    "a replacement that fails": (OldForm("out = 1", "jax.nothing"), "the replacement module"),
    "a replacement that works too early": (
        OldForm("out = 1", "out = 1", begins=NEXT),
        "the replacement works too early",
    ),
    "another value": (OldForm("out = 1", "out = 2"), "differs from its replacement, 2: 1"),
    "a NaN": (
        OldForm("out = jnp.zeros(3)", "out = jnp.zeros(3).at[0].set(jnp.nan)"),
        "differs",
    ),
    "another layout": (
        OldForm(
            "out = jax.device_put(x, NamedSharding(line, P('d')))",
            "out = jax.device_put(x, NamedSharding(line, P(None, 'd')))",
        ),
        "differs",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_said_wrongly_of_a_form_is_an_error(case):
    form, said = WRONG[case]
    with pytest.raises(AssertionError, match=re.escape(said)):
        tried([form])


def test_lines_leave_a_result_or_an_error_and_see_the_names_given():
    assert attempt("out = 3 * n", n=4) == (12, None)
    assert attempt("n = 1") == (None, None)
    result, error = attempt("import jax.nothing")
    assert result is None and isinstance(error, ImportError)


def test_the_same_layout_in_other_words_is_the_same():
    rows = tried(
        [
            OldForm(
                "out = jax.device_put(x, NamedSharding(line, P('d')))",
                "out = jax.device_put(x, NamedSharding(line, P('d', None)))",
            )
        ]
    )
    assert [row.now for row in rows] == ["works"]


def test_the_table_has_each_form_once_and_no_line_breaks_it():
    assert len({form.old for form in OLD_FORMS}) == len(OLD_FORMS)
    lines = table_of(tried([OldForm("jax.nothing", "out = jnp.ones(3)", gone=(0,), since="a|b")]))
    head, _, row = lines.splitlines()
    assert jax.__version__ in head and "`jnp.ones(3)`" in row and "AttributeError" in row
    assert "out =" not in row and jnp.ones(3).shape == (3,)
