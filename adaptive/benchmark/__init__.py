"""Benchmarks in one process: arms, interleaved measurement, summary. `adaptive bench` is its command line."""

from adaptive.benchmark.arms import Arm, PeerArm, PolicyArm, Run
from adaptive.benchmark.client import Answer, PromptError, ask
from adaptive.benchmark.compare import Comparison, compare
from adaptive.benchmark.cost import StepCost
from adaptive.benchmark.machine import CpuMeter, machine_facts
from adaptive.benchmark.measure import Measurement, measure, units
from adaptive.benchmark.outcome import Outcome, conclude, others_of, outcomes_json
from adaptive.benchmark.probe import StepTrace
from adaptive.benchmark.process import PeerError, PeerProcess, ProcessArm, started
from adaptive.benchmark.prompts import PromptItem, built_in_prompts, group_by_task, read_prompts
from adaptive.benchmark.summary import BASELINE, ArmSummary, Figures, ForeignCpu, Ratio, foreign_cpu, summarize
from adaptive.benchmark.ties import NEAR_TIE, Gap, make_gap, near_ties

__all__ = [
    "BASELINE",
    "NEAR_TIE",
    "Answer",
    "Arm",
    "ArmSummary",
    "Comparison",
    "CpuMeter",
    "Figures",
    "ForeignCpu",
    "Gap",
    "Measurement",
    "Outcome",
    "PeerArm",
    "PeerError",
    "PeerProcess",
    "PolicyArm",
    "ProcessArm",
    "PromptError",
    "PromptItem",
    "Ratio",
    "Run",
    "StepCost",
    "StepTrace",
    "ask",
    "built_in_prompts",
    "compare",
    "conclude",
    "foreign_cpu",
    "group_by_task",
    "machine_facts",
    "make_gap",
    "measure",
    "near_ties",
    "others_of",
    "outcomes_json",
    "read_prompts",
    "started",
    "summarize",
    "units",
]
