"""`check_policy`: does a policy keep its side of the contract?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from adaptive.check.suite import expect, expect_none, run_checks
from adaptive.check.toy import ToyEngine
from adaptive.check.traces import BARE, DELAYED, SMALL, WIDE, Drive, same
from adaptive.contract import Capabilities, Policy
from adaptive.controller import AdaptiveController
from adaptive.requests import Sampling

CAPABILITIES = (BARE, SMALL, WIDE, DELAYED)
MAX_BATCH = 300
STEPS = 240
TRIMMED_STEPS = 60
TOY_GAMMAS = tuple(range(17))


def check_policy(
    policy: Policy | Callable[[], Policy], capabilities: Sequence[Capabilities] = CAPABILITIES
) -> tuple[str, ...]:
    """Names of the checks that passed. AssertionError with one line for each that failed.

    A policy may refuse some of `capabilities` (ValueError from `bind`) but not all. Views are read-only: a policy
    that writes to one fails.
    """
    bench = _Bench(policy, tuple(capabilities))
    checks = (
        _is_a_policy,
        _binds,
        _decides_legally,
        _takes_odd_batches,
        _trims_greedy_rows_alone,
        _forgets_unknown_rows,
        _clones_afresh,
        _binds_afresh,
        _decodes,
    )
    name = policy.__name__ if isinstance(policy, type) else type(bench.fresh()).__name__
    named = {check.__name__.strip("_").replace("_", " "): partial(check, bench) for check in checks}
    return run_checks(f"policy {name}", named)


@dataclass(frozen=True)
class _Bench:
    source: Policy | Callable[[], Policy]
    capabilities: tuple[Capabilities, ...]

    def fresh(self) -> Policy:
        if isinstance(self.source, type) or not isinstance(self.source, Policy):
            return self.source()
        return self.source.clone()

    def drives(self) -> list[Drive]:
        """A fresh policy for each of the capabilities it accepts."""
        drives, refusals = [], []
        for caps in self.capabilities:
            try:
                drives.append(Drive(self.fresh(), caps))
            except ValueError as error:
                refusals.append(str(error))
        expect(bool(drives), f"bind refuses every engine: {refusals}")
        return drives


def _batches(caps: Capabilities, steps: int = STEPS) -> list[int]:
    """Growing, shrinking and jumping between 1 and the engine's width, at most `MAX_BATCH`."""
    width = min(caps.batch_buckets[-1], MAX_BATCH)
    wave = np.abs(np.sin(np.arange(steps) / 25)) * (width - 1) + 1
    return [width if step % 37 == 36 else 1 if step % 41 == 40 else int(wave[step]) for step in range(steps)]


def _is_a_policy(bench: _Bench) -> None:
    policy = bench.fresh()
    expect(isinstance(policy, Policy), f"{policy!r} lacks one of bind, decide, learn, forget, clone")


def _binds(bench: _Bench) -> None:
    for drive in bench.drives():
        again = drive.policy.bind(drive.caps)
        expect(
            same(again.gammas, Drive(bench.fresh(), drive.caps).policy.bind(drive.caps).gammas),
            "bind is not repeatable",
        )


def _decides_legally(bench: _Bench) -> None:
    for full in (False, True):
        for drive in bench.drives():
            drive.run(_batches(drive.caps), full=full)
            expect_none(drive.illegal)


def _takes_odd_batches(bench: _Bench) -> None:
    for drive in bench.drives():
        width = min(drive.caps.batch_buckets[-1], MAX_BATCH)
        drive.run([*range(1, width + 1), *range(width, 0, -1)], full=False, forgetful=False)
        expect_none(drive.illegal)


def _trims_greedy_rows_alone(bench: _Bench) -> None:
    """Rows that sample, which may be all, keep their lengths. Policies that trim nothing pass."""
    for full in (False, True):
        for drive in bench.drives():
            if drive.needs.trim:
                drive.run(_batches(drive.caps, TRIMMED_STEPS), full=full, trims=True)
                expect_none(drive.illegal)


def _forgets_unknown_rows(bench: _Bench) -> None:
    for drive in bench.drives():
        drive.policy.forget([])
        drive.policy.forget([0, 7, 100_000])
        drive.run(_batches(drive.caps, 20), full=True)
        drive.policy.forget(range(2 * MAX_BATCH))
        drive.run(_batches(drive.caps, 20), full=True)
        expect_none(drive.illegal)


def _clones_afresh(bench: _Bench) -> None:
    for drive in bench.drives():
        batches = _batches(drive.caps)
        expected = Drive(bench.fresh(), drive.caps).run(batches, full=True)
        drive.run(batches[::-1], full=False)
        twin = drive.policy.clone()
        expect(twin is not drive.policy, "clone returned the policy itself")
        expect(type(twin) is type(drive.policy), f"clone returned a {type(twin).__name__}")
        got = Drive(twin, drive.caps).run(batches, full=True)
        differing = [step for step, pair in enumerate(zip(expected, got, strict=True)) if not same(*pair)]
        expect(
            not differing,
            f"a clone of a policy that has learnt decides differently from a fresh one at {differing[:5]}",
        )


def _binds_afresh(bench: _Bench) -> None:
    """A policy that was swapped out missed which rows were forgotten, so binding again must forget them all."""
    for drive in bench.drives():
        batches = _batches(drive.caps)
        expected = Drive(bench.fresh(), drive.caps).run(batches, full=True)
        drive.run(batches[::-1], full=True)
        got = Drive(drive.policy, drive.caps).run(batches, full=True)
        differing = [step for step, pair in enumerate(zip(expected, got, strict=True)) if not same(*pair)]
        expect(not differing, f"bind keeps what was learnt before: decisions differ at {differing[:5]}")


def _decodes(bench: _Bench) -> None:
    """In charge of a toy engine, prompt reports and late ones, good drafts and bad."""
    prompts = [[place + 1] for place in range(6)]
    sampling = Sampling(max_tokens=60)
    for lag, skill in ((0, 0.9), (2, 0.3)):
        engine = ToyEngine(gammas=TOY_GAMMAS, lag=lag, skill=skill)
        try:
            controller = AdaptiveController(engine, bench.fresh(), allow_lossy=True)
        except ValueError:
            continue  # needs what the toy lacks; the other checks showed that it accepts some engine
        answers = controller.generate(prompts, sampling)
        stats = controller.stats()
        expect(not stats.policy_errors and not stats.clamped, f"the guard had to step in: {stats.last_error}")
        expect(all(len(answer.tokens) == sampling.max_tokens for answer in answers), "an answer ended early")
