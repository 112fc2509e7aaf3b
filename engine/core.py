"""The bundled engine: continuous batching around one captured decode step, every decision asked of a controller."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from adaptive.contract import AcceptanceKind, Capabilities, Controller, Decision, Needs, TreeLimits
from adaptive.requests import Output, Request, RequestId
from engine.batch import RowState
from engine.config import EngineConfig, doubling_buckets
from engine.drafters import Drafter, TreeDrafter
from engine.graphs import make_backend
from engine.kv import KVCache
from engine.models.decoder import Decoder
from engine.observe import Observer
from engine.prefill import Prefill
from engine.request_state import NoText, RequestState
from engine.runner import StepRunner
from engine.scheduler import Scheduler
from engine.step import DecodeStep
from engine.stop import StopText
from engine.tokenizer import Detokenizer, Tokenizer
from engine.tree import StaticTree, TreeState, static_tree

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
        self._tokenizer = tokenizer
        self._clock = clock
        max_gamma = drafter.caps.max_gamma if drafter else 0
        self.max_tree_nodes = config.max_tree_nodes if isinstance(drafter, TreeDrafter) and max_gamma else 0
        self.state = RowState(config.max_batch, config.context_len, max_gamma, config.device)
        self.kv = KVCache.allocate(
            decoder.config, config.max_batch, config.context_len, config.torch_dtype, config.device
        )
        self.runner = self._make_runner(max_gamma)
        self.scheduler = Scheduler(config.max_batch)
        self._observer = Observer(config.max_batch, clock)
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
        prefill = Prefill(self.decoder, self.kv, self.state, chunk_3)
        return StepRunner(config, step, prefill, make_backend(config.backend, config.device), self._clock)

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise ValueError("this engine was built without a tokenizer: give prompts as token ids")
        return self._tokenizer

    # --- adaptive.contract.Engine -------------------------------------------------------------------------------

    def capabilities(self) -> Capabilities:
        drafters = {self.drafter.name: self.drafter.caps} if self.drafter else {}
        nodes = self.max_tree_nodes
        return Capabilities(
            gammas=tuple(range(self.state.max_gamma + 1)),
            batch_buckets=doubling_buckets(self.config.max_batch),
            drafters=drafters,
            acceptances=frozenset({AcceptanceKind.STANDARD, AcceptanceKind.BLOCK}),
            tree=TreeLimits(self.state.max_gamma, nodes, nodes) if nodes else None,
        )

    def attach(self, controller: Controller) -> None:
        self._controller = controller
        self.prepare(controller.attach(self.capabilities()))

    def prepare(self, needs: Needs) -> None:
        self.runner.prepare(needs)

    def submit(self, request: Request) -> RequestId:
        """Queue a request. ValueError for a prompt that is empty, too long or holds ids outside the vocabulary."""
        prompt = self._encode(request)
        request_id = request.id
        taken = {*self._sequences, *(output.request_id for output in self._outputs)}
        if request_id is None:
            request_id = next(name for name in self._names if name not in taken)
        if request_id in taken:
            raise ValueError(f"id={request_id!r} is already in use by an unfinished request: give each its own id")
        sampling = request.sampling
        stop_ids = frozenset(sampling.stop_token_ids)
        if self._tokenizer is not None and not sampling.ignore_eos:
            stop_ids |= self._tokenizer.eos_ids
        if sampling.stop and self._tokenizer is None:
            raise ValueError(f"stop={sampling.stop!r} needs a tokenizer: use stop_token_ids")
        sequence = RequestState(
            id=request_id,
            request=request,
            prompt=prompt,
            budget=min(sampling.max_tokens, self.config.context_len - len(prompt)),
            submitted_at=self._clock(),
            stop_ids=stop_ids,
            detokenizer=Detokenizer(self._tokenizer) if self._tokenizer else NoText(),
            text=StopText(sampling.stop),
        )
        self._sequences[request_id] = sequence
        self.scheduler.add(sequence)
        return request_id

    def _encode(self, request: Request) -> list[int]:
        prompt = request.prompt
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
        elif all(isinstance(part, int | np.integer) for part in prompt):
            ids = [int(part) for part in prompt]  # type: ignore[arg-type]
        else:
            ids = self.tokenizer.encode(self.tokenizer.apply_chat(prompt))  # type: ignore[arg-type]
        limit = self.config.context_len - 1
        if not 1 <= len(ids) <= limit:
            fix = "give at least one token" if not ids else "shorten it or raise context_len"
            raise ValueError(
                f"the prompt has {len(ids)} tokens and must have 1 to {limit} (one is left to answer): {fix}"
            )
        outside = [token for token in ids if not 0 <= token < self.model_config.vocab_size]
        if outside:
            raise ValueError(f"token id {outside[0]} is outside the vocabulary of {self.model_config.vocab_size}")
        return ids

    def cancel(self, request: RequestId) -> None:
        """End a request at the next step edge; unknown or finished ids are ignored, as they may just have ended."""
        sequence = self._sequences.get(request)
        if sequence is None:
            return
        if sequence.row < 0:
            self.scheduler.waiting.remove(sequence)
        self._outputs.append(sequence.cancel())
        self._end([sequence])

    def step(self) -> Sequence[Output]:
        """Admit, prefill a chunk, decode one step. Returns what each request got."""
        if self._controller is None:
            raise ValueError("no controller is attached: wrap the engine, AdaptiveController(engine, policy=...)")
        if self._torn:
            self._recover()
        self._torn = True
        self.scheduler.admit()
        for sequence in self.scheduler.unseated():
            self._seat(sequence)
        prefill_tokens = self._prefill()
        batch = self.scheduler.decoding()
        if batch:
            self._decode(self._controller, batch, prefill_tokens)
        else:
            self._observer.pause()
        self._torn = False
        outputs, self._outputs = self._outputs, []
        return outputs

    def _recover(self) -> None:
        """After an interrupted step (Ctrl-C, say): take from the device what it emitted and the host never heard of."""
        backend = self.runner.backend
        self.runner.drafts_fresh = False
        self._observer.pause()
        for row, sequence in self.scheduler.running.items():
            if sequence.decoding and sequence.finish_reason is None:
                missed = self.state.tokens(backend.read, row, sequence.context_len)
                if missed:
                    self._outputs.append(sequence.extend(missed, self._clock(), None))
                sequence.cached = 0
                self.state.align(backend.write, row, sequence.budget - len(sequence.tokens), sequence.steps)
                self.state.start(backend.write, row)
            if sequence.seated:
                self._observer.align(sequence)
        self._end([sequence for sequence in self.scheduler.running.values() if sequence.finish_reason is not None])

    # --- the step's parts ---------------------------------------------------------------------------------------

    def _seat(self, sequence: RequestState) -> None:
        sampling = sequence.request.sampling
        seed = sampling.seed if sampling.seed is not None else random.getrandbits(63)
        cap = self.state.max_gamma if sequence.request.speculation else 0
        write = self.runner.backend.write
        self.state.admit(write, sequence.row, sequence.prompt, sequence.budget, seed, sampling, cap)
        self._observer.seat(sequence)
        sequence.seated = True
        if sequence.decoding:
            self._start(sequence)

    def _start(self, sequence: RequestState) -> None:
        self.state.start(self.runner.backend.write, sequence.row)
        self.runner.drafts_fresh = False

    def _prefill(self) -> int:
        """Work on the oldest unfinished prompts until the chunk's token allowance is used."""
        allowance = self.config.prefill_chunk
        for sequence in self.scheduler.prefilling():
            count = min(allowance, len(sequence.prompt) - 1 - sequence.prefilled)
            self.runner.prefill(sequence.row, sequence.prefilled, count)
            sequence.prefilled += count
            allowance -= count
            if sequence.decoding:
                self._start(sequence)
            if allowance == 0:
                break
        return self.config.prefill_chunk - allowance

    def _decode(self, controller: Controller, batch: list[RequestState], prefill_tokens: int) -> None:
        waiting = len(self.scheduler.waiting)
        free = 1 - len(self.scheduler.running) / self.config.max_batch
        matches = self.runner.match_lens if self.runner.drafts_fresh else None
        view = self._observer.view(batch, prefill_tokens, waiting, free, matches)
        decision = controller.plan(view)
        tree = self._tree(decision)
        gamma = tree.depth if tree else decision.gamma
        feedback = self.runner.run(gamma, decision.acceptance.kind, batch, tree)
        report = self._observer.report(view, gamma, feedback, prefill_tokens)
        for place, sequence in enumerate(batch):
            verified, accepted = int(report.verified[place]), int(report.accepted[place])
            sequence.record(gamma, tree.levels(verified) if tree else [1] * verified, accepted)
            tokens = feedback.tokens[place][: accepted + 1]
            output = sequence.extend(tokens, self._observer.completed_at, feedback.logprobs(place, accepted + 1))
            report.emitted[place] = len(output.tokens)
            self._outputs.append(output)
        self._observer.advance(view, report)
        controller.report(report)
        self._end([sequence for sequence in batch if sequence.finish_reason is not None])

    def _tree(self, decision: Decision) -> StaticTree | None:
        """What the decision's γ leaves of its tree; None for a chain."""
        if decision.tree is None or decision.tree.parents is None or not decision.gamma or not self.max_tree_nodes:
            return None
        return static_tree(tuple(decision.tree.parents), decision.gamma)

    def _end(self, ended: Sequence[RequestState]) -> None:
        """Free what finished requests held, and let the controller forget their rows."""
        for sequence in ended:
            del self._sequences[sequence.id]
        seated = [sequence for sequence in ended if sequence.row >= 0]
        for sequence in seated:
            self.state.release(self.runner.backend.write, sequence.row)
            self.scheduler.release(sequence)
        if seated and self._controller is not None:
            self._controller.forget([sequence.row for sequence in seated])

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
