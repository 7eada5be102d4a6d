"""The version of mqttree that is installed."""

from __future__ import annotations


def version() -> str:
    """Return the version of the installed distribution, "" when run from bare sources."""
    # Slow to import, and most command lines do not ask.
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("mqttree")
    except PackageNotFoundError:
        return ""
