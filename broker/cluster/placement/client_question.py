"""Reads what a client asks of its broker by MQTT: where it should connect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from mqttree.broker.cluster.directory.questions import Answer
from mqttree.broker.cluster.placement.client_interest import check_allowed
from mqttree.broker.cluster.placement.decider import check_names
from mqttree.broker.cluster.placement.redirect_table import Interest
from mqttree.broker.wire.constants import ReasonCode
from mqttree.placement.question import TooMuchError, read_question

if TYPE_CHECKING:
    from mqttree.broker.core.session import Session

MAX_QUESTION: Final = 256 * 1024
"""bytes of a question; a thousand filters of 250."""


class Refusal:
    """Why a question is not answered."""

    __slots__ = ("answer", "code")

    def __init__(self, code: int, status: int, error: Exception) -> None:
        """`code`: Reason Code of the acknowledgement; `status`: as in HTTP; `error`: its text is
        one line."""
        self.code = code
        self.answer: Answer = (status, {"error": str(error)})


def read_client_question(session: Session, payload: bytes, at: bytes) -> dict[str, Any] | Refusal:
    """Return the question of a client, with its identifier and the broker where it is; or why it is
    refused: it is none, beyond a limit, about another client, or about what the client may not do.

    `session`: of the client; `payload`: what it has published; `at`: id of its broker.
    """
    try:
        return _read(session, payload, at.hex())
    except TooMuchError as error:
        return Refusal(ReasonCode.QUOTA_EXCEEDED, 429, error)
    except ValueError as error:
        return Refusal(ReasonCode.SUCCESS, 400, error)
    except PermissionError as error:
        return Refusal(ReasonCode.NOT_AUTHORIZED, 403, error)


def _read(session: Session, payload: bytes, at: str) -> dict[str, Any]:
    if len(payload) > MAX_QUESTION:
        raise TooMuchError(f"a question of more than {MAX_QUESTION} bytes")
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        raise ValueError("a question is a JSON object") from None
    question = read_question(value, session.client_id, at)
    check_names(question)
    if question.client != session.client_id:
        raise PermissionError("a client may ask about itself only")
    check_allowed(Interest(question.subscribe, question.publish), session.permissions)
    return {**value, "client": question.client, "at": question.at}
