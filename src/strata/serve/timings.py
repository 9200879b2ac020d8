"""llama.cpp's `timings`: how long a request took."""

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
