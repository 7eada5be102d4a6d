"""The command line: `mqttree run | status | drain | passwd | live`, and `bench` from another
package.

What it may know: everything. Nothing imports it but the entry points.

* `main` reads the command line and imports a command only when it is used, as imports take most of
  a short command's time. `command_line` is what commands share.
* `run` is one broker from its start line to its end: signals, reload, the admin port.
* `status` and `drain` ask a running broker by its admin port (`tree_view` draws trees for `live`).
* `live` runs several brokers on this machine; `passwd` edits a users file.
* `operator_commands` has the arguments of the operator's commands: `views` prints clients, topics
  and links, `top` redraws a federation, `doctor` says why brokers do not see each other
  (`doctor_checks` judges, `link_probe` begins a link), `completion` is for shells. They ask by
  `admin_client` and print by `table`.
* `gateway` is `mqttree federate`, a broker with legs.

Exit codes: 0 all went well; 1 `status` or `drain` got no answer; 2 bad input of any kind, said in
one line; 130 interrupted.
"""
