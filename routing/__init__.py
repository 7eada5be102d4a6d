"""Which way a message goes."""
