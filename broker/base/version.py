"""The installed version of mqttree."""

from __future__ import annotations


def version() -> str:
    """Return the version of the installed distribution, "" when run from sources that are not
    installed."""
    # This is slow to import, and most command lines do not need it.
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("mqttree")
    except PackageNotFoundError:
        return ""
