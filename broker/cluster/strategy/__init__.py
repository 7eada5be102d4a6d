"""Which way a message goes: flooding, by interest, by source-rooted trees; the directory and the
barrier of subscriptions."""
