"""Who is let in. Rule 7: a stranger gets a plain refusal, and two runs on one machine can never mix."""

import hmac

from dtrain.cluster import TaskId
from dtrain.messages import Hello


def refusal(expected: Hello, hello: Hello) -> str | None:
    """Why a server that expects `expected` (its own hello) does not talk to `hello`; None if it does."""
    if hello.run_id != expected.run_id:
        return f"this is {expected.task} of run {expected.run_id}; {hello.task} belongs to run {hello.run_id}"
    if hello.cluster_hash != expected.cluster_hash:
        return (
            f"{hello.task} was started with another cluster than {expected.task} (hashes "
            f"{hello.cluster_hash} and "
            f"{expected.cluster_hash}); give every task the same chief, worker and ps addresses"
        )
    if not hmac.compare_digest((expected.secret or "").encode(), (hello.secret or "").encode()):
        return (
            f"{hello.task} did not present the secret of {expected.task}; give every task the same "
            "DTRAIN_SECRET or secret_file"
        )
    try:
        TaskId.parse(hello.task)
    except ValueError as error:
        return str(error)
    return None
