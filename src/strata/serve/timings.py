"""How long a request took: llama.cpp's `timings`, and a line for the log."""

from strata.serve.job import Job


def timings(job: Job) -> dict[str, float]:
    """The times of a request that has ended; rates are 0 where there is nothing to measure."""
    first, num_answer = job.runs[0], job.answer.num_tokens
    num_read = len(job.prompt) - first.cached_tokens
    decode_s = sum(run.decode_s for run in job.runs)
    return (
        {"cache_n": first.cached_tokens, "prompt_n": num_read, "predicted_n": num_answer}
        | _rates("prompt", num_read, first.prompt_s)
        | _rates("predicted", num_answer - 1, decode_s)  # the first token is the prompt's
    )


def _rates(name: str, num_tokens: int, seconds: float) -> dict[str, float]:
    measured = seconds > 0 and num_tokens > 0
    return {
        f"{name}_ms": seconds * 1000,
        f"{name}_per_token_ms": seconds * 1000 / num_tokens if measured else 0.0,
        f"{name}_per_second": num_tokens / seconds if measured else 0.0,
    }


def summary(job: Job) -> str:
    """`prompt 900 tokens (800 cached, 80.2 tokens/s), answer 100 (20.1 tokens/s), queued 0.00 s`.

    Of a job that was broken off, the prompt only.
    """
    line = f"prompt {len(job.prompt)} tokens"
    if job.end is None:
        return line
    times, first = timings(job), job.runs[0]
    read, written = _speed(times["prompt_per_second"]), _speed(times["predicted_per_second"])
    return (
        f"{line} ({first.cached_tokens} cached, {read}), answer {job.answer.num_tokens} ({written}), "
        f"queued {first.queue_s:.2f} s"
    )


def _speed(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.1f} tokens/s" if tokens_per_s else "- tokens/s"
