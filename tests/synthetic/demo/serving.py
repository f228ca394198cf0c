"""The second demo job: an inference server with tensor parallelism on one host, one report a rank.

It runs continuous batching with an overlap scheduler: it prepares a step while the GPUs run the previous step. Steps
that only decode launch one CUDA graph; steps that prefill, alone or mixed with decoding, launch their kernels one by
one. What is wrong with it:

- The host bounds decoding: it prepares inputs for longer than the graph runs, and the GPUs idle for the rest.
- One prefill has a prompt four times as long as other prompts, and delays all requests that decode.
- Nothing hides the all-reduces of tensor parallelism: vLLM's kernel in decode steps, NCCL's in other steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from synthetic.demo import model
from synthetic.demo.job import DemoJob, OpenRank, all_reduce, set_up
from synthetic.demo.timeline import COPY_STREAM, GPU_METRICS, Communicator, Program, RankTimeline
from synthetic.writing.target import DEFAULT_STREAM

BATCH: Final = 24
"""The requests that decode in a step, one fewer if it prefills another request."""
PERIOD: Final = 40
"""The steps from one prefill to the next."""
MIXED: Final = (13, 27)
"""The steps of a period that prefill one request and decode the others."""
LONGER: Final = 4
"""Length of the slow prefill's prompt in lengths of other prompts."""
PROMPT: Final = 16 * 1024**2
"""Bytes of the activations of a prompt, 2,048 tokens, that an all-reduce sums."""
MEMORY: Final = (8 * 1024**3, 56 * 1024**3)
"""Bytes of the GPU's memory allocated at start-up: the model's half, and the cache of keys and values."""


@dataclass(frozen=True)
class ServingJob(DemoJob):
    """The properties of the inference server."""

    command: ClassVar = ("python", "serve.py", "--model", "demo-8b")
    gpu_metric_names: ClassVar = tuple(
        name.replace("Bandwidth", "Responses User Data") if name.startswith("NVLink") else name for name in GPU_METRICS
    )

    ranks: int = 2
    steps: int = 200
    layers: int = 16
    captured: bool = False
    """Whether the capture of the graph is recorded, with the NVTX ranges of its layers."""

    @property
    def slow_step(self) -> int:
        """The step with the long prompt: the middle step of all that only prefill."""
        return PERIOD * ((self.steps + PERIOD - 1) // PERIOD // 2)

    def requests(self, step: int) -> tuple[int, int]:
        """Return how many requests a step prefills, and for how many it decodes."""
        place = step % PERIOD
        return (1, 0) if place == 0 else (1, BATCH - 1) if place in MIXED else (0, BATCH)

    @property
    def graph(self) -> list[tuple[str, list[model.KernelSpec]]]:
        """The CUDA graph of a decode step: NVTX ranges, and the nodes that are captured in each."""
        reduce, gather = model.custom_all_reduce(self.ranks), replace(model.nccl_kernel("AllGather"), microseconds=32)
        parts = [
            (f"model.layers.{layer}.{name}", (*part, reduce))
            for layer in range(self.layers)
            for name, part in zip(("self_attn", "mlp"), model.DECODE_LAYER, strict=True)
        ]
        parts += [("lm_head", (*model.LOGITS, replace(gather, meets=True))), ("sampler", (model.ARGMAX,))]
        return [(name, [node for node in nodes if self.ranks > 1 or not node.meets]) for name, nodes in parts]

    def program(self, rank: OpenRank) -> Program:
        timeline, world = rank.timeline, self.layout.world(self.seed)
        yield from set_up(timeline, [world] if self.ranks > 1 else [], MEMORY)
        timeline.fill(MEMORY[1])
        if self.captured:
            timeline.capture(self.graph)
        rank.finish_step()
        for step in range(self.steps):
            prefilled, decoded = self.requests(step)
            with timeline.range(f"[Executor] _forward_step {step}: {prefilled} ctx reqs, {decoded} gen reqs"):
                with timeline.range("_prepare_tp_inputs"):
                    for _request in range(prefilled + decoded):
                        timeline.compute_for(100)
                for _tensor in ("token ids", "positions", "block tables"):
                    timeline.copy("HtoD", 16 * 1024)
                if prefilled:
                    yield from self._prefill(timeline, world, LONGER if step == self.slow_step else 1, decoded)
                else:
                    yield from timeline.replay([node for _, part in self.graph for node in part], world)
                with timeline.range("_update_requests"):
                    timeline.synchronize(COPY_STREAM)  # the tokens of the step before
                    for _request in range(prefilled + decoded):
                        timeline.compute_for(15)
                timeline.order(waiting=COPY_STREAM, awaited=DEFAULT_STREAM)
                timeline.copy("DtoH", 4 * (prefilled + decoded), stream=COPY_STREAM)
            rank.finish_step()
        timeline.synchronize(COPY_STREAM)
        rank.finish_step()

    def _prefill(self, rank: RankTimeline, world: Communicator, longer: int, decoded: int) -> Program:
        for part in model.PREFILL_LAYER * self.layers:
            for spec in part:
                is_attention = spec is model.PREFILL_ATTENTION
                factor = longer**2 if is_attention else longer
                rank.launch(replace(spec, microseconds=spec.microseconds * factor))
                if is_attention and decoded:
                    rank.launch(model.DECODE_ATTENTION)
            if self.ranks > 1:
                yield from all_reduce(rank, world, PROMPT * longer)
                rank.order(waiting=DEFAULT_STREAM, awaited=world.stream)
        for spec in (*model.LOGITS, model.ARGMAX):
            rank.launch(spec)
