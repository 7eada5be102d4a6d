"""All legs of one broker: started, replaced and ended as the options say."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from mqttree.broker.base.address import Address
from mqttree.broker.base.log_format import log_line
from mqttree.broker.config.leg_options import LegModel
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.config.yaml_file import ConfigError
from mqttree.broker.core.session import Session
from mqttree.broker.core.session_owner import LEG_LISTENER
from mqttree.broker.io.driver import Driver
from mqttree.broker.io.leg_driver import LegDriver
from mqttree.broker.io.leg_forget import forget
from mqttree.broker.io.leg_turns import LegTurns
from mqttree.broker.io.tls import client_context, describe_error
from mqttree.broker.leg.leg_settings import LegSettings
from mqttree.broker.leg.leg_states import State
from mqttree.broker.leg.own_topics import STATE, topic_of
from mqttree.broker.leg.retained_rules import Retain
from mqttree.broker.leg.session_pair import SESSION
from mqttree.broker.wire.constants import MAX_PACKET_SIZE
from mqttree.routing.topic_filter import valid_topic_name

LOOK = 1.0
"""s between two looks at all legs."""


class Legs:
    """The legs of one broker, by name."""

    def __init__(self, driver: Driver, *, federates: bool) -> None:
        """`driver`: of the broker's node; `federates`: whether other brokers may be found."""
        self._driver = driver
        self._turns = LegTurns(driver.node, driver.time(), federates=federates)
        self._timer: asyncio.TimerHandle | None = None
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
                model,
                leg_context(name, model),
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
        for session_id in node.retained_watchers.keys() - kept:
            del node.retained_watchers[session_id]
        journal = node.journal
        if changed and not journal.durable:
            log_line(
                "warning",
                "legs without a data directory: after a restart a message at QoS 2 may come twice, "
                "and messages that waited here for a foreign broker are lost",
            )
        self._models = wanted
        self._legs |= changed
        self._turns.post(set(wanted))
        for leg in changed.values():
            leg.attach()
            leg.bound_queue()
        self._look()
        self._driver.wake()

    def _look(self) -> None:
        """See which legs are to be active, and look at those that are."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._driver.loop.call_later(LOOK, self._look)
        turns, now = self._turns, self._driver.time()
        if self._driver.node.drain is not None:
            # The session here is fetched by the gateway that takes its place.
            turns.post(set())
            for leg in self._legs.values():
                leg.stand_by("this broker drains")
            return
        for name, leg in list(self._legs.items()):
            rival = turns.rival(name)
            if rival is not None:
                leg.stand_by(f"{turns.title(rival)} has a leg of this name and is active")
            elif leg.leg.state is not State.STANDBY:
                leg.look()
            elif turns.settled(now):
                leg.take_turn(heir=turns.shared)

    async def forget(self, models: Mapping[str, LegModel]) -> list[str]:
        """End the sessions of these legs at their foreign brokers, and of all legs here. `models`:
        by name. Returns a line for each that failed; its session here stays. Raises ConfigError."""
        node = self._driver.node
        failures = []
        for given, model in models.items():
            name = given or node.config.id.hex()
            settings = leg_settings(name, model, node.config)
            why = await forget(settings, model, leg_context(name, model))
            if why:
                failures.append(f"leg {name}: cannot end the session there: {why}")
            elif session := node.sessions.get(settings.session):
                node.end_session(session, None)
            if not why:
                log_line("info", f"leg {name}: its sessions are ended")
        self._driver.wake()
        return failures

    def stop(self) -> None:
        """End all legs; their sessions stay."""
        if self._timer is not None:
            self._timer.cancel()
        self._turns.post(set())
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
    state = topic_of(name, STATE) if model.state_topic is None else model.state_topic
    # What this broker does not offer to its clients it does not offer to a leg either.
    retains = config.retain_available and valid_topic_name(state)
    return LegSettings(
        name,
        str(model.url).partition("://")[2],
        model.rules,
        model.url.user,
        model.as_user,
        model.version,
        plain=model.plain,
        probes=model.probes,
        state_topic=state if retains else "",
        marks=model.marks,
        # An alias may belong to a message that is dropped, and then to one that is not.
        topic_alias_maximum=0 if model.marks else config.topic_alias_maximum,
        maximum_packet_size=min(config.max_packet_size, MAX_PACKET_SIZE),
        keep_alive=model.keep_alive,
        receive_maximum=model.receive_maximum,
        more_addresses=tuple(str(Address(url.host, url.port)) for url in model.others),
        round_robin=model.round_robin,
        start=model.start,
        idle_timeout=float(model.idle_timeout),
        threshold=model.threshold,
        max_qos=min(model.max_qos, config.max_qos),
        foreign_client_id=model.client_id,
        max_rate=min(model.max_rate, 65_535),
        retain=model.retain if config.retain_available else Retain.OFF,
    )


def leg_context(name: str, model: LegModel) -> ssl.SSLContext | None:
    """Return the context of a leg's TLS, None without TLS. `name`: of the leg; `model`: its
    options. Raises ConfigError for files that cannot be used."""
    if not model.url.tls:
        return None
    if model.psk_identity is not None:
        return psk_context(model)
    file = model.cafile
    try:
        context = client_context(file)
        if model.cert is not None:
            file = model.cert
            context.load_cert_chain(model.cert, model.key)
    except OSError as error:
        raise ConfigError(f"leg {name}: cannot use {file}: {describe_error(error)}") from None
    if model.alpn is not None:
        context.set_alpn_protocols([model.alpn])
    return context


def psk_context(model: LegModel) -> ssl.SSLContext:
    """Return a context of TLS by a key that both sides know, instead of certificates. `model`: the
    options of the leg, with such a key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("PSK")

    def key(_: str | None) -> tuple[str | None, bytes]:
        return model.psk_identity, model.pre_shared_key() or b""

    # Of Python 3.13, which the options have asked for.
    getattr(context, "set_psk_client_callback")(key)  # noqa: B009
    if model.alpn is not None:
        context.set_alpn_protocols([model.alpn])
    return context
