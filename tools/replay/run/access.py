"""`access.json`: hands the certificates and passwords to the Spark job, which may start later and on another machine.

Only the file's owner can read it. The job removes it as soon as it has read it.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from tools.private_files import OWNER_ONLY, write_anew
from tools.replay.run.plan import OutputDirectory, Plan, ReplayError
from tools.wire.security import PLAINTEXT, Security


def write_access(output: OutputDirectory, security: Security) -> None:
    """Writes no file if there is nothing to hand over. Raises OSError."""
    if security != PLAINTEXT:
        write_anew(output.access, json.dumps(asdict(security)), OWNER_ONLY)


def take_access(output: OutputDirectory, plan: Plan) -> Security:
    """Reads the file and removes it. Raises ReplayError."""
    if plan.security_protocol == PLAINTEXT.protocol:
        return PLAINTEXT
    try:
        security = Security(**json.loads(output.access.read_text()))
        output.access.unlink()
    except FileNotFoundError:
        raise ReplayError(
            f"{output.access} is missing: a job reads it once, for one replay; start the replay again"
        ) from None
    except OSError as problem:
        raise ReplayError(f"{output.access}: {problem.strerror}; the job must run as the user who wrote it") from None
    return security
