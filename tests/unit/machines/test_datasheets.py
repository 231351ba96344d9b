"""What hardware.py has of each chip, held against a second typing of its sources."""

import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest

from shardlab import hardware
from shardlab.machines.models import MODELS, from_config

SHEETS = tomllib.loads((Path(__file__).parent / "datasheets.toml").read_text("utf-8"))
GPUS, CONFIGS = SHEETS.pop("xla"), SHEETS.pop("configs")
# What XLA's description of a GPU calls an attribute of `GpuDescription`.
XLA = {
    "cores": "core_count", "units": "fpus_per_core",
    "shared_bytes_per_core": "shared_memory_per_core",
    "shared_bytes_per_block": "shared_memory_per_block_optin", "l2_bytes": "l2_cache_size",
    "clock_ghz": "clock_rate_ghz", "memory_bytes": "device_memory_size",
}  # fmt: skip
UNITS = {"FLOPS": 1, "OPS": 1, "B": 1, "Bps": 1, "bps": 1 / 8, "iB": 1, "us": 1e-6}
DECIMAL = {"": 1, "G": 1e9, "T": 1e12, "P": 1e15}
# What the sheet calls an attribute of `Chip`.
NAMES = {
    "hbm_bytes": "memory", "hbm_bytes_per_second": "bandwidth", "link_bytes_per_second": "link",
    "link_seconds": "hop", "torus": "torus", "node_chips": "node",
    "network_bytes_per_second": "network",
    "network_seconds": "message", "host_chips": "tray", "host_bytes_per_second": "host",
    "peers": "peers",
}  # fmt: skip


def quantity(text):
    """A sheet's value for one chip, one way and dense, in bytes, FLOPs or seconds."""
    number, prefix, unit, rest = re.fullmatch(
        r"([\d.]+) ([GTP]?)(FLOPS|OPS|Bps|bps|iB|B|us)((?: .*)?)", text
    ).groups()
    value = float(number) * (2**30 if unit == "iB" else DECIMAL[prefix]) * UNITS[unit]
    value /= 2 ** (("both ways" in rest) + ("sparse" in rest))
    shared = re.search(r"for (\d+)", rest)
    return value / int(shared[1]) if shared else value


def expected(sheet, name):
    if name == "torus":
        return tuple(map(int, sheet["torus"].split("x"))) if "torus" in sheet else ()
    value = sheet.get(NAMES[name], 0)
    return quantity(value) if isinstance(value, str) else value


def test_a_value_is_read_in_its_unit_and_direction():
    values = ["600 GBps both ways", "72 PFLOPS sparse for 8", "50 Gbps", "32 GiB", "0.6 us"]
    assert [quantity(text) for text in values] == pytest.approx(
        [300e9, 4.5e15, 6.25e9, 32 * 2**30, 0.6e-6]
    )


@pytest.mark.parametrize("name", hardware.CHIPS)
def test_a_chip_is_its_data_sheet(name):
    chip, sheet = hardware.CHIPS[name], SHEETS[name]
    speeds = {
        key: quantity(value)
        for key, value in sheet.items()
        if key in ("bf16", "fp8", "int8", "fp4")
    }
    assert chip.flops_per_second == pytest.approx(speeds, rel=1e-4)
    assert {field.name for field in fields(chip)} == {*NAMES, "name", "flops_per_second"}
    for attribute in NAMES:
        # A rack's total has three digits.
        close = 4e-3 if "for 72" in str(sheet.get(NAMES[attribute])) else 1e-4
        assert getattr(chip, attribute) == pytest.approx(expected(sheet, attribute), rel=close), (
            attribute
        )


def test_each_chip_has_one_sheet_of_known_names():
    assert SHEETS.keys() == hardware.CHIPS.keys()
    assert {key for sheet in SHEETS.values() for key in sheet} == {
        *NAMES.values(),
        "bf16",
        "fp8",
        "int8",
        "fp4",
    }


@pytest.mark.parametrize("name", hardware.COMPILED_GPUS)
def test_a_gpu_is_what_its_compiler_says(name):
    gpu = hardware.COMPILED_GPUS[name]
    assert {field.name for field in fields(gpu)} == {*XLA, "chip", "capability"}
    assert {key: getattr(gpu, key) for key in XLA} == {
        key: GPUS[name][other] for key, other in XLA.items()
    }
    assert gpu.capability == f"{GPUS[name]['major']}.0" and gpu.chip.name.lower() == name


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_what_its_configuration_says(name):
    assert replace(from_config(CONFIGS[name]), name=name) == MODELS[name]


def test_all_gpus_and_models_have_a_sheet():
    assert GPUS.keys() == hardware.COMPILED_GPUS.keys() and CONFIGS.keys() == MODELS.keys()
