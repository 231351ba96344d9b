"""The scripts that clusters.md hands out, held against what it says of them."""

import os
import re
import subprocess

import pytest
import yaml
from places import ROOT
from repository import BOOK

pytestmark = pytest.mark.reads("book", "src", "_config.yml", "_toc.yml")

FOLDER = ROOT / "book" / "cluster"
SCRIPTS = {file.name: file.read_text("utf-8") for file in FOLDER.iterdir() if file.is_file()}
CHAPTER = BOOK.chapter("clusters").text
# Values of options that the chapter names and our scripts do not have, each with the reason.
ELSEWHERE = {
    "--gpus-per-task=1": "a mistake that the section is about",
    "--gpu-bind=none": "its cure, where a centre's default differs",
    "--array=0-7": "another kind of job",
    "--ip=0.0.0.0": "of a notebook",
    "--ntasks-per-node=1": "the other common shape of a job",
}


def test_an_option_with_a_value_stands_in_the_script():
    fence = r"(?s)```.*?^```"
    prose = re.sub(fence, "", CHAPTER, flags=re.MULTILINE)
    taught = CHAPTER.partition("## Exercises")[0]  # one of these has a script with mistakes
    commands = "\n".join([*SCRIPTS.values(), *re.findall(fence, taught, re.MULTILINE)])
    options = [
        word
        for span in re.findall(r"`([^`]*)`", prose)
        for word in span.split()
        if re.match(r"--[\w-]+=", word)
    ]
    assert len(set(options)) > 12
    assert sorted({option for option in options if option not in commands}) == sorted(ELSEWHERE)


def test_the_signal_comes_when_the_text_says():
    (seconds,) = {
        int(number)
        for text in (*SCRIPTS.values(), CHAPTER)
        for number in re.findall(r"TERM@(\d+)", text)
    }
    said = re.findall(r"TERM@\d+`[^.]*?\b(two|three|five|ten) (?:to \w+ )?minutes", CHAPTER)
    assert len(said) == 3 and set(said) == {
        {120: "two", 180: "three", 300: "five", 600: "ten"}[seconds]
    }


def test_tpu_sh_copies_the_program_to_all_hosts_and_starts_it_there(tmp_path):
    gcloud = tmp_path / "gcloud"
    gcloud.write_text('#!/bin/bash\nprintf "%s\\n" "$@" "" >>"$0.txt"\n')
    gcloud.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "JAX_NOTE": "it's $HOME",
    }
    script = FOLDER / "tpu.sh"
    few = subprocess.run(
        ["bash", script, "my-tpu"], env=environment, capture_output=True, text=True
    )
    assert few.returncode != 0 and "zone" in few.stderr and not (tmp_path / "gcloud.txt").exists()
    command = [
        "bash",
        script,
        "my-tpu",
        "us-east5-a",
        "4",
        "jobs/train.py",
        "--folder",
        "gs://b/a run",
    ]
    subprocess.run(command, env=environment, check=True)
    copy, start = (tmp_path / "gcloud.txt").read_text().strip().split("\n\n")
    tpu = ["compute", "tpus", "tpu-vm"]
    where = {"my-tpu", "--zone=us-east5-a", "--worker=all"}
    assert copy.split("\n")[:7] == [*tpu, "scp", "jobs/train.py", "join.py", "watchdog.py"]
    assert "my-tpu:" in copy.split("\n")
    assert start.split("\n")[:4] == [*tpu, "ssh"] and where <= set(start.split("\n"))
    (remote,) = (
        word.partition("=")[2] for word in start.split("\n") if word.startswith("--command=")
    )
    # by the shell of a host
    run = f'python3() {{ printf "%s|" "$NUM_PROCESSES" "$JAX_NOTE" "$@"; }}\n{remote}'
    said = subprocess.run(["bash", "-c", run], capture_output=True, text=True, check=True).stdout
    assert said == "4|it's $HOME|-u|train.py|--folder|gs://b/a run|"


def test_the_comments_of_the_job_set_are_its_values():
    job = list(yaml.safe_load_all(SCRIPTS["jobset.yaml"]))[-1]["spec"]
    spec = job["replicatedJobs"][0]["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    pods, gpus = re.search(r"JobSet .*?: (\w+) pods of (\w+) GPUs", SCRIPTS["jobset.yaml"]).groups()
    numbers = {"two": 2, "four": 4, "eight": 8}
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert (
        spec["parallelism"]
        == spec["completions"]
        == numbers[pods]
        == int(environment["NUM_PROCESSES"])
    )
    assert (
        container["resources"]["limits"]["nvidia.com/gpu"] == numbers[gpus]
        and job["failurePolicy"]["maxRestarts"]
    )
    assert (
        container["command"][2] in SCRIPTS and spec["template"]["spec"]["restartPolicy"] == "Never"
    )
