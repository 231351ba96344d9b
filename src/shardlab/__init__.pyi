from shardlab import costs as costs
from shardlab.arrays.devices import configure as configure
from shardlab.arrays.devices import emulate as emulate
from shardlab.arrays.layout import (
    Layout as Layout,
)
from shardlab.arrays.layout import (
    MeshLayout as MeshLayout,
)
from shardlab.arrays.layout import (
    Shard as Shard,
)
from shardlab.arrays.layout import (
    describe as describe,
)
from shardlab.arrays.layout import (
    same_layout as same_layout,
)
from shardlab.book import explorer as explorer
from shardlab.book.specs import compare_specs as compare_specs
from shardlab.cluster.processes import Processes as Processes
from shardlab.cluster.processes import ProcessFailure as ProcessFailure
from shardlab.cluster.processes import start as start
from shardlab.costs import inference as inference
from shardlab.costs import published as published
from shardlab.costs.parallelism import Parallelism as Parallelism
from shardlab.costs.plan import Choice as Choice
from shardlab.costs.plan import Plan as Plan
from shardlab.costs.plan import plan as plan
from shardlab.exercises.check import (
    Exercise as Exercise,
)
from shardlab.exercises.check import (
    NotSolved as NotSolved,
)
from shardlab.exercises.check import (
    WrongAnswer as WrongAnswer,
)
from shardlab.exercises.check import (
    check as check,
)
from shardlab.exercises.check import (
    raises as raises,
)
from shardlab.exercises.testing import (
    Agreement as Agreement,
)
from shardlab.exercises.testing import (
    assert_collectives as assert_collectives,
)
from shardlab.exercises.testing import (
    assert_equal_to_one_device as assert_equal_to_one_device,
)
from shardlab.exercises.testing import (
    assert_layout as assert_layout,
)
from shardlab.machines import hardware as hardware
from shardlab.machines import models as models
from shardlab.machines.hardware import (
    CHIPS as CHIPS,
)
from shardlab.machines.hardware import (
    Chip as Chip,
)
from shardlab.machines.hardware import (
    Machine as Machine,
)
from shardlab.machines.hardware import (
    chip as chip,
)
from shardlab.machines.hardware import (
    machine as machine,
)
from shardlab.machines.models import MODELS as MODELS
from shardlab.machines.models import Model as Model
from shardlab.machines.models import model as model
from shardlab.networks.training import training_step as training_step
from shardlab.pictures.backward import draw_backward as draw_backward
from shardlab.pictures.charts import bars as bars
from shardlab.pictures.charts import timeline as timeline
from shardlab.pictures.draw import (
    draw as draw,
)
from shardlab.pictures.draw import (
    draw_all_reduce as draw_all_reduce,
)
from shardlab.pictures.draw import (
    draw_matmul as draw_matmul,
)
from shardlab.pictures.draw import (
    draw_shard_map as draw_shard_map,
)
from shardlab.pictures.svg import PALETTE as PALETTE
from shardlab.pictures.svg import Picture as Picture
from shardlab.pictures.torus import draw_torus as draw_torus
from shardlab.pods.pod import NoCompiler as NoCompiler
from shardlab.pods.pod import Pod as Pod
from shardlab.pods.pod import PodProgram as PodProgram
from shardlab.programs.collectives import (
    Collective as Collective,
)
from shardlab.programs.collectives import (
    Collectives as Collectives,
)
from shardlab.programs.collectives import (
    collectives as collectives,
)
from shardlab.programs.collectives import (
    compile_for as compile_for,
)
from shardlab.programs.collectives import (
    read_program as read_program,
)
from shardlab.programs.flops import MatmulFlops as MatmulFlops
from shardlab.programs.flows import Flow as Flow
from shardlab.programs.flows import follow as follow
from shardlab.programs.hlo import (
    Program as Program,
)
from shardlab.programs.hlo import (
    UnreadableProgram as UnreadableProgram,
)
from shardlab.programs.hlo import (
    array_types as array_types,
)
from shardlab.programs.lifetimes import Lifetimes as Lifetimes
from shardlab.programs.lifetimes import lifetimes as lifetimes
from shardlab.programs.timeline import Timeline as Timeline
from shardlab.programs.timeline import step_timeline as step_timeline
from shardlab.report.explain import (
    Comparison as Comparison,
)
from shardlab.report.explain import (
    Report as Report,
)
from shardlab.report.explain import (
    compare as compare,
)
from shardlab.report.explain import (
    explain as explain,
)
from shardlab.report.findings import Finding as Finding
from shardlab.report.verify import Verdict as Verdict
from shardlab.report.verify import verify as verify

__version__: str
__all__: list[str]
