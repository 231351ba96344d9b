"""shardlab: draw, describe and check parallel JAX.

The companion package of the book *One Program, Many Devices*. Each module does one thing:

- `shardlab.devices`: give this process several (emulated) devices
- `shardlab.layout`: say in plain data which device holds which slice of an array
- `shardlab.draw`: draw arrays and meshes, in colour, with every device numbered
- `shardlab.follow`: follow pieces of data through the program of a device
- `shardlab.comms`: say what a compiled program sends between devices, and how many bytes
- `shardlab.cost`: price programs by formula, on chips that you do not have
- `shardlab.plan`: list the meshes on which a model fits, by predicted step time
- `shardlab.pods`: compile for TPUs and GPUs that are not there, and say what their compilers say
- `shardlab.processes`: start many JAX processes from a notebook, and run cells in them
- `shardlab.check`: check the answer to an exercise: its values, its layout and its communication
"""

__version__ = "0.1.0"
