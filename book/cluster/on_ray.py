"""Run a program of this chapter on a Ray cluster: an actor for each process, and a new start if one
fails.

ray start --head                          # on the first node
ray start --address=node1:6379            # on each other node
JAX_PLATFORMS=cuda python on_ray.py --processes 8 --gpus 1 train.py --folder /shared/run

Every node needs this folder at the same path. Ray places the actors and says where they are;
join.py does the rest.
"""

import argparse
import os
import runpy
import socket
import sys
from pathlib import Path

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(max_restarts=0)
class Process:
    """One process of the program; JAX can start only once in it."""

    def address(self):
        """A host and a port at which process 0 can wait for the others."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def run(self, program, arguments, variables):
        """Run the program as `python program arguments` would."""
        os.environ.update(variables)
        sys.argv, sys.path[:0] = [program, *arguments], [str(Path(program).parent)]
        runpy.run_path(program, run_name="__main__")


def start(options, program, arguments):
    """Start all processes, and wait until the program has ended in each of them."""
    each = {"CPU": options.cpus} | ({"GPU": options.gpus} if options.gpus else {})
    places = placement_group([each] * options.processes, strategy="SPREAD")
    try:
        ray.get(places.ready(), timeout=options.wait)
    except ray.exceptions.GetTimeoutError:
        remove_placement_group(places)
        wanted = f"{options.processes} times {each}"
        raise SystemExit(
            f"no room for {wanted} in {options.wait:g} s; `ray status` shows what is free"
        ) from None
    where = PlacementGroupSchedulingStrategy(places)
    how = {"num_cpus": options.cpus, "num_gpus": options.gpus, "scheduling_strategy": where}
    group = [Process.options(**how).remote() for _ in range(options.processes)]
    addresses = ray.get([process.address.remote() for process in group])
    # Ray promises no order; neighbours should be on one node, as a mesh axis within a node needs
    # it.
    order = sorted(range(options.processes), key=lambda index: addresses[index].split(":")[0])
    group, coordinator = [group[index] for index in order], addresses[order[0]]
    ours = "JAX_", "XLA_", "NCCL_", "NPROC"
    settings = {name: value for name, value in os.environ.items() if name.startswith(ours)}
    settings |= {"COORDINATOR": coordinator, "NUM_PROCESSES": str(options.processes)}
    runs = [
        process.run.remote(program, arguments, settings | {"PROCESS_ID": str(index)})
        for index, process in enumerate(group)
    ]
    try:
        ray.get(runs)  # raises as soon as one fails, whatever the others wait for
    finally:
        for process in group:
            ray.kill(process)
        remove_placement_group(places)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--cpus", type=int, default=1, help="CPU cores for each process")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs for each process")
    parser.add_argument(
        "--restarts", type=int, default=3, help="how often to start again after a failure"
    )
    parser.add_argument(
        "--wait", type=float, default=300, help="seconds to wait for nodes that have room"
    )
    parser.add_argument("program", help="then its arguments")
    options, arguments = parser.parse_known_args()
    if options.processes < 1:
        parser.error(f"--processes {options.processes}: there has to be one at least")
    ray.init(address="auto")
    for attempt in range(options.restarts + 1):
        try:
            start(options, str(Path(options.program).resolve()), arguments)
            break
        except (ray.exceptions.RayActorError, ray.exceptions.RayTaskError) as error:
            print(f"start {attempt} failed: {str(error).strip().splitlines()[-1]}", flush=True)
    else:
        sys.exit(1)
