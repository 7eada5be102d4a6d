"""Test networks: brokers as processes with a network between them that can be slow, lossy, cut, or
half-open.

What it may know: `load`, and no scenario. `topology` says what a network looks like, `lab` is one
that is up. With root it is made of network namespaces (`namespaces`, `network`, `pipe`), without of
relays in one process (`relays`, `half`). `brokers` and `launcher` start the programs under test,
`cpulimit` gives them a share of a core, `tap` reads the traffic between brokers, `agreement` asks
them whether they are one tree. `owner` removes what a lab that died has left. `loopback` starts
brokers without a lab.

Brokers: `foreign` are those that the command line describes, `gateways` join foreign brokers by
legs, `federators` stand beside them (`federator_traffic` counts what they say). Processes: `child`,
`ports`, `priority`, `trace_process`; `yardstick` measures how fast a core is.
"""
