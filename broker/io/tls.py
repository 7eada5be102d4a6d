"""TLS contexts of connections to other brokers, and what TLS errors say (RFC 8446, RFC 5280;
MQTT 5, 4.12 and 5.4)."""

from __future__ import annotations

import ssl
from pathlib import Path

from mqttree.broker.config.listener_model import ListenerModel
from mqttree.broker.config.options import TlsSettings


def listener_context(listener: ListenerModel, *, required: bool) -> ssl.SSLContext:
    """Make the context of a listener; `required`: clients must show a certificate, which they may
    do in any case. Raises OSError (ssl.SSLError) and ValueError for files that cannot be used."""
    context = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH,
        cafile=_text(listener.cafile),
        capath=_text(listener.capath),
        cadata=_text(listener.cadata),
    )
    assert listener.certfile is not None
    context.load_cert_chain(listener.certfile, listener.keyfile)
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def renew(context: ssl.SSLContext, listener: ListenerModel) -> None:
    """Let a listener's context show the certificate that is in its files by now, to clients that
    come from now on, and trust authorities that were added. Raises OSError and ValueError for files
    that cannot be used: try them in another context first."""
    assert listener.certfile is not None
    context.load_cert_chain(listener.certfile, listener.keyfile)
    if listener.cafile or listener.capath or listener.cadata:
        context.load_verify_locations(
            _text(listener.cafile), _text(listener.capath), _text(listener.cadata)
        )


def dial_context(settings: TlsSettings) -> ssl.SSLContext:
    """Make the context of links that we dial: the other end must have a certificate of the
    cluster's authority.

    Whether it is for the address that was dialled is checked only when that was asked for: brokers
    find each other by address, and the cluster's own authority signs certificates of brokers only.

    Raises OSError (ssl.SSLError) and ValueError for files that cannot be used.
    """
    context = client_context(settings.cafile)
    context.check_hostname = settings.check_hostname
    if settings.certfile is not None:
        context.load_cert_chain(settings.certfile, settings.keyfile)
    return context


def client_context(cafile: Path | None) -> ssl.SSLContext:
    """Make a context of connections to others: they must have a certificate for their name, of an
    authority in `cafile`, or of the system's. Raises OSError (ssl.SSLError)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cafile is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cafile)
    return context


def describe_error(error: Exception) -> str:
    """Say in one line what a TLS error is about, without OpenSSL's source lines."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return str(error.reason).replace("_", " ").lower()
    return " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())
