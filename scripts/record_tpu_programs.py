#!/usr/bin/env python3
"""Compile the programs of tests/unit/programs/tpu_programs for TPUs, and record the compiler's text
there.

It needs libtpu, but no TPU: run it after `pip install "jax[tpu]==VERSION"`, once with each version
of JAX that is to be recorded (from 0.7.1 on). Parts that do not concern communication are removed:
tables of sources, and the attributes `metadata` and `backend_config`; the latter is kept if it says
how often a loop runs.
"""

import argparse
import datetime
import gzip
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests" / "unit" / "programs"


def trimmed(text):
    """A program's text without what the reading of communication does not need."""
    text = re.sub(r"\n\nFileNames\n.*?\n\n(?=\n*(?:%|ENTRY ))", "\n\n", text, flags=re.DOTALL)
    lines = []
    for line in text.splitlines():
        line = re.sub(r', metadata=\{(?:[^{}"]|"[^"]*")*\}', "", line)
        start, config, rest = line.partition(", backend_config=")
        trips = re.search(r'"known_trip_count":\{[^}]*\}', rest)
        lines.append(start + (f"{config}{{{trips[0]}}}" if trips else ""))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def main():
    """Record one file for each place, or some."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "places", nargs="*", metavar="PLACE", help="such as v5e-2x4; every place, if none is named"
    )
    wanted = parser.parse_args().places
    try:
        libtpu = version("libtpu")
        import jax
    except (PackageNotFoundError, ImportError) as error:
        sys.exit(
            f'{error}\n{sys.executable} lacks JAX for TPUs: pip install "jax[tpu]==0.12.0.1", '
            "or another version"
        )
    # libtpu must not look for a TPU on this machine.
    os.environ.update(
        TPU_SKIP_MDS_QUERY="1",
        TPU_ACCELERATOR_TYPE="v5litepod-16",
        TPU_WORKER_HOSTNAMES="localhost",
        JAX_PLATFORMS="cpu",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    )
    sys.path.insert(0, str(TESTS))
    import numpy as np
    from jax.experimental import topologies
    from tpu_programs import FOLDER, PLACES, PROGRAMS

    unknown = set(wanted) - set(PLACES)
    if unknown:
        parser.error(f"no such place: {', '.join(sorted(unknown))}; there are {', '.join(PLACES)}")
    for place in wanted or PLACES:
        name, slices, sizes = PLACES[place]
        several = {"num_slices": slices} if slices > 1 else {}
        topology = topologies.get_topology_desc(platform="tpu", topology_name=name, **several)
        # On one slice, neighbours in the mesh are neighbours on the chips' network.
        devices = (
            np.array(topology.devices)
            if several
            else topologies.make_mesh(topology, [*sizes.values()], sizes).devices
        )
        axis_types = (jax.sharding.AxisType.Auto,) * len(sizes)
        mesh = jax.sharding.Mesh(
            devices.reshape([*sizes.values()]), tuple(sizes), axis_types=axis_types
        )
        parts = [
            (
                f"Made by scripts/record_tpu_programs.py on {datetime.date.today()} with JAX "
                f"{jax.__version__} and libtpu {libtpu}, for TPU {name}, {slices} slice(s), mesh "
                f"{sizes} of devices {[device.id for device in mesh.devices.flat]}. The programs "
                "are in __init__.py.\n"
            )
        ]
        for title, program in PROGRAMS.items():
            if program.belongs(place):
                f, *args = program.build(mesh)
                compiled = f.lower(*args).compile(
                    compiler_options=program.options.get(place.partition("-")[0])
                )
                parts.append(f"===== {title} =====\n{trimmed(compiled.as_text())}")
        path = FOLDER / f"{place}-jax-{jax.__version__}.txt.gz"
        path.write_bytes(gzip.compress("\n".join(parts).encode(), mtime=0))
        print(f"{path.name}: {len(parts) - 1} programs, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
