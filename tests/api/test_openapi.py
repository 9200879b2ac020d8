"""The server's own OpenAPI document: requests made from it are answered, and as it says.

By hand, with many more: `strata serve --model scripted:FILE --context 512 --aliases '*'`, and
`schemathesis run http://127.0.0.1:8080/openapi.json --checks not_a_server_error,response_schema_conformance`.
"""

from collections.abc import Iterator

import pytest
import schemathesis
from helpers.api_server import ApiServer
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, Config
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from strata.serve.openapi import BODIES

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]
LINES = [
    ["Hello", ", ", "world!"],
    ["I see.\n", "</think>", "\n\n", "It is ", "4."],
    ["<tool_call>", "\n<function=now>\n</function>\n", "</tool_call>"],
]
# The other kinds of cases are thousands.
CONFIG = {"phases": {"coverage": {"enabled": False}, "examples": {"enabled": False}}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server whose model answers every request at once, by any name."""
    folder = tmp_path_factory.mktemp("openapi")
    with ApiServer(LINES, folder, "--context", "512", "--aliases", "*") as server:
        yield server


@pytest.fixture(scope="module")
def document(plain: ApiServer) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{plain.url}/openapi.json", config=Config.from_dict(CONFIG))


def test_what_the_document_allows_is_answered(document: schemathesis.BaseSchema) -> None:
    for operation in (found.ok() for found in document.get_all_operations()):

        @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy())
        def check(case: Case) -> None:
            case.call_and_validate(checks=CHECKS, timeout=20)

        check()


def test_each_body_is_described(document: schemathesis.BaseSchema) -> None:
    """And whatever takes a body is in the document's table of them."""
    operations = {
        (m, path): o for path, ways in document.raw_schema["paths"].items() for m, o in ways.items()
    }
    described = {path for (method, path), operation in operations.items() if "requestBody" in operation}
    assert described == BODIES.keys()
    posts = {path for method, path in operations if method == "post"}
    assert posts - described == {"/v1/responses/{response_id}/cancel", "/v1/requests/{id}/cancel"}
    answers = [operation["responses"]["200"]["content"] for operation in operations.values()]
    assert all(next(iter(kinds.values()))["schema"] for kinds in answers)
