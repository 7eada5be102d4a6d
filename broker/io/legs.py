"""All legs of one broker: started, replaced and ended as the options say."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from broker.base.log_format import log_line
from broker.config.leg_options import LegModel
from broker.config.node_config import NodeConfig
from broker.config.yaml_file import ConfigError
from broker.core.session import Session
from broker.core.session_owner import LEG_LISTENER
from broker.io.driver import Driver
from broker.io.leg_driver import LegDriver
from broker.io.subscription_reader import SubscriptionReader
from broker.io.tls import client_context, describe_error
from broker.leg.interest import Source
from broker.leg.leg import SESSION, LegSettings
from broker.wire.constants import MAX_PACKET_SIZE
from routing.topic_filter import valid_topic_name

__all__ = ["Legs"]


class Legs:
    """The legs of one broker, by name."""

    def __init__(self, driver: Driver) -> None:
        """`driver`: of the broker's node."""
        self._driver = driver
        self._models: dict[str, LegModel] = {}
        self._legs: dict[str, LegDriver] = {}

    def put_in_force(self, models: Mapping[str, LegModel]) -> None:
        """Have these legs and no other ones; those whose options are the same stay up. A leg that
        is not wanted any more takes its session here with it; the foreign broker forgets its own
        one after a day.

        `models`: by name; the name "" stands for this broker's id.

        Raises:
            ConfigError: a leg cannot be used. Then all stays as it was.
        """
        node = self._driver.node
        config = node.config
        wanted = {name or config.id.hex(): model for name, model in models.items()}
        changed = {
            name: LegDriver(
                self._driver,
                leg_settings(name, model, config),
                model.url,
                leg_context(name, model),
                model.password,
                subscription_reader(name, model),
            )
            for name, model in wanted.items()
            if self._models.get(name) != model
        }
        for name in [name for name in self._legs if name in changed or name not in wanted]:
            self._legs.pop(name).stop()
        kept = {SESSION + name for name in wanted}
        for session in [each for each in node.sessions.values() if is_of_leg(each)]:
            if session.client_id not in kept:
                node.end_session(session, None)
        journal = node.journal
        if changed and not journal.recording:
            log_line(
                "warning",
                "legs without a data directory: after a restart a message at QoS 2 may come twice, "
                "and messages that waited here for a foreign broker are lost",
            )
        self._models = wanted
        self._legs |= changed
        for leg in changed.values():
            leg.start()
        self._driver.wake()

    def stop(self) -> None:
        """End all legs; their sessions stay."""
        for leg in self._legs.values():
            leg.stop()
        self._legs.clear()
        self._models.clear()

    def reports(self) -> list[dict[str, Any]]:
        """Return the state of each leg, for people and programs."""
        return [leg.report() for _, leg in sorted(self._legs.items())]


def is_of_leg(session: Session) -> bool:
    """Return whether a session is of a leg, which may not be wanted any more."""
    conn = session.conn
    listener = session.listener if conn is None else conn.listener
    return listener == LEG_LISTENER and session.client_id.startswith(SESSION)


def leg_settings(name: str, model: LegModel, config: NodeConfig) -> LegSettings:
    """Return how a leg connects. `name`: of the leg; `model`: its options; `config`: of this
    broker."""
    state = f"mqttree/leg/{name}/state" if model.state_topic is None else model.state_topic
    beacons = model.interest is Source.BEACON
    return LegSettings(
        name,
        str(model.url).partition("://")[2],
        model.rules,
        model.url.user,
        model.as_user,
        model.version,
        probes=True,
        state_topic=state if valid_topic_name(state) else "",
        interest=model.interest,
        marks=model.marks,
        # An alias may belong to a message that is dropped, and then to one that is not.
        topic_alias_maximum=0 if model.marks or beacons else config.topic_alias_maximum,
        maximum_packet_size=min(config.max_packet_size, MAX_PACKET_SIZE),
    )


def leg_context(name: str, model: LegModel) -> ssl.SSLContext | None:
    """Return the context of a leg's TLS, None without TLS. `name`: of the leg; `model`: its
    options. Raises ConfigError for files that cannot be used."""
    if not model.url.tls:
        return None
    file = model.cafile
    try:
        context = client_context(file)
        if model.cert is not None:
            file = model.cert
            context.load_cert_chain(model.cert, model.key)
    except OSError as error:
        raise ConfigError(f"leg {name}: cannot use {file}: {describe_error(error)}") from None
    return context


def subscription_reader(name: str, model: LegModel) -> SubscriptionReader | None:
    """Return what reads over HTTP what foreign clients subscribe to, None if nothing does. `name`:
    of the leg; `model`: its options. Raises ConfigError for a file that cannot be used."""
    url = model.interest_url
    if url is None:
        return None
    try:
        context = client_context(model.cafile) if url.tls else None
    except OSError as error:
        raise ConfigError(
            f"leg {name}: cannot use {model.cafile}: {describe_error(error)}"
        ) from None
    client_id = f"mqttree-{name}"
    own = (client_id, f"{client_id}-sync")
    return SubscriptionReader(
        model.interest, url, context, model.interest_password, own, model.rules
    )
