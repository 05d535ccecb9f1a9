"""What an instance of a job wrote, from CloudWatch."""

from __future__ import annotations

from corral.adapters.executors.sagemaker.api import AwsApi, AwsRefusal

GROUP = "/aws/sagemaker/TrainingJobs"
# AWS sends at most this many lines at once, and at most 1 MiB.
_MOST_LINES = 10_000


def tail_of(api: AwsApi, job: str, instance: int, *, most_bytes: int) -> str:
    """Empty before the instance has written anything."""
    prefix = f"{job}/algo-{instance + 1}-"
    try:
        streams = api.call("logs", "describe_log_streams", logGroupName=GROUP, logStreamNamePrefix=prefix)
        lines: list[str] = []
        # A job that was interrupted and started again has more than one.
        for stream in streams.get("logStreams", ()):
            told = api.call(
                "logs",
                "get_log_events",
                logGroupName=GROUP,
                logStreamName=stream["logStreamName"],
                startFromHead=False,
                limit=_MOST_LINES,
            )
            lines += [event["message"] for event in told.get("events", ())]
    except AwsRefusal as error:
        # The group comes with the first job of a region.
        return "" if error.name == "ResourceNotFoundException" else f"{error}\n"
    text = "".join(f"{line}\n" for line in lines).encode()
    return text[-most_bytes:].decode(errors="ignore") if most_bytes > 0 else ""
