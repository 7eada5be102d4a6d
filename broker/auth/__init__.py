"""Authentication and authorization: users, rules, SCRAM, enhanced authentication.

What it may know: `base`, `wire`, `routing` (rules match topics) and `config` (errors of files). It
is pure but for reading files: `io.auth_service` reads them at the start and at a reload, and checks
passwords in threads.

* `authorization`: rules in the order of their file, and what one client may do. `acl_file` parses
  the rules file.
* `users_file` parses and writes the users file; `scram` is the server's side of SCRAM-SHA-256.
* `enhanced_auth` is the exchange of AUTH packets (MQTT 5, 4.12), for any method: it is under way,
  done (the user name is proven) or failed.
* `certificate` reads the common name of a peer's certificate.
"""
