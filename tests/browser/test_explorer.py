"""The explorer's JavaScript, run in a browser, compared with JAX, shardlab and compiled programs in
every case.
"""

import gzip
import random
import re
from collections import Counter
from functools import cache
from itertools import permutations, product
from math import prod
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import jax
import numpy as np
import pytest
from bs4 import BeautifulSoup
from explorer_cases import (
    SIZES_OF,
    STATIC,
    bare_page,
    compare_steps,
    fit_cases,
    machine_of,
    solve,
    write_page,
)
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from shardlab import (
    CHIPS,
    MODELS,
    Model,
    collectives,
    compare_specs,
    costs,
    describe,
    draw,
    explorer,
    same_layout,
    training_step,
)
from shardlab._arguments import nearest
from shardlab.book import specs
from shardlab.book.planner import FILES

pytestmark = pytest.mark.reads(
    "src/shardlab", "src/bookbinder", "book/static/explorer", "book/explorer.md"
)
CHAPTER = "explorer"


AUTO = AxisType.Auto


def mesh_of(mesh):
    names, sizes = [name for name, _ in mesh], [size for _, size in mesh]
    return Mesh(np.array(jax.devices()[: prod(sizes)]).reshape(sizes), names)


def spec_of(spec):
    return P(*(None if not axes else axes[0] if len(axes) == 1 else tuple(axes) for axes in spec))


def calculators():
    """What the chapter's cells make."""
    mesh, line = mesh_of([("x", 2), ("y", 4)]), mesh_of([("x", 8)])
    return (
        explorer.layout(NamedSharding(mesh, P("x", "y")), (8, 16)),
        explorer.matmul(line, (8192, 8192, 28_672), P(None, "x"), P("x", None), P(), "v5p"),
        explorer.fit("llama-3-8b", "v5e", costs.Parallelism(1, 16, 1), 2**18),
    )


@pytest.fixture(scope="module")
def bare(browser, tmp_path_factory):
    """All calculators on a page by themselves, opened from a file."""
    page = bare_page(browser, tmp_path_factory.mktemp("bare") / "bare.html", *calculators())
    assert page.evaluate("Object.keys(explorer.parts)") == ["layout", "matmul", "fit"]
    return page


# --- Specs that are typed: against Python ---------------------------------------------------------

UNDERSTOOD = [
    "P()", 'P("x")', 'P("x", None)', "P('x', 'y')", 'P(None, ("x", "y"))', 'P(("y", "x"), None,)',
    ' P( "x" ,None ) ',
    'PartitionSpec("x", None)', 'jax.sharding.PartitionSpec(None, "y")', 'jax.P("x")',
    'P(("x",), ())', "P(None, None)",
    'P(\n    "x",\n    None,\n)', "P('data', \"model_2\")", 'P(["x", "y"])', 'P("x", None, "y")',
]  # fmt: skip
# What is wrong, and what the page says of it.
NOT_UNDERSTOOD = {
    "": "type a PartitionSpec",
    "P": "after P a bracket is missing",
    "x, y": "“x” is not PartitionSpec",
    '("x", None)': "P is missing before the bracket",
    '"x", None': "a spec begins with P(",
    "P(x, None)": 'x needs quotation marks: "x"',
    'P("x", None': "a closing ) is missing",
    'P(("x", "y"': "a closing ) is missing",
    'P("x", "y))': 'the quotation mark in "y)) is not closed',
    'P("x" "y")': 'between "x" and "y" a comma is missing',
    'P("x", 2)': "“2” is no entry",
    'P("x",, None)': ', stands where an axis belongs, such as "x"',
    'P(("x", None))': "None cannot be in a tuple of axes",
    'P((("x",),))': "( stands where an axis belongs",
    "P(P.UNCONSTRAINED)": "P.UNCONSTRAINED is for sharding constraints",
    'P("x", unreduced={"y"})': "unreduced= is not drawn here",
    'P("x"), P("y")': 'what follows the last bracket is too much: ,P("y")',
    'P("x").update()': "“.update” is no entry",
    'NamedSharding(mesh, P("x"))': "“NamedSharding” is not PartitionSpec",
}


@pytest.fixture(scope="module")
def typing(browser, tmp_path_factory):
    """Specs that are typed, on a page by itself."""
    file = tmp_path_factory.mktemp("typed") / "typed.html"
    mesh = mesh_of([("x", 2), ("y", 4)])
    whole, *others = (
        jax.device_put(np.zeros((8, 16), "float32"), NamedSharding(mesh, spec))
        for spec in (P(), P("x", "y"), P("y", "x"), P(("y", "x")), P(None, "x"))
    )
    drawn = compare_specs(whole, others=others)
    scripts = [name.rpartition("/")[2] for name in specs.FILES[:-1]]
    write_page(file, drawn, scripts=[*scripts, "../home.js"])
    page = browser.new_page()
    page.on("pageerror", lambda error: pytest.fail(str(error)))
    page.goto(file.as_uri())
    return page


@pytest.mark.parametrize("text", UNDERSTOOD)
def test_a_typed_spec_is_what_python_makes_of_it(typing, text):
    names = {"P": P, "PartitionSpec": P, "jax": jax} | (
        {} if hasattr(jax, "P") else {"jax": SimpleNamespace(P=P)}
    )
    meant = eval(text.strip(), names)
    found = typing.evaluate("text => explorer.parse(text, ['x', 'y'])", text)
    assert P(*(tuple(axes) if len(axes) > 1 else axes[0] if axes else None for axes in found)) == P(
        *(
            tuple(entry) if isinstance(entry, (tuple, list)) and len(entry) > 1 else entry or None
            for entry in plain(meant)
        )
    )


def plain(spec):
    """The entries of a spec, a tuple of one axis as that axis."""
    return [
        entry[0] if isinstance(entry, (tuple, list)) and len(entry) == 1 else entry
        for entry in spec
    ]


def test_quotation_marks_of_phones_are_understood(typing):
    assert typing.evaluate("explorer.parse('P(“x”, ‘y’)', ['x', 'y'])") == [["x"], ["y"]]


@pytest.mark.parametrize("text", NOT_UNDERSTOOD)
def test_what_is_not_understood_is_said(typing, text):
    field, says = (
        typing.get_by_role("textbox", name="PartitionSpec"),
        typing.locator(".specs-bar > p"),
    )
    field.fill(text)
    assert (
        says.inner_text().startswith("Not understood: ")
        and NOT_UNDERSTOOD[text] in says.inner_text()
    )
    assert field.get_attribute("aria-invalid") == "true"
    field.fill("P()")
    assert says.inner_text() == "Each device stores 512 of 512 bytes, and 8 devices store the same."
    assert field.get_attribute("aria-invalid") == "false"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('P("x", "x")', 'JAX refuses this. P("x", "x") names x twice'),
        ('P("X")', 'JAX refuses this. The mesh has no axis "X", only x and y; did you mean "x"?'),
        ('P("model")', 'JAX refuses this. The mesh has no axis "model", only x and y.'),
        (
            'P(None, None, "x")',
            "JAX refuses this. The spec has more entries than the array has dimensions.",
        ),
    ],
)
def test_what_jax_refuses_is_said_of_a_typed_spec(typing, text, said):
    with pytest.raises(Exception, match=r"duplicate|axis|rank"):
        jax.device_put(np.zeros((8, 16)), NamedSharding(mesh_of([("x", 2), ("y", 4)]), eval(text)))
    typing.get_by_role("textbox", name="PartitionSpec").fill(text)
    assert typing.locator(".specs-bar > p").inner_text().startswith(said)


@pytest.mark.parametrize(
    "text", ['P("x", "y")', 'P("y", "x")', 'P(("y", "x"))', 'P(None, "x")', "P()"]
)
def test_the_picture_of_a_typed_spec_is_that_of_shardlab(typing, text):
    typing.get_by_role("textbox", name="PartitionSpec").fill(text)
    ours = typing.locator("figure:visible desc").first.text_content().lower()
    sharding = NamedSharding(mesh_of([("x", 2), ("y", 4)]), eval(text))
    for device, index in sharding.devices_indices_map((8, 16)).items():
        across, down = (part.indices(size)[:2] for part, size in zip(index, (8, 16), strict=True))
        told = f"device {device.id} stores [{across[0]}:{across[1]}, {down[0]}:{down[1]}]"
        assert told in ours


# --- Layouts: against JAX -------------------------------------------------------------------------

# Meshes of up to three axes and 64 devices, with axes of one device.
SIZES = [sizes for n in (1, 2, 3) for sizes in product(range(1, 65), repeat=n) if prod(sizes) <= 64]


@cache
def layout_cases():
    chance = random.Random(20_261_121)
    names = ["x", "y", "z", "data", "model_2"]

    def random_case():
        sizes = chance.choice(SIZES)
        mesh = list(zip(chance.sample(names, len(sizes)), sizes, strict=True))
        ndim = chance.choice((0, 1, 2, 2, 2, 3, 3))
        spare = [name for name, _ in mesh]
        chance.shuffle(spare)
        spec = []
        for _ in range(ndim):
            n = chance.choice((0, 1, 1, 2, 3))
            spec.append(spare[:n])
            spare = spare[n:]
        chance.shuffle(spec)
        sizes = dict(mesh)
        shape = [
            prod(sizes[axis] for axis in axes) * chance.choice((1, 1, 2, 3, 5)) for axes in spec
        ]
        wrong = chance.random()
        if wrong < 0.12 and ndim:
            shape[chance.randrange(ndim)] += chance.choice((1, 2, 7))
        elif wrong < 0.2 and ndim:
            spec[chance.randrange(ndim)] = [
                chance.choice(mesh)[0],
                *chance.sample([n for n, _ in mesh], 1),
            ]
        elif wrong < 0.23:
            spec.append([chance.choice(mesh)[0]])
        elif wrong < 0.25 and ndim:
            spec[0] = ["w"]
        elif wrong < 0.3:
            spec = spec[: chance.randrange(len(spec) + 1)]  # a missing entry at the end
        return {"mesh": mesh, "shape": shape, "spec": spec, "dtype": chance.choice(explorer.DTYPES)}

    cases = [random_case() for _ in range(1200)]
    grid = [("x", 2), ("y", 4), ("z", 8)]
    for n in range(4):  # tuples in every order, on 64 devices
        for axes in permutations("xyz", n):
            for shape in ([64, 8], [8, 64], [128, 64, 2], [12, 64]):
                for dim in range(2):
                    spec = [[], []]
                    spec[dim] = list(axes)
                    cases.append({"mesh": grid, "shape": shape, "spec": spec, "dtype": "bfloat16"})
    for mesh in (
        [("x", 1)],
        [("x", 1), ("y", 1), ("z", 1)],
        [("x", 1), ("y", 4)],
        [("x", 64)],
        [("a", 8), ("b", 8)],
    ):
        names = [name for name, _ in mesh]
        for spec in (
            [],
            [[]],
            [names],
            [names[:1], names[1:]],
            [[], names[-1:]],
            [names, names],
            [[], [], names],
        ):
            for shape in (
                [],
                [64],
                [64, 64],
                [1, 1],
                [7, 64],
                [64, 64, 64],
                [0, 64],
                [1 << 20, 1 << 12],
            ):
                cases.append({"mesh": mesh, "shape": shape, "spec": spec, "dtype": "float32"})
    return cases


def jax_layout(case):
    """JAX's answer: the slice of each device and its shape, or (kind, message) of its error."""
    shape, spec = tuple(case["shape"]), spec_of(case["spec"])
    try:
        sharding = NamedSharding(mesh_of(case["mesh"]), spec)
        if len(spec) > len(shape):
            jax.device_put(np.zeros(shape, np.int8), sharding)
            raise AssertionError("JAX took a spec that is too long")
        held = sharding.devices_indices_map(shape)
    except Exception as error:
        return type(error).__name__, str(error)
    return (
        {
            d.id: [list(s.indices(n)[:2]) for s, n in zip(index, shape, strict=True)]
            for d, index in held.items()
        },
        list(sharding.shard_shape(shape)),
    )


ERRORS = {
    "duplicate": "DuplicateSpecError",
    "unknown": "ValueError",
    "rank": "ValueError",
    "uneven": "IndivisibleError",
}


def test_layouts_are_those_of_jax_and_its_errors_too(bare):
    cases = layout_cases()
    answers = solve(bare, "layout", cases)
    kinds = Counter()
    for case, answer in zip(cases, answers, strict=True):
        expected = jax_layout(case)
        if "error" in answer:
            error = answer["error"]
            kinds[error["kind"]] += 1
            assert expected[0] == ERRORS[error["kind"]], case
            assert error["jax"] in expected[1], case
            continue
        kinds["fine"] += 1
        where, shard_shape = expected
        assert isinstance(where, dict), (case, expected)
        assert {held["device"]: held["index"] for held in answer["devices"]} == where, case
        assert answer["shard_shape"] == shard_shape, case
        layout = describe(
            NamedSharding(mesh_of(case["mesh"]), spec_of(case["spec"])),
            case["shape"],
            case["dtype"],
        )
        assert [(h["replica"], tuple(h["position"])) for h in answer["devices"]] == [
            (s.replica, s.position) for s in layout.shards
        ]
        counted = Counter(map(str, where.values()))
        assert answer["replicas"] == layout.replicas, case
        assert 0 in case["shape"] or {layout.replicas} == set(counted.values()), case
        itemsize = np.dtype(jax.numpy.dtype(case["dtype"])).itemsize
        assert answer["bytes_per_device"] == prod(shard_shape) * itemsize
        assert (
            answer["total_bytes"] == answer["bytes_per_device"] * len(where) == layout.total_bytes
        )
        assert answer["nbytes"] == prod(case["shape"]) * itemsize
        assert f"{answer['type']}: {answer['summary']}" == str(layout)
    assert (
        len(cases) > 1500 and kinds["fine"] > 1000 and min(kinds[kind] for kind in ERRORS) >= 20
    ), kinds


def shapes(svg):
    """What is drawn, as numbers and words."""
    names = (
        "x",
        "y",
        "width",
        "height",
        "fill",
        "stroke",
        "font-size",
        "text-anchor",
        "d",
        "viewBox",
    )
    found = []
    for tag in svg.find_all(["rect", "text", "path", "title", "desc"]):
        attributes = tuple(tag.get(name) for name in names)
        found.append((tag.name, *attributes, tag.get_text()))
    return [svg["width"], svg["height"], *found]


def test_pictures_are_those_of_shardlab_draw(bare):
    solved = zip(layout_cases(), solve(bare, "layout", layout_cases()), strict=True)
    cases = [case for case, answer in solved if "error" not in answer and all(case["shape"])][::6]
    drawn = bare.evaluate(
        "cases => cases.map((c) => explorer.drawLayout(explorer.layout(c)).outerHTML)", cases
    )
    for case, html in zip(cases, drawn, strict=True):
        layout = describe(
            NamedSharding(mesh_of(case["mesh"]), spec_of(case["spec"])),
            case["shape"],
            case["dtype"],
        )
        mine, theirs = (
            BeautifulSoup(text, "html.parser").figure for text in (html, draw(layout).html)
        )
        assert shapes(mine.svg) == shapes(theirs.svg), case
        assert mine.figcaption.get_text() == theirs.figcaption.get_text()
    assert len(cases) > 150


def run(code):
    names = {}
    exec(compile(code, "<explorer>", "exec"), names)
    return names


def test_the_code_of_a_layout_makes_that_layout_or_that_error(bare):
    small = [case for case in layout_cases() if prod(case["shape"]) < 10**4][::40]
    for case, answer in zip(small, solve(bare, "layout", small), strict=True):
        if "error" in answer:
            with pytest.raises(Exception, match=re.escape(answer["error"]["jax"])) as error:
                run(answer["code"])
            assert error.type.__name__ == ERRORS[answer["error"]["kind"]]
        else:
            x = run(answer["code"])["x"]
            assert x.dtype == case["dtype"] and x.shape == tuple(case["shape"])
            assert same_layout(x, NamedSharding(mesh_of(case["mesh"]), spec_of(case["spec"])))
            assert {s.data.nbytes for s in x.addressable_shards} == {answer["bytes_per_device"]}
    assert len(small) > 30


# --- Products: against shardlab.costs, and against what is compiled -------------------------------

DIMS = {"A": "IJ", "B": "JK", "C": "IK"}

# By the dimension that an axis shards in A, in B and in the wanted result: the number of the case,
# and the dimensions along which the product itself may then be split ("-" for none). Written by
# hand from the four cases of the chapters auto and costs.
CASES = {
    "---": "1 -", "--I": "1 I-", "--K": "1 K-",
    "I--": "1 I-", "I-I": "1 I-", "I-K": "1 IK-",
    "-K-": "1 K-", "-KI": "1 IK-", "-KK": "1 K-",
    "JJ-": "3 J", "JJI": "3 J", "JJK": "3 J",
    "J--": "2 J-", "J-I": "2 JI-", "J-K": "2 JK-",
    "-J-": "2 J-", "-JI": "2 JI-", "-JK": "2 JK-",
    "IJ-": "2 I-", "IJI": "2 I-", "IJK": "2 IK-",
    "JK-": "2 K-", "JKI": "2 IK-", "JKK": "2 K-",
    "IK-": "4 IK", "IKI": "4 IK", "IKK": "4 IK",
}  # fmt: skip


@cache
def matmul_cases():
    chance = random.Random(1_209)
    cases = []

    def add(mesh, sizes, specs, chip, dtype):
        a, b, c = ([list(specs[of][dim]) for dim in range(2)] for of in "abc")
        cases.append(
            {"mesh": mesh, "sizes": sizes, "a": a, "b": b, "c": c, "chip": chip, "dtype": dtype}
        )

    def specs_of(letters, axis):
        """For one axis, such as "IJ-": which dimension it shards of A, B and the result."""
        specs = {of: [[], []] for of in "abc"}
        for of, letter in zip("abc", letters, strict=True):
            if letter != "-":
                specs[of][DIMS[of.upper()].index(letter)] = [axis]
        return specs

    for letters in CASES:  # every combination on one axis, on every chip
        for chip in CHIPS.values():
            for n in (1, 4, 16):
                dtype = chance.choice(
                    [name for name in chip.flops_per_second if name in explorer.PRECISIONS]
                )
                sizes = [16 * 2 ** chance.randrange(12) for _ in range(3)]
                add([("x", n)], sizes, specs_of(letters, "x"), chip.name, dtype)
    for _ in range(700):
        sizes = chance.choice([sizes for sizes in SIZES if len(sizes) == 2])
        mesh = list(zip(("x", "y"), sizes, strict=True))
        specs = specs_of(chance.choice(list(CASES)), "x")
        for of, letter in zip("abc", chance.choice(list(CASES)), strict=True):
            if letter == "-":
                continue
            place = specs[of][DIMS[of.upper()].index(letter)]
            if not place or chance.random() < 0.05:  # an axis for each dimension
                place[:] = ["y"]
        if chance.random() < 0.05:
            specs["a"] = [["x"], ["x"]]
        lengths = [prod(sizes) * 2 ** chance.randrange(10) for _ in range(3)]
        if chance.random() < 0.06:
            lengths[chance.randrange(3)] += 1
        chip = chance.choice(list(CHIPS.values()))
        dtype = chance.choice(
            [
                name
                for name in explorer.PRECISIONS
                if name in chip.flops_per_second or chance.random() < 0.1
            ]
        )
        add(mesh, lengths, specs, chip.name, dtype)
    return cases


def refused(case):
    """Why there is no answer: JAX's error for the first array that it refuses, or that of
    shardlab.costs.
    """
    (i, j, k), mesh = case["sizes"], mesh_of(case["mesh"])
    for shape, spec in (((i, j), case["a"]), ((j, k), case["b"]), ((i, k), case["c"])):
        try:
            NamedSharding(mesh, spec_of(spec)).shard_shape(shape)
        except Exception as error:
            return str(error)
    try:
        sizes = [size for _, size in case["mesh"]]
        for size in sizes if CHIPS[case["chip"]].torus else [prod(sizes)]:  # GPUs in one node
            costs.collective_seconds("all-gather", 1, size, case["chip"])
        CHIPS[case["chip"]].peak(case["dtype"])
    except ValueError as error:
        return str(error)
    return None


def follow(case, plan):
    """Do what a plan says, step by step, and hold every number of it against shardlab.costs."""
    sizes, mesh = dict(zip("IJK", case["sizes"], strict=True)), dict(case["mesh"])
    itemsize, chip, dtype = costs.BYTES[case["dtype"]], case["chip"], case["dtype"]

    def axes_of(of, spec):
        return {
            dim: (axes[0] if axes and mesh[axes[0]] > 1 else None)
            for dim, axes in zip(DIMS[of], spec, strict=True)
        }

    held, partial = {"A": axes_of("A", case["a"]), "B": axes_of("B", case["b"])}, None

    def local(of):
        shape = tuple(sizes[dim] for dim in DIMS[of])
        return NamedSharding(mesh_of(case["mesh"]), P(*held[of].values())).shard_shape(shape)

    sent = communication = 0
    for step in plan["steps"]:
        if step["kind"] == "product":
            (m, k), (k2, n) = local("A"), local("B")
            assert (
                held["A"]["J"] == held["B"]["J"]
                and k == k2
                and (plan["m"], plan["k"], plan["n"]) == (m, k, n)
            )
            held["C"], partial = {"I": held["A"]["I"], "K": held["B"]["K"]}, held["A"]["J"]
            continue
        of, dim, axis = step["of"], step["dim"], step["axis"]
        before = prod(local(of)) * itemsize
        if step["kind"] == "slice":
            assert held[of][dim] is None and axis not in held[of].values()
            held[of][dim] = axis
            assert step["size"] == local(of)[DIMS[of].index(dim)]
            continue
        if step["kind"] == "all-gather":
            assert held[of][dim] == axis and (of != "C" or "C" in held)
            held[of][dim] = None
        else:
            assert of == "C" and partial == axis
            partial = None
            if step["kind"] == "reduce-scatter":
                assert held["C"][dim] is None and axis not in held["C"].values()
                held["C"][dim] = axis
            else:
                assert step["kind"] == "all-reduce" and dim == ""
        array = max(before, prod(local(of)) * itemsize)
        assert step["array_bytes"] == array and step["devices"] == mesh[axis]
        assert step["sent_bytes"] == pytest.approx(
            costs.collective_bytes(step["kind"], array, mesh[axis]), rel=1e-9
        )
        assert step["seconds"] == pytest.approx(
            costs.collective_seconds(step["kind"], array, mesh[axis], chip), rel=1e-9
        )
        sent, communication = sent + step["sent_bytes"], communication + step["seconds"]
    assert partial is None and held["C"] == axes_of("C", case["c"])
    roofline = costs.matmul(m, k, n, chip, dtype)
    close = {
        "sent_bytes": sent, "communication_seconds": communication, "flops": roofline.flops,
        "work_seconds": roofline.seconds,
        "compute_seconds": roofline.compute_seconds, "memory_seconds": roofline.memory_seconds,
        "seconds": max(roofline.seconds, communication),
    }  # fmt: skip
    assert {key: plan[key] for key in close} == pytest.approx(close, rel=1e-9)
    assert plan["bound"] == (
        "communication" if communication > roofline.seconds else roofline.bound
    )


def test_products_cost_what_shardlab_cost_says_and_follow_the_four_cases(bare):
    cases = matmul_cases()
    kinds = Counter()
    for case, answer in zip(cases, solve(bare, "matmul", cases), strict=True):
        why = refused(case)
        if "error" in answer:
            kinds[answer["error"]["kind"]] += 1
            assert why and (answer["error"].get("jax") or answer["error"]["words"]) in why, (
                case,
                why,
            )
            continue
        assert why is None, (case, why)
        places, choices = {}, []
        for axis, size in case["mesh"]:
            if size > 1:
                found = [
                    next(
                        (
                            dim
                            for dim, axes in zip(DIMS[of], case[of.lower()], strict=True)
                            if axis in axes
                        ),
                        "-",
                    )
                    for of in "ABC"
                ]
                number, ways = CASES["".join(found)].split()
                places[axis] = int(number)
                choices.append([(axis, way.strip("-")) for way in ways])
        assert answer["cases"] == places, case
        for number in places.values():
            kinds[f"case {number}"] += 1
        expected = [dict(ways) for ways in product(*choices)]
        expected = [
            w for w in expected if max(Counter(filter(None, w.values())).values(), default=0) < 2
        ]
        plans = answer["plans"]
        assert sorted(map(str, (plan["ways"] for plan in plans))) == sorted(map(str, expected)), (
            case
        )
        for plan in plans:
            follow(case, plan)
        assert answer["seconds"] == min(plan["seconds"] for plan in plans)
        assert {key: answer[key] for key in plans[0]} == plans[0]
        kinds["nothing sent"] += not answer["collectives"]
        kinds[answer["bound"]] += 1
        kinds.update({kind for kind, _ in answer["collectives"]})
    assert len(cases) > 1200 and len(kinds) == 14 and min(kinds.values()) >= 10, kinds


def test_the_code_of_a_product_sends_what_was_said(bare):
    cases = [{**case, "sizes": [64 * n for n in (3, 2, 5)]} for case in matmul_cases()]
    cases = [
        c
        for c in cases
        if c["dtype"] in ("bf16", "int8") and c["chip"] in ("v4", "v5p", "H100") and not refused(c)
    ]
    chance, kinds = random.Random(7), Counter()
    solved = list(zip(cases, solve(bare, "matmul", cases), strict=True))
    chance.shuffle(solved)
    sampled = {}  # a dozen of everything that is sent
    for case, answer in solved:
        sampled.setdefault(str(sorted(kind for kind, _ in answer["collectives"])), []).append(
            (case, answer)
        )
    for case, answer in [pair for pairs in sampled.values() for pair in pairs[:12]]:
        # The CPU's compiler sends sums in bfloat16 as float32: so does the whole program here, with
        # twice the bytes.
        wide = 2 if case["dtype"] == "bf16" else 1
        names = run(answer["code"].replace("jnp.bfloat16", "jnp.float32"))
        expected = [step for step in answer["steps"] if "seconds" in step]
        moves = collectives(names["compiled"], mesh=names["mesh"]).moves
        found = [(move.kind, *move.axes, move.bytes) for move in moves]
        assert sorted(found) == sorted(
            (s["kind"], s["axis"], wide * s["sent_bytes"]) for s in expected
        ), case
        a = chance.choices(range(-2, 3), k=64 * 3 * 64 * 2)
        A, B = (
            np.resize(a, names["A"].shape).astype("int8"),
            np.resize(a[5:], names["B"].shape).astype("int8"),
        )
        result = names["product"](A.astype(names["A"].dtype), B.astype(names["B"].dtype))
        assert (
            np.asarray(result) == (A.astype("int32") @ B.astype("int32")).astype(result.dtype)
        ).all()
        assert same_layout(result, NamedSharding(mesh_of(case["mesh"]), spec_of(case["c"])))
        kinds.update(s["kind"] for s in answer["steps"])
    assert {"slice", "all-gather", "all-reduce", "reduce-scatter"} <= set(kinds), kinds


# --- Steps and plans: against shardlab.costs and its plan -----------------------------------------


def test_machines_are_those_of_shardlab_hardware_and_its_errors_too(bare):
    numbers = [
        *range(1, 100),
        128,
        256,
        512,
        1000,
        1024,
        2048,
        4096,
        6144,
        8960,
        8961,
        16_384,
        100_000,
    ]
    cases = [(chip, n, slices) for chip in CHIPS for n in numbers for slices in (1, 2, 3, 8)]
    found, kinds = (
        bare.evaluate("cases => cases.map((given) => explorer.machine(...given))", cases),
        Counter(),
    )
    for (chip, chips, slices), one in zip(cases, found, strict=True):
        try:
            made = machine_of({"chip": chip, "chips": chips, "slices": slices, "reserve": 10})
        except ValueError as error:
            assert one == {"error": {"words": str(error)}}, (chip, chips, slices)
            kinds[re.sub(r"[\d,]+", "", str(error).replace(chip, ""))[:12]] += 1
            continue
        kinds["possible"] += 1
        assert (one["shape"], one["rings"], one["slices"], one["near"]) == (
            list(made.shape),
            list(made.rings),
            made.slices,
            made.near,
        )
    assert len(kinds) == 4 and min(kinds.values()) > 100, kinds


def test_steps_take_what_shardlab_cost_says(bare):
    cases = fit_cases()
    kinds = compare_steps(cases, solve(bare, "fit", cases))
    assert kinds.pop("host") >= 1  # few are bound by the link to the host
    assert kinds[True] + kinds[False] > 2000 and min(kinds.values()) > 20, kinds
    expected = {
        *explorer.STEP_AXES,
        "microbatches",
        "stages",
        "compute",
        "hbm",
        "fits without a reserve only",
        "refused",
    }
    assert {*expected, "fits without a reserve only"} <= set(kinds), kinds


def test_the_code_of_a_plan_makes_its_mesh_and_the_specs_of_shardlab_training(bare):
    chance, kinds = random.Random(3), Counter()
    names = [*explorer.STEP_AXES]
    for _ in range(60):
        name = chance.choice(list(explorer.MODELS))
        model = MODELS[name]
        sizes = dict(zip(names, (chance.choice((1, 2, 4)) for _ in names), strict=True))
        if chance.random() < 0.5:
            sizes |= {"pipeline": 1, "context": 1}
        if prod(sizes.values()) > 64 or model.layers % sizes["pipeline"]:
            continue
        how = {"microbatches": 4, "stages": chance.choice((1, 2)), "gathers": chance.choice((1, 2))}
        code = bare.evaluate("(given) => explorer.planCode(...given)", [SIZES_OF[name], sizes, how])
        made = run(code)
        mesh, specs = made["mesh"], made["specs"]
        assert {axis: n for axis, n in mesh.shape.items() if n > 1} == {
            a: n for a, n in sizes.items() if n > 1
        }
        more = [", 2 stages on each chip"] * (how["stages"] == 2) + [", gathered once"] * (
            how["gathers"] == 1
        )
        assert code.endswith("in 4 micro-batches" + "".join(more))
        shapes = {
            name: (shape, pads)
            for name, shape, pads in re.findall(r'"(\w+)": P\(.*  # \((.*?)\)(.*)', code)
        }
        held = 0
        for weight, spec in specs.items():
            shape, pads = shapes[weight]
            shape = tuple(int(size) for size in shape.split(",") if size.strip())
            for before, after in re.findall(r"; pad (\d+) to (\d+)", pads):
                shape = tuple(int(after) if size == int(before) else size for size in shape)
                kinds["padded"] += 1
            shard = NamedSharding(mesh, spec).shard_shape(shape)  # fails if it is not even
            held += prod(shard) if weight not in ("embed", "out", "norm", "norms") else 0
            kinds[len(shape)] += 1
        layers = model.layers * (model.attention_parameters + model.mlp_parameters)
        assert held == layers / prod(sizes[axis] for axis in names[1:])  # all axes but data
        if model.gated and not model.tied and sizes["pipeline"] == sizes["context"] == 1:
            groups = sizes["data"] * sizes["fsdp"]
            _, (state, tokens) = training_step(model, mesh, groups, 512)
            assert {name: array.sharding.spec for name, array in state["params"].items()} == specs
            assert tokens.sharding.spec == made["tokens"]
            kinds["training"] += 1
    assert kinds["training"] >= 8 and kinds[4] > 20 and kinds["padded"], kinds


# --- The page: by keyboard, by address, from a file, and without JavaScript -----------------------


def words(page, part="layout"):
    return page.locator(f"[data-explorer={part}] .explorer-words").inner_text()


def control(page, label, part="layout"):
    """The control that a screen reader calls so."""
    box = page.locator(f"[data-explorer={part}]")
    select, number, text = (
        box.get_by_role(role, name=label, exact=True)
        for role in ("combobox", "spinbutton", "textbox")
    )
    return select.or_(number).or_(text)


def test_scripts_and_styles_are_small_and_nothing_is_inline():
    files = list(STATIC.iterdir())
    typed = [name.removeprefix("explorer/") for name in specs.FILES if "/" in name]
    assert {file.name for file in files} == {
        *explorer.SCRIPTS,
        *explorer.STYLES,
        *typed,
        *FILES,
    }
    weights = {file.name: len(gzip.compress(file.read_bytes())) for file in files}
    assert sum(weights[name] for name in (*explorer.SCRIPTS, *explorer.STYLES)) <= 33 * 1024
    scripts = [name for name in FILES if name.endswith(".js")]  # of the planner
    assert sum(weights[name] for name in scripts) <= 35 * 1024
    assert sum(weights[name] for name in {*FILES} - {*scripts}) <= 3 * 1024
    assert sum(weights[name] for name in typed) <= 8 * 1024
    text = "".join(file.read_text() for file in files)
    assert not re.search(
        r"\beval\b|new Function|innerHTML|fetch\(|XMLHttp|\.on[a-z]+ ?=|import\b.*from\b.*js", text
    )


def test_it_works_under_a_policy_without_inline_scripts_and_requests_nothing(
    browser, bare, tmp_path
):
    body = Path(unquote(urlsplit(bare.url).path)).read_text()
    policy = "default-src 'none'; script-src file:; style-src 'unsafe-inline'"
    strict = tmp_path / "strict.html"
    strict.write_text(
        body.replace(
            "<title>", f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>'
        )
    )
    page, asked = browser.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(strict.as_uri())
    assert page.locator("[data-explorer] form").count() == 3 and "8 shards" in words(page)
    assert {urlsplit(url).scheme for url in asked} == {"file"}
    page.close()


@pytest.mark.parametrize("place", range(3), ids=["layout", "matmul", "fit"])
def test_each_calculator_works_on_a_page_by_itself(browser, tmp_path, place):
    part = calculators()[place]
    write_page(tmp_path / "one.html", part)
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "one.html").as_uri() + "#section")  # of the chapter: not for the explorer
    before = words(page, part.name)
    slider(
        page,
        {"layout": "Dimension 0, size", "matmul": "Size of J", "fit": "Chips"}[part.name],
        part.name,
    ).focus()
    page.keyboard.press("ArrowRight")
    after = words(page, part.name)
    assert before != after and f"#{part.name}?" in page.url and not errors
    page.goto((tmp_path / "one.html").as_uri() + "#nothing?a=b")
    page.reload()
    assert words(page, part.name).startswith(
        "The address is ignored: there is no calculator “nothing” on this page"
    )
    page.close()


def test_the_page_starts_with_what_its_cells_say(visit):
    plain, page = visit(java_script_enabled=False), visit()
    for part in ("layout", "matmul", "fit"):
        static = BeautifulSoup(plain.locator(f"[data-explorer={part}]").inner_html(), "html.parser")
        static.template.extract()
        live = BeautifulSoup(page.locator(f"[data-explorer={part}]").inner_html(), "html.parser")
        before, after = (soup.select("figure > svg") for soup in (static, live))
        assert before and [shapes(svg) for svg in before] == [shapes(svg) for svg in after]
        assert [svg.parent.figcaption.get_text() for svg in before] == [
            s.parent.figcaption.get_text() for s in after
        ]
        assert static.table and plain.locator(f"[data-explorer={part}] svg").first.is_visible()
    assert plain.locator("[data-explorer] form").count() == 0
    assert "4.57 ms" in words(page, "matmul") and "does not fit" in words(page, "fit")
    drawn = page.locator("[data-explorer=layout] tbody tr").all_inner_texts()
    assert [row.split("\t") for row in drawn][6] == ["device 6", "[4:8, 8:12]", "1 of 1", "64"]


def test_everything_can_be_reached_and_changed_by_keyboard(visit):
    page = visit()
    control(page, "Axes").focus()
    seen = []
    for _ in range(26):
        seen.append(
            page.evaluate(
                "(({ name, dataset, tagName }) => name || dataset.of || "
                "tagName)(document.activeElement)"
            )
        )
        page.keyboard.press("Tab")
    assert seen[:18] == [  # a number, and then its slider
        "axes", "devices", "devices", "name0", "size0", "size0", "name1", "size1", "size1",
        "SELECT",
        "dims", "dtype", "dim0", "dim0", "axes0", "dim1", "dim1", "axes1",
    ]  # fmt: skip
    assert seen[seen.index("pin") :][:4] == ["pin", "link", "code", "again"]
    control(page, "Dimension 0, axes").focus()
    page.keyboard.press("ArrowDown")  # from x to y: now twice
    assert "duplicate entries for `y`" in words(page) and 'P("y", "y")' in words(page)
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert words(page).startswith('P(None, "y")') and "2 replicas" in words(page)
    control(page, "Dimension 0, size").focus()
    page.keyboard.press("ArrowUp")
    assert "(9, 4)" in words(page)
    control(page, "Axis 2, name").fill("model")
    assert (
        words(page).startswith('P(None, "model")')
        and "@model" in page.locator("code").filter(has_text="f32[9").inner_text()
    )
    control(page, "Axis 2, devices").fill("")
    assert words(page) == "Axis 2, devices: a whole number from 1 to 64."
    control(page, "Axis 2, devices").fill("64")
    assert "128 devices" in words(page)
    control(page, "Dimensions").select_option("0")
    control(page, "Axis 2, devices").fill("4")
    assert "local shape (), 1 shard × 8 replicas" in words(page)
    page.keyboard.press("Enter")  # sends no form
    assert page.url.split("#")[0].endswith(
        "explorer.html"
    ) and "local shape (), 1 shard × 8 replicas" in words(page)
    live = page.locator(".explorer-words").evaluate_all(
        "all => all.map((p) => p.getAttribute('aria-live'))"
    )
    assert live == ["polite"] * 3
    assert page.locator("[data-explorer] :is(input, select)").evaluate_all(
        "all => all.every((c) => c.labels.length === (c.type === 'range' ? 0 : 1))"
    )
    sliders = page.locator("[data-explorer] input[type=range]").evaluate_all(
        "all => all.map((c) => c.ariaLabel)"
    )
    assert len(sliders) > 15 and all(name.endswith(", doubled or halved") for name in sliders)


def test_the_address_holds_the_state_and_history_goes_back(visit):
    page = visit()
    control(page, "Dimension 0, axes").select_option("x.y")
    assert page.url.endswith("#layout?mesh=x:2,y:4&shape=8,16&spec=x.y,y&dtype=float32")
    control(page, "Dimension 1, axes").select_option("-")
    control(page, "I of C", "matmul").select_option("x")
    assert (
        "#matmul?mesh=x:8&sizes=8192,8192,28672&a=-,x&b=x,-&c=x,-&chip=v5p&dtype=bf16" in page.url
    )
    assert "reduce-scatter" in words(page, "matmul")
    control(page, "Model", "fit").select_option("own")
    assert "layers=32" in page.url and control(page, "vocab", "fit").is_visible()
    control(page, "Tokens in a batch", "fit").fill("131072")
    page.keyboard.press("Tab")
    assert "This does not fit" in words(page, "fit") and "a reserve of 10 % leaves" in words(
        page, "fit"
    )
    control(page, "Memory reserve, %", "fit").select_option("5")
    assert (
        "This fits" in words(page, "fit")
        and "with 5 % reserved" in words(page, "fit")
        and page.url.endswith("&reserve=5")
    )
    page.go_back()
    assert "This does not fit" in words(page, "fit") and "a reserve of 10 % leaves" in words(
        page, "fit"
    )
    page.go_back()
    assert "does not fit" in words(page, "fit")
    page.go_back()
    page.go_back()
    assert "all-reduce" in words(page, "matmul") and words(page).startswith('P(("x", "y"), None)')
    page.go_back()
    assert "duplicate" in words(page)
    page.go_back()
    assert words(page).startswith('P("x", "y")') and "#" not in page.url
    page.go_forward()
    page.go_forward()
    shared = page.url
    page.reload()
    assert words(page).startswith('P(("x", "y"), None)')
    assert words(visit(shared[shared.index("#") :])).startswith('P(("x", "y"), None)')
    page.get_by_role("button", name="Start again").first.click()
    assert words(page).startswith('P("x", "y")')
    # as in JAX, a spec may end early
    assert words(visit("#layout?spec=y")).startswith('P("y", None)')


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("#layout?constructor=1", "“constructor” is not known"),
        ("#layout?__proto__=1", "“__proto__” is not known"),
        ("#constructor?x=1", "there is no calculator “constructor” on this page"),
        ("#__proto__?x", "there is no calculator “__proto__” on this page"),
        ("#lay-out?x", "there is no calculator “lay-out” on this page; did you mean “layout”?"),
        (
            "#layout?mesh=x:2,y:99",
            "“Axis 2, devices” cannot be “99”, only a whole number from 1 to 64",
        ),
        ("#layout?mesh=x:2,y", "“Axis 2, devices” cannot be “”"),
        ("#layout?mesh=x:8,y:16", "this mesh has 128 devices"),
        ("#layout?mesh=x:2,x:2", "two axes have the same name"),
        ("#layout?mesh=a b:2", "cannot be “a b”, only letters, digits and _, no digit first"),
        ("#layout?spec=w,-", "cannot be “w”, only -, x, y, x.y, y.x"),
        ("#layout?shape=8,8,8,8", "“shape” has too many entries"),
        ("#layout?shape=8,1.5", "“Dimension 1, size” cannot be “1.5”"),
        ("#layout?dtype=<img src=x>", "cannot be “<img src=x>”"),
        ("#layout?colour=red", "“colour” is not known"),
        ("#layout?", "“” is not known"),
        ("#layout?mesh=%E0%A4%A", "URI"),
        ("#nothing?a=b", "there is no calculator “nothing”"),
    ],
)
def test_an_address_that_asks_for_what_is_not_there_gets_a_word(visit, address, word):
    page = visit(address)
    assert words(page).startswith("The address is ignored: ") and word in words(page)
    assert words(page).endswith(
        "8 devices, 64 bytes each. All devices together hold 512 bytes; the array has 512."
    )
    assert page.locator("[data-explorer] img").count() == 0


def test_links_are_copied_and_told(visit):
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").nth(2).click()
    said = page.locator("[data-explorer=fit] [role=status]")
    said.filter(has_text="ink").wait_for()
    assert (
        "#fit?model=llama-3-8b&chip=v5e&slices=1&batch=262144" in page.url
        and "chips=" not in page.url
    )
    if said.inner_text() == "Link copied":
        assert page.evaluate("navigator.clipboard.readText()") == page.url
    else:
        assert said.inner_text() == "The link is in the address bar"
    page.get_by_role("button", name="Copy code").first.click()
    page.locator("[data-explorer=layout] [role=status]").filter(has_text="ode").wait_for()
    code = page.locator("[data-explorer=matmul]").get_by_role("button", name="Copy code")
    assert code.is_visible()
    control(page, "Size of J", "matmul").fill("9")  # refused: there is no code
    assert code.is_hidden()


def test_what_is_rematerialised_is_named(visit):
    page = visit()
    remat = control(page, "Rematerialised", "fit")
    shown = remat.locator("option").evaluate_all(
        "all => all.map((option) => [option.value, option.text])"
    )
    assert dict(shown) == {
        "none": "nothing",
        "matmuls": "attention scores",
        "mlp": "attention",
        "block": "whole layers",
        "offload": "layers, offloaded",
    }
    remat.select_option("attention scores")
    assert page.url.endswith("remat=matmuls&reserve=10")
    assert page.get_by_text("The model has 8,030,261,248 parameters.").is_visible()
    parts = page.locator('[aria-label="Time of a step"] th[scope=row]')
    assert "hbm" in parts.all_text_contents() and "host" not in parts.all_text_contents()
    remat.select_option("layers, offloaded")
    assert "host" in parts.all_text_contents()


@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_narrow_screens(visit, width):
    page = visit(
        "#layout?mesh=x:4,y:4,z:4&shape=64,64,8&spec=x,y.z,-",
        viewport={"width": width, "height": 800},
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.locator("[data-explorer] :is(input, select, button):visible").evaluate_all(
        "all => all.map((c) => c.getBoundingClientRect()).map((b) => [b.left, b.right, b.height])"
    )
    assert (
        all(0 <= left < right <= width and height >= 24 for left, right, height in boxes)
        and len(boxes) > 40
    )


# --- Chips follow from the mesh, and a mesh from the chips ----------------------------------------


def offered(page, part):
    """The meshes to choose from, as the page writes them."""
    return control(page, "Possible meshes", part).locator("option").all_inner_texts()


def shown_mesh(page, part, names):
    return [int(control(page, name, part).input_value()) for name in names]


def test_a_machine_that_does_not_exist_is_refused_with_the_nearest(visit):
    page = visit("#fit?model=llama-3-70b&chip=v5p&batch=1048576&chips=8")
    # chips that are asked for are of fsdp
    assert shown_mesh(page, "fit", explorer.STEP_AXES) == [1, 8, 1, 1, 1]
    control(page, "Chips", "fit").fill("16384")
    assert words(page, "fit") == (
        "no slice of v5p has 16,384 chips, the largest has 8,960; use 8,960 chips, or slices=4."
    )
    control(page, "Slices", "fit").fill("2")
    control(page, "Chips", "fit").fill("8192")
    assert (
        "no slice" not in words(page, "fit")
        and prod(shown_mesh(page, "fit", explorer.STEP_AXES)) == 8192
    )
    control(page, "Chip", "fit").select_option("H100")
    assert control(page, "Slices", "fit").is_hidden() and "slices" not in page.url
    control(page, "Chips", "fit").fill("12")
    assert words(page, "fit") == "12 H100 do not fill hosts of 8; use 8 or 16."
    control(page, "Chips", "fit").fill("16")
    for axis, size in (("tensor", "3"), ("fsdp", "16"), ("data", "1")):
        control(page, axis, "fit").fill(size)
    assert "a tensor axis of 3 cannot split 64 heads" in words(page, "fit")


def test_the_planner_is_asked_for_the_same_model_and_machine(visit):
    page = visit("#fit?model=own&layers=16&chip=v5p&chips=8&slices=2")
    link = page.get_by_role("link", name="All meshes for this model and machine").get_attribute(
        "href"
    )
    assert (
        link.startswith("planner.html#planner?model=own&layers=16&d_model=4096&")
        and "chip=v5p&chips=8&slices=2&" in link
    )
    control(page, "Model", "fit").select_option("llama-3-8b")
    control(page, "Chip", "fit").select_option("H100")
    link = page.get_by_role("link", name="All meshes for this model and machine").get_attribute(
        "href"
    )
    assert link == (
        "planner.html#planner?model=llama-3-8b&chip=H100&chips=8&batch=262144&sequence=4096&remat=block&reserve=10"
    )


def test_links_of_earlier_pages_show_the_same_step(visit):
    page = visit(
        "#fit?model=llama-3-8b&chip=v5e&batch=131072&sequence=4096&data=1&fsdp=8&tensor=2&remat=block&reserve=10"
    )
    assert shown_mesh(page, "fit", [*explorer.STEP_AXES, "Micro-batches", "Slices"]) == [
        1,
        8,
        2,
        1,
        1,
        1,
        1,
    ]
    step = costs.step_cost("llama-3-8b", "v5e", costs.Parallelism(1, 8, 2), 2**17)
    assert f"must hold {step.memory.total_bytes / 1e9:.1f} GB" in words(page, "fit")


def test_chips_follow_from_the_mesh(visit):
    page = visit()
    for axis, size in (("data", 2), ("fsdp", 8), ("tensor", 2)):
        control(page, axis, "fit").fill(str(size))
        sizes = shown_mesh(page, "fit", explorer.STEP_AXES)
        assert int(control(page, "Chips", "fit").input_value()) == prod(sizes)
        assert "a chip must hold" in words(page, "fit")
    control(page, "Chips", "fit").fill("64")
    assert prod(shown_mesh(page, "fit", explorer.STEP_AXES)) == 64
    control(page, "Chips", "fit").fill("")
    assert words(page, "fit") == "Chips: a whole number from 1 to 131,072."
    assert prod(shown_mesh(page, "fit", explorer.STEP_AXES)) == 64
    page = visit("#fit?chips=3&data=2&fsdp=4&tensor=1")  # the mesh decides
    assert control(page, "Chips", "fit").input_value() == "8"
    assert "“Chips” cannot be “0”, only a whole number from 1 to 131,072" in words(
        visit("#fit?chips=0"), "fit"
    )


@pytest.mark.parametrize("part", ["layout", "matmul"])
def test_devices_follow_from_the_mesh_and_every_mesh_of_so_many_is_offered(visit, part):
    page = visit()
    control(page, "Axes", part).select_option("2")
    for devices in (1, 12, 64):
        control(page, "Devices", part).fill(str(devices))
        pairs = {f"{n} × {devices // n}" for n in range(1, devices + 1) if devices % n == 0}
        assert {text.partition(":")[0] for text in offered(page, part)} == pairs
        sizes = shown_mesh(page, part, ["Axis 1, devices", "Axis 2, devices"])
        assert prod(sizes) == devices and max(sizes) / min(sizes) <= 2  # the most even one
    control(page, "Possible meshes", part).select_option("16x4")
    assert shown_mesh(page, part, ["Axis 1, devices", "Axis 2, devices", "Devices"]) == [16, 4, 64]
    control(page, "Axis 1, devices", part).fill("3")
    assert control(page, "Devices", part).input_value() == "12"
    control(page, "Axes", part).select_option("1")
    assert control(page, "Devices", part).input_value() == "3"


def test_meshes_that_jax_refuses_are_marked(visit):
    page = visit("#layout?devices=12&shape=8,16&spec=x,y")
    sharding = {text: re.findall(r"\d+", text) for text in offered(page, "layout")}
    assert len(sharding) == 6
    for text, (rows, columns) in sharding.items():
        assert text.endswith(": JAX refuses this") == bool(8 % int(rows) or 16 % int(columns)), text


# --- Sliders --------------------------------------------------------------------------------------


def slider(page, label, part):
    return page.locator(f"[data-explorer={part}]").get_by_role(
        "slider", name=f"{label}, doubled or halved", exact=True
    )


def test_sliders_double_and_halve_by_keyboard_and_pointer(visit):
    page = visit()
    batch = slider(page, "Tokens in a batch", "fit")
    batch.focus()
    page.keyboard.press("ArrowLeft")
    assert (
        control(page, "Tokens in a batch", "fit").input_value() == "131072"
        and "batch=131072" in page.url
    )
    page.keyboard.press("End")
    assert control(page, "Tokens in a batch", "fit").input_value() == str(2**24)
    assert batch.get_attribute("aria-valuetext") == str(2**24)
    control(page, "Dimension 0, size").fill("24")
    assert slider(page, "Dimension 0, size", "layout").get_attribute("aria-valuetext") == "24"
    columns = slider(page, "Dimension 1, size", "layout")
    columns.click(position={"x": columns.bounding_box()["width"] - 3, "y": 16})  # at its end
    assert control(page, "Dimension 1, size").input_value() == "1024" and "(12, 256)" in words(page)
    slider(page, "Chips", "fit").focus()
    page.keyboard.press("ArrowRight")
    assert prod(shown_mesh(page, "fit", costs.AXES)) == 32


def test_no_slider_leads_to_a_mesh_that_is_too_large(visit):
    page = visit("#layout?shape=64,64")
    for label in ("Axis 1, devices", "Axis 2, devices", "Devices"):
        slider(page, label, "layout").focus()
        page.keyboard.press("End")
        assert control(page, "Devices").input_value() == "64" and "64 devices" in words(page), label
    assert shown_mesh(page, "layout", ["Axis 1, devices", "Axis 2, devices"]) == [16, 4]


# --- What stays in sight --------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["layout", "matmul", "fit"])
def test_the_result_stays_in_sight_beside_or_below_the_controls(visit, part):
    page = visit(viewport={"width": 1440, "height": 900})
    form, said = (
        page.locator(f"[data-explorer={part}] form"),
        page.locator(f"[data-explorer={part}] .explorer-words"),
    )
    page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")

    def boxes(below):
        script = (
            "([box, below]) => scrollBy(0, "
            "document.querySelector(box).getBoundingClientRect().top - below)"
        )
        page.evaluate(script, [f"[data-explorer={part}]", below])
        return form.bounding_box(), said.bounding_box()

    controls, result = boxes(100)
    assert result["x"] > controls["x"] + controls["width"] and abs(result["y"] - controls["y"]) < 20
    both = page.locator(f"[data-explorer={part}] .explorer-both")
    whole = both.bounding_box()["height"]
    assert controls["height"] < 640
    beside = page.locator(f"[data-explorer={part}] .explorer-result").bounding_box()["height"]
    shorter = min(controls["height"], beside)
    # halfway between where the shorter one begins to stay and where what is beside it ends
    boxes(0)
    controls, result = boxes(60 - both.bounding_box()["y"] - (whole - shorter) / 2)
    assert both.bounding_box()["y"] < 50 <= (controls if shorter < beside else result)["y"] < 80

    page.set_viewport_size({"width": 390, "height": 844})
    controls, result = boxes(60)
    gap = result["y"] - controls["y"] - controls["height"]
    assert 0 <= gap < 20 and controls["height"] < 560, (controls, result)
    assert result["y"] + 120 < 844  # its first lines show while one changes the controls


# --- The memory of a chip as a bar ----------------------------------------------------------------


def bar_of(svg):
    """Widths of the parts, where the chip's memory ends, and where the bar ends, in px of the
    drawing.
    """
    rects = [[float(rect[name]) for name in ("x", "width")] for rect in svg.find_all("rect")]
    lines = [
        path["d"]
        for path in svg.find_all("path", recursive=False)
        if path.get("stroke-width") == "4"
    ]
    return (
        [width for _, width in rects[:7]],
        float(re.match(r"M([\d.]+)", lines[0])[1]),
        sum(rects[6]),
    )


def test_the_bar_shows_the_parts_the_capacity_and_what_is_too_much(bare):
    plain = {"bf16": ("parameters", "gradients"), "f32": ("moments",), "none": ("master",)}
    cases = [
        case
        for case in fit_cases()
        if not case["model"].get("experts")
        and case["expert"] == 1
        and case.get("products", "bf16") == "bf16"
        and not case.get("lora")
        and all(case.get(name, dtype) == dtype for dtype, names in plain.items() for name in names)
    ][::4]
    answers = solve(bare, "fit", cases)
    drawn = bare.evaluate(
        """cases => cases.map((given) => {
            if (explorer.fit(given).error) return null;
            const text = Object.fromEntries(Object.entries(given).map(([name, value]) => [name, `${value}`]));
            const model = Object.fromEntries(Object.entries(given.model).map(([name, value]) =>
                [name, typeof value === "boolean" ? (value ? "yes" : "no") : `${value}`]));
            return explorer.parts.fit.show({ ...text, ...model, model: "own" }).draw().outerHTML;
        })""",  # noqa: E501
        cases,
    )
    kinds = Counter()
    for case, answer, html in zip(cases, answers, drawn, strict=True):
        if html is None:
            continue
        model = Model(**case["model"])
        axes = costs.Parallelism(
            **{axis: case[axis] for axis in (*explorer.STEP_AXES, "microbatches", "stages")}
        )
        memory = costs.training_memory(
            model, axes, case["batch"], case["remat"], gathers=case["gathers"]
        )
        figure = BeautifulSoup(html, "html.parser").figure
        widths, end, last = bar_of(figure.svg)
        has, total = CHIPS[case["chip"]].hbm_bytes, float(memory.total_bytes)
        scale = 312 / max(has, total)
        assert sum(widths) == pytest.approx(total * scale, abs=0.4) and end == pytest.approx(
            has * scale, abs=0.06
        )
        assert last == pytest.approx(total * scale, abs=0.2)
        over = figure.svg.find_all("path", style=re.compile("--bad"))
        assert len(over) == len(figure.svg.find_all("svg")) == (total > has)
        legend = [key.get_text() for key in figure.select(".explorer-key")]
        assert [text.split()[0] for text in legend] == list("1234567")
        assert sum(float(text.split()[-2]) for text in legend) == pytest.approx(
            total / 1e9, abs=0.05
        )
        kinds[bool(over)] += 1
        assert answer["total_bytes"] == pytest.approx(total)
    assert min(kinds.values()) > 15 and len(kinds) == 2


# --- Two states side by side ----------------------------------------------------------------------


def compared(page, part):
    """The table of both states: {quantity: [pinned, now, difference]}."""
    rows = page.locator(f"[data-explorer={part}] [aria-label='Pinned and now'] tbody tr")
    return {
        row[0]: row[1:]
        for row in (text.replace("\xa0", " ").split("\t") for text in rows.all_inner_texts())
    }


def quantity(text):
    number, unit = text.replace("−", "-").replace(",", "").split(" ", 1)
    unit = unit.split(" (")[0]
    units = {
        "bytes": 1,
        "kB": 1e3,
        "MB": 1e6,
        "GB": 1e9,
        "ns": 1e-9,
        "µs": 1e-6,
        "ms": 1e-3,
        "s": 1,
        "%": 0.01,
    }
    return float(number) * units[unit]


def test_two_steps_are_compared_in_numbers(visit):
    page = visit()
    page.locator("[data-explorer=fit]").get_by_role("button", name="Pin to compare").click()
    assert {row[2] for row in compared(page, "fit").values()} == {"same"}
    control(page, "Chip", "fit").select_option("v5p")
    control(page, "Chips", "fit").fill("64")
    for label, size in (("data", "4"), ("fsdp", "16"), ("Micro-batches", "1")):
        control(page, label, "fit").fill(size)
    rows = compared(page, "fit")
    model, before, after = (
        MODELS["llama-3-8b"],
        costs.Parallelism(1, 16, 1),
        costs.Parallelism(4, 16, 1),
    )
    a, b = costs.step_cost(model, "v5e", before, 2**18), costs.step_cost(model, "v5p", after, 2**18)
    expected = {
        "activations": (a.memory.activation_bytes, b.memory.activation_bytes),
        "at least": (a.seconds, b.seconds),
        "expected": (a.expected_seconds, b.expected_seconds),
        "all on a chip": (a.memory.total_bytes, b.memory.total_bytes),
        "MFU": (a.expected_mfu, b.expected_mfu),
        "without overlap": (a.serial_seconds, b.serial_seconds),
    }  # fmt: skip
    for name, (old, new) in expected.items():
        pinned, now, by = rows[name]
        assert [quantity(pinned), quantity(now)] == pytest.approx(
            [float(old), float(new)], rel=0.006
        ), name
        if by != "same":
            assert quantity(by.lstrip("+")) == pytest.approx(float(new - old), rel=0.006), name
            assert float(re.search(r"× ([\d.]+)\)", by)[1]) == pytest.approx(
                float(new / old), rel=0.006
            ), name
    assert rows["chips"] == ["16", "64", "+48 (× 4)"] and rows["parameters"][2] == "same"
    assert rows["activations"][2].endswith("(× 0.25)") and "all on a chip: −" in words(page, "fit")
    # Both bars have the same scale.
    bars = [
        BeautifulSoup(html, "html.parser")
        for html in page.locator("[data-explorer=fit] figure").evaluate_all(
            "all => all.map((figure) => figure.outerHTML)"
        )
    ]
    (first, end_first, _), (second, end_second, _) = (bar_of(bar.svg) for bar in bars)
    assert end_first / end_second == pytest.approx(
        CHIPS["v5e"].hbm_bytes / CHIPS["v5p"].hbm_bytes, rel=0.01
    )
    assert second[3] / first[3] == pytest.approx(0.25, rel=0.02)


def test_what_is_pinned_is_in_the_address_and_in_the_history(visit):
    page = visit()
    control(page, "Dimension 0, axes").select_option("x.y")
    control(page, "Dimension 1, axes").select_option("-")
    pin = page.locator("[data-explorer=layout]").get_by_role("button", name="Pin to compare")
    pin.focus()
    page.keyboard.press("Enter")
    control(page, "Dimension 0, axes").select_option("y.x")
    assert page.url.endswith(
        "#layout?mesh=x:2,y:4&shape=8,16&spec=y.x,-&dtype=float32~mesh=x:2,y:4&shape=8,16&spec=x.y,-&dtype=float32"
    )
    mesh = mesh_of([("x", 2), ("y", 4)])
    held = [
        {
            shard.device: shard.index
            for shard in describe(NamedSharding(mesh, P(axes)), (8, 16)).shards
        }
        for axes in (("x", "y"), ("y", "x"))
    ]
    moved = sum(held[0][device] != held[1][device] for device in held[0])
    shared = visit(page.url[page.url.index("#") :])
    for one in (page, shared):
        assert compared(one, "layout")["devices that hold another shard"][2] == f"{moved} of 8"
        assert (
            "Compared with the pinned state: bytes on a device: same; devices that hold "
            f"another shard: {moved} of 8. "
        ) in words(one)
        sides = one.locator("[data-explorer=layout] .explorer-side").all_inner_texts()
        assert sides == ['Pinned P(("x", "y"), None)', 'Now P(("y", "x"), None)']
        assert one.locator("[data-explorer=layout] figure").count() == 2
    # refused: nothing to compare, but what is pinned stays so
    control(page, "Dimension 0, size").fill("9")
    assert "JAX refuses this" in words(page) and not compared(page, "layout")
    control(page, "Dimension 0, size").fill("16")
    assert compared(page, "layout")["bytes on a device"] == [
        "64 bytes",
        "128 bytes",
        "+64 bytes (× 2)",
    ]
    page.get_by_role("button", name="Unpin").click()
    assert not compared(page, "layout") and "~" not in page.url
    page.go_back()
    assert compared(page, "layout") and "~" in page.url
    wrong = visit("#layout?spec=x,y~shape=9,16&spec=x,y")
    assert words(wrong).startswith("The address is ignored: what it pins is not possible.")
    assert not compared(wrong, "layout")


def test_products_are_compared_too(visit):
    page = visit("#matmul?c=x,-~c=-,-", viewport={"width": 1024, "height": 768})
    rows = compared(page, "matmul")
    reduced, scattered = (
        costs.collective_seconds(kind, 2 * 8192 * 28_672, 8, "v5p")
        for kind in ("all-reduce", "reduce-scatter")
    )
    assert [quantity(text) for text in rows["communication"][:2]] == pytest.approx(
        [reduced, scattered], rel=0.006
    )
    assert rows["communication"][2].endswith("(× 0.5)") and rows["product"][2] == "same"
    sent = [
        costs.collective_bytes(kind, 2 * 8192 * 28_672, 8)
        for kind in ("all-reduce", "reduce-scatter")
    ]
    assert [quantity(text) for text in rows["sent by a device"][:2]] == pytest.approx(
        sent, rel=0.006
    )
    assert page.locator("[data-explorer=matmul] figure").count() == 6
    sides = page.locator("[data-explorer=matmul] .explorer-side").all_inner_texts()
    assert sides == ["Pinned v5p, x 8: communication-bound", "Now v5p, x 8: communication-bound"]
    table = page.get_by_role("region", name="Pinned and now")
    assert table.evaluate("(box) => box.scrollWidth <= box.clientWidth")


# --- Names that were mistyped ---------------------------------------------------------------------


def test_the_nearest_name_is_that_of_shardlab(bare):
    chance = random.Random(11)
    lists = [
        list(CHIPS),
        list(MODELS),
        list(explorer.DTYPES),
        list(explorer.PRECISIONS),
        ["data", "model", "expert"],
    ]
    cases = []
    for known in lists:
        for _ in range(120):
            name = list(chance.choice(known))
            for _ in range(chance.choice((1, 1, 2, 4, 6))):
                place = chance.randrange(len(name) + 1)
                name[place : place + chance.choice((0, 1, 1))] = chance.choice(
                    ("", "x", "3", "-", "A", "l")
                )
            cases.append(("".join(name), known))
    found = bare.evaluate(
        "cases => cases.map(([name, known]) => explorer.nearest(name, known))", cases
    )
    for (name, known), one in zip(cases, found, strict=True):
        assert nearest(name, known) == (f"; did you mean {one!r}?" if one else ""), (name, known)
    assert 20 < found.count("") < 400


@pytest.mark.parametrize(
    ("address", "part", "meant"),
    [
        ("#layout?mesh=data:2,model:4&spec=dta,-", "layout", "data"),
        ("#layout?dtype=bfloat", "layout", "bfloat16"),
        ("#matmul?chip=v5", "matmul", "v5p"),
        ("#matmul?dtype=bf32", "matmul", "bf16"),
        ("#fit?model=lama-3-8b", "fit", "llama-3-8b"),
        ("#fit?chip=h100", "fit", "H100"),
        ("#fit?fspd=8", "fit", "fsdp"),
        ("#layuot?spec=x", "layout", "layout"),
    ],
)
def test_mistyped_names_in_an_address_get_the_nearest_one(visit, address, part, meant):
    said = words(visit(address), part)
    assert said.startswith("The address is ignored: ") and f"did you mean “{meant}”?" in said


@pytest.mark.parametrize(
    ("make", "meant"),
    [
        (lambda mesh: explorer.layout(NamedSharding(mesh, P("x")), (8, 8), "bfloat"), "bfloat16"),
        (lambda mesh: explorer.matmul(mesh, (8, 8, 8), P(), P(), P(), "V5P"), "v5p"),
        (lambda mesh: explorer.matmul(mesh, (8, 8, 8), P(), P(), P(), "v5p", "bf61"), "bf16"),
        (lambda mesh: explorer.fit("lama-3-8b", "v5p", costs.Parallelism(), 4096), "llama-3-8b"),
        (lambda mesh: explorer.fit("llama-3-8b", "h100", costs.Parallelism(), 4096), "H100"),
    ],
)
def test_mistyped_names_in_a_cell_get_the_nearest_one(make, meant):
    with pytest.raises(ValueError, match=f"did you mean {meant!r}"):
        make(mesh_of([("x", 8)]))
