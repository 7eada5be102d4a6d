"""The drivers: sockets, files, HTTP, TLS. They move bytes and decide nothing."""
