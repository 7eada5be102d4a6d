"""The OpenAPI document of `/api/v1`, made of `routes` and `schemas`."""

from __future__ import annotations

import re
from typing import Any

from mqttree.broker.io.api.routes import AT_EACH, PREFIX, ROUTES, Parameter, Route
from mqttree.broker.io.api.schemas import SCHEMAS, schema

ABOUT = """\
A broker and the federation as it sees it. Where the admin port needs a token, every request brings
it (`Authorization: Bearer TOKEN`). Refusals are 4xx or 503 with an `Error`: 400 a parameter, 401 no
token, 403 another web page, 404 nothing there, 405 another method, 429 too many searches at a time.
"""


def document(version: str) -> dict[str, Any]:
    """Return the document; `version`: of the program."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(PREFIX + route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mqttree",
            "version": version,
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {name: schema(name) for name in SCHEMAS},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    kind = "text/event-stream" if route.handler == "events" else "application/json"
    parts = re.findall(r"{(\w+)}", route.path)
    made = {
        "operationId": route.handler,
        "summary": route.summary,
        "parameters": [_part(name) for name in parts] + [_query(p) for p in route.parameters],
        "responses": {
            str(route.status): {
                "description": "Begun" if route.status == 202 else "OK",
                "content": {kind: {"schema": _answer(route)}},
            },
            "default": {
                "description": "Refused",
                "content": {"application/json": {"schema": _ref("Error")}},
            },
        },
    }
    if route.body:
        content = {"application/json": {"schema": {"type": "object"}}}
        made["requestBody"] = {"required": True, "content": content}
    return made


def _answer(route: Route) -> dict[str, Any]:
    return (
        {"anyOf": [_ref(route.schema), _ref("Each")]}
        if AT_EACH in route.parameters
        else _ref(route.schema)
    )


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _part(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query(parameter: Parameter) -> dict[str, Any]:
    kind: dict[str, Any] = {"type": "string"}
    if parameter.default is not None:
        kind["default"] = parameter.default
    if parameter.most:
        kind = {
            "type": "integer",
            "default": parameter.default,
            "minimum": 1,
            "maximum": parameter.most,
        }
    elif parameter.choices:
        kind["enum"] = list(parameter.choices)
    return {
        "name": parameter.name,
        "in": "query",
        "required": False,
        "description": parameter.text,
        "schema": kind,
    }
