from shardlab import costs as costs
from shardlab.arrays.devices import configure as configure, emulate as emulate
from shardlab.arrays.layout import (
    Layout as Layout,
    MeshLayout as MeshLayout,
    Shard as Shard,
    describe as describe,
    same_layout as same_layout,
)
from shardlab.arrays.rules import (
    AppliedRules as AppliedRules,
    apply_rules as apply_rules,
    paths_of as paths_of,
    shardings as shardings,
    stored_bytes as stored_bytes,
    target as target,
)
from shardlab.arrays.weights import (
    Fused as Fused,
    Stored as Stored,
    WeightReport as WeightReport,
    compare_weights as compare_weights,
    equal_part as equal_part,
    export_weights as export_weights,
    heads_part as heads_part,
    load_weights as load_weights,
    open_weights as open_weights,
)
from shardlab.book import explorer as explorer
from shardlab.book.planner import planner as planner
from shardlab.book.specs import compare_specs as compare_specs
from shardlab.cluster.processes import (
    Processes as Processes,
    ProcessFailure as ProcessFailure,
    start as start,
)
from shardlab.costs import inference as inference, published as published, serving as serving
from shardlab.costs.ledger import Entry as Entry, Ledger as Ledger, ledger as ledger
from shardlab.costs.plan import Choice as Choice, Plan as Plan, plan as plan
from shardlab.costs.steps.parallelism import Parallelism as Parallelism
from shardlab.exercises.check import (
    Exercise as Exercise,
    NotSolved as NotSolved,
    WrongAnswer as WrongAnswer,
    check as check,
    raises as raises,
)
from shardlab.exercises.compiles import assert_compiles_once as assert_compiles_once
from shardlab.exercises.testing import (
    Agreement as Agreement,
    assert_collectives as assert_collectives,
    assert_equal_to_one_device as assert_equal_to_one_device,
    assert_layout as assert_layout,
)
from shardlab.machines import hardware as hardware, models as models
from shardlab.machines.hardware import (
    CHIPS as CHIPS,
    Chip as Chip,
    Machine as Machine,
    chip as chip,
    machine as machine,
)
from shardlab.machines.models import MODELS as MODELS, Model as Model, model as model
from shardlab.networks.training import training_step as training_step
from shardlab.pictures.backward import draw_backward as draw_backward
from shardlab.pictures.charts import bars as bars, timeline as timeline
from shardlab.pictures.chunks import draw_all_reduce as draw_all_reduce
from shardlab.pictures.draw import draw as draw
from shardlab.pictures.films import film as film
from shardlab.pictures.interactive import interactive_bars as interactive_bars
from shardlab.pictures.mapped import draw_shard_map as draw_shard_map
from shardlab.pictures.products import draw_matmul as draw_matmul
from shardlab.pictures.svg import PALETTE as PALETTE, Picture as Picture
from shardlab.pictures.torus import draw_torus as draw_torus
from shardlab.pods.pod import NoCompiler as NoCompiler, Pod as Pod, PodProgram as PodProgram
from shardlab.programs.collectives import (
    Collective as Collective,
    Collectives as Collectives,
    collectives as collectives,
    compile_for as compile_for,
    read_program as read_program,
)
from shardlab.programs.flops import MatmulFlops as MatmulFlops
from shardlab.programs.flows import Flow as Flow, Frame as Frame, follow as follow
from shardlab.programs.hlo import (
    Program as Program,
    UnreadableProgram as UnreadableProgram,
    array_types as array_types,
)
from shardlab.programs.lifetimes import Lifetimes as Lifetimes, lifetimes as lifetimes
from shardlab.programs.races import races as races
from shardlab.programs.timeline import Timeline as Timeline, step_timeline as step_timeline
from shardlab.programs.transfers import (
    Transfer as Transfer,
    Transfers as Transfers,
    transfers as transfers,
)
from shardlab.report.explain import (
    Comparison as Comparison,
    Report as Report,
    compare as compare,
    explain as explain,
)
from shardlab.report.findings import Finding as Finding
from shardlab.report.verify import Verdict as Verdict, verify as verify

__version__: str
__all__: list[str]
