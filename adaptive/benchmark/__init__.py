"""Benchmarks in one process: arms, interleaved measurement, summary. `adaptive bench` is its command line."""

from adaptive.benchmark.arms import Arm, PeerArm, PolicyArm, Run
from adaptive.benchmark.client import Answer, ask
from adaptive.benchmark.machine import CpuMeter, machine_facts
from adaptive.benchmark.measure import Measurement, measure, units
from adaptive.benchmark.probe import StepTrace
from adaptive.benchmark.prompts import PromptItem, built_in_prompts, group_by_task, read_prompts
from adaptive.benchmark.summary import BASELINE, ArmSummary, Figures, ForeignCpu, Ratio, foreign_cpu, summarize

__all__ = [
    "BASELINE",
    "Answer",
    "Arm",
    "ArmSummary",
    "CpuMeter",
    "Figures",
    "ForeignCpu",
    "Measurement",
    "PeerArm",
    "PolicyArm",
    "PromptItem",
    "Ratio",
    "Run",
    "StepTrace",
    "ask",
    "built_in_prompts",
    "foreign_cpu",
    "group_by_task",
    "machine_facts",
    "measure",
    "read_prompts",
    "summarize",
    "units",
]
