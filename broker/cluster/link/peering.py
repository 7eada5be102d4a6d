"""Whether brokers may link without proving that they belong to us: not where clients have to prove
who they are."""

from __future__ import annotations

from collections.abc import Iterable

from mqttree.broker.auth.authorization import Access
from mqttree.broker.config.options import FederationSettings
from mqttree.broker.config.yaml_file import ConfigError

OPTION = "federation: {allow-unauthenticated-brokers: true}"
REMEDY = (
    "give all brokers one --secret-file, or mutual TLS (federation.tls), "
    f"or let any broker in: {OPTION}"
)


def guard(
    access: Access | None, listeners: Iterable[str], *, plugins: bool, certificates: Iterable[str]
) -> str:
    """Return what authenticates clients, or restricts them, as a log line says it; ""
    when nothing does.

    `access`: the users and rules that the configuration names; `listeners`: the names of all
    listeners; `plugins`: whether plugins are asked who may connect; `certificates`: the listeners
    that ask for client certificates.
    """
    found = []
    if access is not None:
        found += ["users"] * (access.users is not None) + ["rules"] * (access.rules is not None)
        if access.users is None and not all(map(access.lets_anonymous, listeners)):
            found.append("access.anonymous")
    found += ["plugins"] * plugins
    found += [f"certificates on listener {name}" for name in certificates]
    return ", ".join(found)


def anybody(settings: FederationSettings | None) -> bool:
    """Whether brokers may link without authentication."""
    return settings is not None and settings.federates and not settings.authenticates


def unproven(settings: FederationSettings | None) -> bool:
    """Whether brokers may link without authentication, and the configuration does not allow
    it."""
    return settings is not None and anybody(settings) and not settings.any_broker


def settle(settings: FederationSettings, guarded: str) -> None:
    """Have a broker whose clients are `guarded` by something stay alone, if other brokers would not
    have to prove anything.

    Raises ConfigError with one line when the configuration says that it is to look for others.
    """
    if not guarded or not unproven(settings):
        return
    if settings.asked:
        raise ConfigError(f"clients are checked ({guarded}), other brokers would not be: {REMEDY}")
    settings.stay_alone(guarded)
