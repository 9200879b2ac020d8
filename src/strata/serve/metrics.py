"""What Prometheus collects. Names and units are vLLM's, so that dashboards made for it show Strata too."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from strata.engine.messages import Totals
from strata.serve.job import Job

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)
_SECONDS_PER_TOKEN = (0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 3)
_TOKENS = (1, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000)
_LABEL = ["model_name"]
# The reasons of vLLM; the loop guard breaks an answer off as a limit does.
_REASONS = {"tool_calls": "stop", "repetition": "length"}


class Metrics:
    """Counts and times of requests; nothing in them comes from a request's text.

    Args:
        model: name of the served model, the label of everything.
    """

    def __init__(self, model: str):
        self._model = model
        self._registry = CollectorRegistry()
        self._engine = _EngineTotals(model)
        self._registry.register(self._engine)
        self._ends = Counter(
            "vllm:request_success", "Ended requests", [*_LABEL, "finished_reason"], registry=self._registry
        )
        self._total = self._histogram("e2e_request_latency_seconds", "Time of a request", _SECONDS)
        self._first = self._histogram("time_to_first_token_seconds", "Time to the first token", _SECONDS)
        self._queue = self._histogram("request_queue_time_seconds", "Time waiting for a lane", _SECONDS)
        self._prompt = self._histogram("request_prefill_time_seconds", "Time of reading a prompt", _SECONDS)
        self._decode = self._histogram("request_decode_time_seconds", "Time of writing an answer", _SECONDS)
        self._token = self._histogram(
            "request_time_per_output_token_seconds", "Time of a token after the first", _SECONDS_PER_TOKEN
        )
        self._num_prompt = self._histogram("request_prompt_tokens", "Tokens of a prompt", _TOKENS)
        self._num_answer = self._histogram("request_generation_tokens", "Tokens of an answer", _TOKENS)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(f"vllm:{name}", text, _LABEL, buckets=buckets, registry=self._registry)
        return family.labels(self._model)

    def observe(self, job: Job, total_s: float) -> None:
        """Count a request that has ended; one without an end was broken off, and only that is counted."""
        reason = _REASONS.get(job.end.reason, job.end.reason) if job.end else "abort"
        self._ends.labels(self._model, reason).inc()
        if job.end is None:
            return
        first, decode_s = job.runs[0], sum(run.decode_s for run in job.runs)
        self._total.observe(total_s)
        self._queue.observe(first.queue_s)
        self._prompt.observe(first.prompt_s)
        self._first.observe(first.queue_s + first.prompt_s)
        self._decode.observe(decode_s)
        self._num_prompt.observe(len(job.prompt))
        self._num_answer.observe(job.answer.num_tokens)
        if job.answer.num_tokens > 1:
            self._token.observe(decode_s / (job.answer.num_tokens - 1))

    def exposition(self, totals: Totals | None) -> bytes:
        """The text that is collected.

        Args:
            totals: of the engine; None if it does not answer now, which leaves them out.
        """
        self._engine.totals = totals
        return generate_latest(self._registry)


class _EngineTotals(Collector):
    """The engine's own counts. They begin anew with each engine, which Prometheus expects of counters."""

    def __init__(self, model: str):
        self._model = model
        self.totals: Totals | None = None

    def collect(self) -> Iterator[Metric]:
        if (totals := self.totals) is None:
            return
        prompts = totals.prompt_tokens + totals.cached_tokens
        yield self._gauge("num_requests_running", "Requests that own a lane", totals.running)
        yield self._gauge("num_requests_waiting", "Requests that wait for one", totals.queued)
        yield self._counter("prompt_tokens", "Tokens of prompts", prompts)
        yield self._counter("generation_tokens", "Tokens of answers", totals.completion_tokens)
        yield self._counter("prefix_cache_queries", "Tokens of prompts looked up", prompts)
        yield self._counter("prefix_cache_hits", "Tokens of prompts not read again", totals.cached_tokens)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABEL)
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=_LABEL)
        family.add_metric([self._model], value)
        return family
