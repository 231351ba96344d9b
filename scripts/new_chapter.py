#!/usr/bin/env python3
"""Begin a chapter that builds and keeps the rules of book/writing.md, and add it wherever chapters
are listed.

    .venv/bin/python scripts/new_chapter.py padding "Padding: lengths that do not divide" --after arrays

makes book/padding.md, and lists it after arrays in _toc.yml.
The wrong answers to its exercise go into tests/book/wrong_answers/NAME.toml. Then replace its
sentences with your own.
"""  # noqa: E501

import argparse
import json
import re
import sys
from pathlib import Path
from string import Template

import yaml

LONGEST = 80  # characters of a title: it is a heading, and a line in search results
NOT_TAUGHT = ("Appendices",)  # the parts of _toc.yml that come after all others

CHAPTER = Template("""\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3 (ipykernel)
  language: python
  name: python3
---

# $title

A chapter opens with a difficulty that its reader has met, and with a number: 32 elements that are replicated on eight
devices take eight times the memory, and most programs need them once. Put yours here, in at most 120 words.

**What we do here.** We shard 32 elements over eight devices and say what each device stores. Afterwards you can

- place an array on a mesh and predict which device stores which rows;
- show an error on purpose and say which error it was;
- promise here, in your own chapter, what its reader will be able to do.

```{code-cell} ipython3
:tags: [hide-cell]

from shardlab import emulate

emulate(8)

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from shardlab import Exercise, check, describe, draw, raises
```

## Rows over devices: which device stores which

A heading starts with the term that a reader searches for. Below it ask one question, and let the reader answer before
the cell shows the result.

**Predict.** The mesh has eight devices, and the array eight rows of four elements. Which elements does device 6 store?

```{code-cell} ipython3
mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
A = jnp.arange(32).reshape(8, 4)
rows = jax.device_put(A, NamedSharding(mesh, P("d")))
print(rows.addressable_shards[6].data)
assert rows.addressable_shards[6].data.tolist() == [[24, 25, 26, 27]]
draw(rows=rows)
```

It stores row 6. Explain here what the reader has seen, and claim only what a cell asserts.

:::{admonition} Takeaway
:class: tip
One sentence to remember: if eight rows are sharded over a mesh axis of size eight, each device stores one row.
:::

## Errors: a dimension that does not divide

Show the mistake that your reader is likely to make. Assert only those words of its error that are the same in every
supported JAX.

```{code-cell} ipython3
with raises(ValueError) as error:
    jax.device_put(A, NamedSharding(mesh, P(None, "d")))
assert "dimension" in error.message and "4" in error.message
```

Four columns cannot be sharded over eight devices.

## In practice

Say here what changes outside the chapter: other sizes, real accelerators, other versions of JAX. {doc}`writing`
describes the rules that the tests check, and how to make pictures, references and notebooks for Colab.

## Summary

- List the claims of the chapter, each of which a cell has asserted.
- If eight rows are sharded over eight devices, each device stores one row, and no row has a replica.

## Exercises

```{exercise-start} Two columns per device ★
:label: $name-two-columns
```
`pairs` is a mesh of 4 × 2 devices with the axes `replica` and `column`. Place `A` on it so that every device stores two
full columns. How many devices then store the same two?

```{code-cell} ipython3
:tags: [hide-cell, remove-output]

sizes, axes = (4, 2), ("replica", "column")
pairs = jax.make_mesh(sizes, axes, axis_types=(AxisType.Auto,) * 2)
wanted = NamedSharding(pairs, P(None, "column"))
two_columns = Exercise(value=A, layout=wanted)

answer = ...  # your line here
check(answer, two_columns)
```

:::{hint}
:class: dropdown
The first dimension is not sharded: its entry in the spec is `None`.
:::
```{exercise-end}
```

```{solution-start} $name-two-columns
:label: $name-two-columns-solution
:class: dropdown
```

```{code-cell} ipython3
answer = jax.device_put(A, NamedSharding(pairs, P(None, "column")))
check(answer, two_columns, strict=True)
assert describe(answer).replicas == 4
```

Four, since the axis `replica` is not in the spec.

```{solution-end}
```

## Where to read on

Name what you built on, and what goes further. {doc}`arrays` has every way to place an array on a mesh.
""")  # noqa: E501

WRONG = Template("""\
# Answers to the exercises of book/$name.md that many people give and that its checks must refuse, at least two each.
# The table is the exercise's label; each answer is code that takes the place of the stub.

[$name-two-columns]
"rows instead of columns" = "answer = jax.device_put(A, NamedSharding(pairs, P('column')))"
"sharded over all devices" = "answer = jax.device_put(A, NamedSharding(pairs, P('replica', 'column')))"
"never moved" = "answer = A"
""")  # noqa: E501

# Where a chapter is listed: the line after which the new one comes, and what stands there.
TOC = "_toc.yml"
PLACE = r"^      - file: book/{after}\n(?:        title: .*\n)?"
ENTRY = Template("      - file: book/$name\n        title: $short\n")


class Refused(Exception):
    """What was asked for cannot be done, and nothing was changed."""


def plan(root, name, title, after=None):
    """Plan the files of a new chapter.

    Args:
      root: the folder of the book.
      name: of the chapter, as in book/NAME.md.
      title: its heading.
      after: the chapter that it comes after; None for the last one before the appendices.

    Returns a dict from paths below root to texts. Raises Refused if it cannot be done.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise Refused(
            f"NAME {name!r}: use lower-case letters, digits and _, and begin with a letter, "
            "as in global_arrays"
        )
    if (root / "book" / f"{name}.md").exists():
        raise Refused(
            f"NAME {name!r}: book/{name}.md exists already; choose another name, or edit that "
            "chapter"
        )
    if not re.fullmatch(rf"\S(?!.*\s\s).{{,{LONGEST - 2}}}[^\s.]", title) or len(title.split()) < 3:
        raise Refused(
            f"TITLE {title!r}: write the term that readers search for, and what the chapter "
            f"says of it, in three words or more and at most {LONGEST} characters, without a "
            "full stop"
        )
    toc = (root / TOC).read_text("utf-8")
    parts = {
        part["caption"]: [entry["file"].removeprefix("book/") for entry in part["chapters"]]
        for part in yaml.safe_load(toc)["parts"]
    }
    if after is None:
        after = [chapters[-1] for caption, chapters in parts.items() if caption not in NOT_TAUGHT][
            -1
        ]
    after = after.removeprefix("book/").removesuffix(".md")
    known = [chapter for chapters in parts.values() for chapter in chapters]
    if after not in known:
        raise Refused(
            f"--after {after!r}: no such chapter in _toc.yml; there are {', '.join(known)}"
        )
    before = re.search(PLACE.format(after=re.escape(after)), toc, re.MULTILINE)
    short = json.dumps(title.partition(":")[0], ensure_ascii=False)  # what the navigation shows
    entry = ENTRY.substitute(name=name, short=short)
    texts = {TOC: toc[: before.end()] + entry + toc[before.end() :]}
    texts[f"book/{name}.md"] = CHAPTER.substitute(name=name, title=title)
    return texts | {f"tests/book/wrong_answers/{name}.toml": WRONG.substitute(name=name)}


def main(arguments=None, root=Path(__file__).parent.parent):
    """Write the chapter; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=(
            "Begin a chapter that builds and keeps all rules, and add it wherever chapters are "
            "listed."
        )
    )
    parser.add_argument("name", metavar="NAME", help="such as padding, for book/padding.md")
    parser.add_argument(
        "title", metavar="TITLE", help="its heading, the term that readers search for first"
    )
    parser.add_argument(
        "--after",
        metavar="CHAPTER",
        help="such as arrays (default: the last one before the appendices)",
    )
    options = parser.parse_args(arguments)
    try:
        texts = plan(root, options.name, options.title, options.after)
    except Refused as refused:
        print(f"new_chapter: {refused}", file=sys.stderr)
        return 2
    for path, text in texts.items():
        (root / path).write_text(text, "utf-8")
        print(path)
    print(f"now: make chapter FILE=book/{options.name}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
