"""A check for Schemathesis, which tests a server with requests made from its own schema: no response is a 500, and all
responses fit the schema.

    pip install '.[server]' schemathesis
    pymtp serve --ctx 128 --n-seq-max 8 --threads 1 --api-key secret &
    SCHEMATHESIS_HOOKS=tools/checks/schemathesis_hooks.py schemathesis --config-file tools/checks/schemathesis.toml \
        run http://127.0.0.1:8080/openapi.json -H "Authorization: Bearer secret" --max-examples 40 --seed 1

Requests are at the bounds of the schema, random ones within it and beyond it, and sequences that use ids of earlier
responses. All checks of Schemathesis are on.
"""

from __future__ import annotations

import schemathesis
from schemathesis import Case, CheckContext, GenerationMode, Response

OF_TYPES = {"invalid_type", "invalid_json", "invalid_content_type"}


@schemathesis.check  # type: ignore[untyped-decorator]
def refused_for_its_meaning(ctx: CheckContext, response: Response, case: Case) -> None:
    """Check that a body that the schema allows is not refused for its types."""
    if response.status_code == 400 and case.meta is not None and case.meta.generation.mode == GenerationMode.POSITIVE:
        error = response.json()["error"]
        if isinstance(error, str):  # Ollama's errors have no code
            return
        assert error.get("code") not in OF_TYPES, f"the schema allows what the server refuses: {error['message']}"
