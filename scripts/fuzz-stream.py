"""The stream of events, which never ends: asked what the OpenAPI document allows and what it does not, its answer's head is held
against the document, and it is left. Of scripts/fuzz-api, which starts the server.

Usage: fuzz-stream.py DOCUMENT URL EXAMPLES SEED [TOKEN]
"""

import json
import sys

import hypothesis
import requests
import schemathesis
from hypothesis import strategies
from schemathesis.generation import GenerationMode

PATH = "/api/v1/events/stream"

document, url, examples, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
authorization = {"Authorization": f"Bearer {sys.argv[5]}"} if len(sys.argv) > 5 else {}
content = requests.get(document, timeout=20).json() if document.startswith("http") else json.load(open(document))
operation = schemathesis.openapi.from_dict(content)[PATH]["GET"]
described = content["paths"][PATH]["get"]["responses"]

# What a header can carry: bytes, but for those that end it.
lines = strategies.text(strategies.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=200)
last_ids = strategies.none() | lines.map(lambda line: line.strip())
seen = {}


def holds(case, last_id):
    headers = dict(authorization)
    if last_id is not None:
        headers["Last-Event-ID"] = last_id.encode("latin-1")
    asked = requests.Request(
        case.method, url + case.formatted_path, params=case.query or {}, headers=headers, cookies=case.cookies or {}
    )
    with requests.Session() as session, session.send(session.prepare_request(asked), stream=True, timeout=20) as answer:
        status, kind = answer.status_code, answer.headers.get("Content-Type", "")
        seen[status] = seen.get(status, 0) + 1
        assert status < 500, answer.text
        assert str(status) in described, f"{status} is not described: {answer.text if status != 200 else ''}"
        expected = described[str(status)].get("content", {})
        assert any(kind.startswith(one) for one in expected), f"{status} of type {kind}, and not {list(expected)}"
        if status != 200:
            assert answer.json()["status"] == status, answer.text


for mode in GenerationMode:
    cases = operation.as_strategy(generation_mode=mode)
    run = hypothesis.given(cases, last_ids)(holds)
    run = hypothesis.settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck))(run)
    hypothesis.seed(seed)(run)()
assert 200 in seen, f"the stream was never entered: {seen}"
print("answers by status:", seen)
