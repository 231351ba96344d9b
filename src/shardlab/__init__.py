"""shardlab: draw, describe and check parallel JAX.

The companion package of the book *One Program, Many Devices*. Each module does one thing:

- `shardlab.devices`: give this process several (emulated) devices
- `shardlab.layout`: describe in plain data which device stores which shard of an array
- `shardlab.draw`: draw arrays, meshes, products, `shard_map`, memory and timelines, with every device numbered
- `shardlab.specs`: compare one array in several layouts: the slice and the bytes of every device
- `shardlab.follow`: follow chunks of data through the program of a device
- `shardlab.hlo`: read the text of a compiled program: its instructions, their types, and how often they run
- `shardlab.comms`: list the collectives of a compiled program, and their bytes
- `shardlab.flops`: count the FLOPs of a compiled program's matrix products
- `shardlab.hardware`: chips and links by their data sheets
- `shardlab.models`: transformers by their sizes
- `shardlab.cost`: predict the time and memory of programs by formula, on chips that you do not have
- `shardlab.plan`: list the meshes on which a model fits, by predicted step time
- `shardlab.training`: a decoder's training step, for compilers to judge a plan by
- `shardlab.pods`: compile for TPUs and GPUs without having them, and report memory, FLOPs and communication
- `shardlab.processes`: start many JAX processes from a notebook, and run cells in them
- `shardlab.explorer`: prepare the calculators of the book's page "Explorer"
- `shardlab.check`: check the answer to an exercise: its values, its layout and its communication
"""

__version__ = "0.1.0"
