"""The bundled engine: continuous batching around one captured decode step, every decision asked of a controller."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from adaptive.contract import Capabilities, Controller, Needs, TreeLimits
from adaptive.requests import Output, Request, RequestId
from engine.admission import Admission, ServingCounts
from engine.batch import RowState
from engine.config import EngineConfig, doubling_buckets
from engine.drafters import Drafter, KeepsPrefixes, TreeDrafter, features_of
from engine.graphs import make_backend
from engine.identity import identify
from engine.intake import Intake
from engine.judging import offered
from engine.kv import KVCache
from engine.models.decoder import Decoder
from engine.observe import Observer
from engine.prefill import Prefill
from engine.prefix import PrefixIndex
from engine.prefix_copy import PrefixCopier, PrefixCopy
from engine.request_state import RequestState
from engine.runner import StepRunner
from engine.scheduler import Scheduler
from engine.step import DecodeStep
from engine.tokenizer import Tokenizer
from engine.tree import TreeState

if TYPE_CHECKING:
    from engine.sampling.synthetic import SyntheticAcceptance


class LLMEngine:
    """Serves a decoder. Implements `adaptive.contract.Engine`; wrap it in an `AdaptiveController` to use it.

    With `synthetic`, how many draft tokens stand is as asked, and outputs are meaningless.
    """

    def __init__(
        self,
        decoder: Decoder,
        config: EngineConfig,
        *,
        tokenizer: Tokenizer | None = None,
        drafter: Drafter | None = None,
        synthetic: SyntheticAcceptance | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        decoder.check(config.torch_dtype, config.context_len)
        self.config = config
        self.model_config = decoder.config
        self.decoder = decoder
        self.drafter = drafter
        self.synthetic = synthetic
        self._clock = clock
        max_gamma = drafter.caps.max_gamma if drafter else 0
        self.max_tree_nodes = config.max_tree_nodes if isinstance(drafter, TreeDrafter) and max_gamma else 0
        self.state = RowState(config.max_batch, config.context_len, max_gamma, config.device)
        self.kv = KVCache.allocate(
            decoder.config, config.max_batch, config.context_len, config.torch_dtype, config.device
        )
        copy = PrefixCopy(self.kv, drafter, torch.zeros(4, dtype=torch.int64, device=config.device))
        self.runner = self._make_runner(max_gamma)
        self.scheduler = Scheduler(config.max_batch)
        self._observer = Observer(config.max_batch, clock)
        self._admission = self._make_admission(copy)
        self._intake = Intake(config.context_len, decoder.config.vocab_size, tokenizer)
        self._controller: Controller | None = None
        self._sequences: dict[RequestId, RequestState] = {}
        self._outputs: list[Output] = []  # not handed out yet; survives a step that is interrupted
        self._torn = False  # a step was interrupted: the device may be ahead of the host
        self._names = (f"request-{number}" for number in itertools.count(1))

    def _make_runner(self, max_gamma: int) -> StepRunner:
        config, vocab = self.config, self.model_config.vocab_size
        logits_dtype = torch.float64 if config.torch_dtype == torch.float64 else torch.float32
        nodes = self.max_tree_nodes
        trees = TreeState(config.max_batch, nodes, config.device) if nodes else None
        tokens = config.max_batch * (max(max_gamma, nodes) + 1)
        logits_NV = torch.zeros((tokens, vocab), dtype=logits_dtype, device=config.device)
        synthetic_M = None
        if self.synthetic is not None:
            chances = self.synthetic.conditional(max_gamma)
            synthetic_M = torch.tensor(chances, dtype=torch.float64, device=config.device)
        step = DecodeStep(self.decoder, self.kv, self.state, self.drafter, logits_NV, synthetic_M, trees)
        chunk_3 = torch.zeros(3, dtype=torch.int64, device=config.device)
        prefill = Prefill(self.decoder, self.kv, self.state, chunk_3, features_of(self.drafter))
        return StepRunner(config, step, prefill, make_backend(config.backend, config.device), self._clock)

    def _make_admission(self, copy: PrefixCopy) -> Admission:
        config, prefixes = self.config, None
        if config.prefix_reuse:
            drafts = isinstance(self.drafter, KeepsPrefixes)
            prefixes = PrefixIndex(config.max_batch, config.context_len, drafts=drafts)
        copier = PrefixCopier(config, copy, self.runner.backend)
        return Admission(self.scheduler, self.state, self._observer, self.runner, prefixes, copier, self._forget)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._intake.tokenizer

    @property
    def counts(self) -> ServingCounts:
        """Requests admitted and preempted, prompt tokens read and reused, seconds that took."""
        return self._admission.counts

    # --- adaptive.contract.Engine -------------------------------------------------------------------------------

    def capabilities(self) -> Capabilities:
        drafters = {self.drafter.name: self.drafter.caps} if self.drafter else {}
        nodes = self.max_tree_nodes
        return Capabilities(
            gammas=tuple(range(self.state.max_gamma + 1)),
            batch_buckets=doubling_buckets(self.config.max_batch),
            drafters=drafters,
            acceptances=offered(self.drafter.caps if self.drafter else None),
            ragged=True,
            verify_budget=True,
            stepwise=self.drafter is not None and self.drafter.when == "before" and not self.drafter.at_once,
            tree=TreeLimits(self.state.max_gamma, nodes, nodes) if nodes else None,
            identity=identify(self.model_config, self.config, self.drafter),
            packed_widths=self.runner.widths,
            context_widths=self.runner.context_widths,
        )

    def attach(self, controller: Controller) -> None:
        self._controller = controller
        self.prepare(controller.attach(self.capabilities()))

    def prepare(self, needs: Needs) -> None:
        self.runner.prepare(needs)

    def submit(self, request: Request) -> RequestId:
        """Queue a request. ValueError for a prompt that is empty, too long or holds ids outside the vocabulary."""
        request_id = request.id
        taken = {*self._sequences, *(output.request_id for output in self._outputs)}
        if request_id is None:
            request_id = next(name for name in self._names if name not in taken)
        if request_id in taken:
            raise ValueError(f"id={request_id!r} is already in use by an unfinished request: give each its own id")
        sequence = self._intake.accept(request, request_id, self._clock())
        self._sequences[request_id] = sequence
        self.scheduler.add(sequence)
        return request_id

    def cancel(self, request: RequestId) -> None:
        """End a request at the next step edge; unknown or finished ids are ignored, as they may just have ended."""
        sequence = self._sequences.get(request)
        if sequence is None or sequence.finish_reason is not None:
            return
        torn, self._torn = self._torn, True  # should an exception cut this short
        if sequence.row < 0:
            self.scheduler.withdraw(sequence)
        self._outputs.append(sequence.cancel())
        self._end([sequence])
        self._torn = torn

    def step(self) -> Sequence[Output]:
        """Admit, prefill a chunk, decode one step. Returns what each request got since the last call."""
        if self._controller is None:
            raise ValueError("no controller is attached: wrap the engine, AdaptiveController(engine, policy=...)")
        if self._torn:
            self._recover()
        self._torn = True
        before_s = self.counts.prefill_s
        self._admission.run()
        prefill_tokens = self._admission.prefill(self.config.prefill_chunk)
        batch = self.scheduler.decoding()
        if batch:
            self._decode(self._controller, batch, prefill_tokens, self.counts.prefill_s - before_s)
        else:
            self._observer.pause()
        self._torn = False
        outputs, self._outputs = self._outputs, []
        return outputs

    def _recover(self) -> None:
        """After an interrupted step (Ctrl-C, say): take from the device what it emitted and the host never heard of."""
        backend = self.runner.backend
        self.runner.drafts_fresh = False
        self.state.control.forget()
        self._observer.pause()
        for row, sequence in self.scheduler.running.items():
            if sequence.finish_reason is not None:
                continue
            missed = self.state.tokens(backend.read, row, sequence.context_len) if sequence.decoding else []
            if missed:
                sequence.steps += 1  # its random numbers are used up
                self._outputs.append(sequence.extend(missed, self._clock(), None))
            if sequence.seated:
                self._admission.align(sequence)
        self._end([sequence for sequence in self.scheduler.running.values() if sequence.finish_reason is not None])

    # --- the step's parts ---------------------------------------------------------------------------------------

    def _decode(self, controller: Controller, batch: list[RequestState], prefill_tokens: int, prefill_s: float) -> None:
        waiting = len(self.scheduler.waiting)
        free = 1 - len(self.scheduler.running) / self.config.max_batch
        matches = self.runner.match_lens if self.runner.drafts_fresh else None
        view = self._observer.view(batch, prefill_tokens, waiting, free, matches, self.runner.stale(batch))
        decision = controller.plan(view)
        feedback = self.runner.run(decision, batch, controller)
        report = self._observer.report(view, feedback, prefill_s)
        for place, sequence in enumerate(batch):
            accepted = int(report.accepted[place])
            sequence.record(feedback.gamma, feedback.by_position(place), accepted)
            if feedback.lossy is not None and feedback.spent is not None:
                sequence.spend(int(feedback.lossy[place]), float(feedback.spent[place]))
            tokens = feedback.tokens[place][: accepted + 1]
            output = sequence.extend(tokens, self._observer.completed_at, feedback.logprobs(place, accepted + 1))
            report.emitted[place] = len(output.tokens)
            self._outputs.append(output)
        self._observer.advance(view, report)
        controller.report(report)
        self._end([sequence for sequence in batch if sequence.finish_reason is not None])

    def _end(self, ended: Sequence[RequestState]) -> None:
        """Free what finished requests held. Done twice it does no harm, should an exception cut the first try short."""
        self._admission.release([sequence for sequence in ended if sequence.row >= 0])
        for sequence in ended:
            self._sequences.pop(sequence.id, None)

    def _forget(self, rows: Sequence[int]) -> None:
        if self._controller is not None:
            self._controller.forget(rows)

    def describe(self) -> dict[str, object]:
        """What runs here, for people: model, sizes, device, kernels, memory in bytes."""
        config, model = self.config, self.model_config
        return {
            "parameters": model.num_parameters(),
            "layers": model.num_layers,
            "dtype": config.dtype,
            "device": config.device,
            "backend": config.backend,
            "max_batch": config.max_batch,
            "context_len": config.context_len,
            "drafter": self.drafter.name if self.drafter else None,
            "synthetic_acceptance": self.synthetic.notice if self.synthetic else None,
            "threads": torch.get_num_threads(),
            "weight_bytes": model.weight_bytes(config.torch_dtype),
            "kv_bytes": KVCache.bytes_needed(model, config.max_batch, config.context_len, config.torch_dtype),
        }
