"""SCRAM-SHA-256 (RFC 5802, RFC 7677) and the users file."""

from __future__ import annotations

import base64
import io
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.auth.enhanced_auth import AuthenticationFailed
from mqttree.broker.auth.scram import MAX_NONCE, MIN_ITERATIONS, Scram, Verifier, prepare, saslprep
from mqttree.broker.auth.users_file import Users, entries
from mqttree.broker.cli import passwd
from mqttree.broker.cli.main import main
from mqttree.broker.config.yaml_file import ConfigError
from tests.kit.effort import examples
from tests.kit.scram_client import ScramClient

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = Verifier.of("pencil", SALT, 4096)
RNG = random.Random(7)


def scram(known: dict[str, Verifier] | None = None) -> Scram:
    return Scram((known if known is not None else {"user": PENCIL}).get, RNG.randbytes)


# ------------------------------------------------------------------ the exchange


def test_the_example_of_rfc_7677() -> None:
    class Fixed(Scram):
        def nonce(self) -> str:
            return "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"

    exchange = Fixed({"user": PENCIL}.get, RNG.randbytes)()
    assert exchange.step(None) is None
    first = exchange.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert (
        first
        == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert not exchange.done
    last = exchange.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.done
    assert exchange.username == "user"


@pytest.mark.parametrize("gs2", ["n,,", "y,,", "n,a=user,"])
def test_scram_proves_the_password_both_ways(gs2: str) -> None:
    client = ScramClient("user", "pencil", gs2=gs2)
    exchange = scram()()
    challenge = exchange.step(client.first())
    assert challenge is not None
    answer = exchange.step(client.final(challenge))
    assert answer is not None
    assert exchange.done
    assert client.proves(answer)
    with pytest.raises(AuthenticationFailed):
        exchange.step(client.final(challenge))


@pytest.mark.parametrize(
    ("user", "password"), [("user", "pencils"), ("user", ""), ("nobody", "pencil"), ("nobody", "")]
)
def test_a_wrong_password_fails_at_the_last_step(user: str, password: str) -> None:
    client = ScramClient(user, password)
    exchange = scram()()
    challenge = exchange.step(client.first())
    assert challenge is not None
    with pytest.raises(AuthenticationFailed, match="wrong user name or password"):
        exchange.step(client.final(challenge))
    assert not exchange.done


def test_an_unknown_user_has_a_constant_salt_of_its_own() -> None:
    method = scram()

    def salt(user: str) -> bytes:
        challenge = method().step(ScramClient(user, "x").first())
        assert challenge is not None
        return challenge.partition(b",")[2]

    assert salt("nobody") == salt("nobody")
    assert salt("nobody") != salt("somebody")
    assert salt("user") == b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def test_a_proof_of_zeros_lets_no_unknown_user_in() -> None:
    """What is made up for unknown users must not be guessable; and a proof of the right length is
    looked at to the end."""
    exchange = scram({})()
    exchange.step(b"n,,n=u,r=abc")
    nonce = exchange._nonce
    with pytest.raises(AuthenticationFailed):
        exchange.step(f"c=biws,r={nonce},p={base64.b64encode(bytes(32)).decode()}".encode())


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,,",
        b"x,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,m=x,n=user,r=abc",
        b"n,,r=abc,n=user",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=abc",
        b"n,,n=us=2cer,r=abc",
        b"n,,n=user,r=a bc",
        b"n,,n=user,r=\x7f",
        b"n,,n=user,r=\xc3\xa4",
        b"n,,n=\xff,r=abc",
        b"n,a=root,n=user,r=abc",
        b"n,,n=user,r=" + b"x" * (MAX_NONCE + 1),
    ],
)
def test_a_malformed_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        scram()().step(first)


@pytest.mark.parametrize(
    "bend",
    [
        lambda final: None,
        lambda final: b"",
        lambda final: final.rpartition(b",p=")[0],
        lambda final: final + b"A",
        lambda final: final[:-4],
        # This is another header than the one in client-first.
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b"c=biws", b"c=*"),
        lambda final: final.replace(b"r=", b"r=x"),
        lambda final: final.replace(b"r=", b"s=1,r="),
        # The proof does not cover this extension.
        lambda final: final.replace(b",p=", b",x=1,p="),
        lambda final: b"\xff" + final,
    ],
)
def test_a_malformed_last_message_is_refused(bend: object) -> None:
    client = ScramClient("user", "pencil")
    exchange = scram()()
    challenge = exchange.step(client.first())
    assert challenge is not None
    assert callable(bend)
    with pytest.raises(AuthenticationFailed):
        exchange.step(bend(client.final(challenge)))
    assert not exchange.done


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.binary(max_size=60) | st.text(alphabet="nrcp=,abi2CD3", max_size=40).map(str.encode),
        max_size=4,
    )
)
def test_garbage_authenticates_no_user(steps: list[bytes]) -> None:
    exchange = scram()()
    try:
        for data in steps:
            exchange.step(data)
    except AuthenticationFailed:
        pass
    assert not exchange.done


@settings(max_examples=examples(60), deadline=None)
@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_any_name_and_password_get_through(user: str, password: str) -> None:
    try:
        user, password = saslprep(user), saslprep(password)
        user.encode()
    except ValueError:
        return
    if not user or not password:
        return
    client = ScramClient(user, password)
    exchange = scram({user: Verifier.of(password, b"salt", 1)})()
    challenge = exchange.step(client.first())
    assert challenge is not None
    answer = exchange.step(client.final(challenge))
    assert answer is not None
    assert client.proves(answer)
    assert exchange.username == prepare(user)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("", ""),
    ],
)
def test_saslprep_normalises_names_and_passwords(text: str, expected: str) -> None:
    """The examples of RFC 4013, 3."""
    assert saslprep(text) == expected == prepare(text)


@pytest.mark.parametrize("text", ["\u0007", "\u06271", "a\u0627b", "\u0221"])
def test_saslprep_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"character|left"):
        saslprep(text)
    assert prepare(text) == text


# ------------------------------------------------------------------ stored


def test_a_verifier_is_written_and_read() -> None:
    text = str(PENCIL)
    assert text.startswith("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$")
    assert Verifier.parse(text) == PENCIL
    assert PENCIL.matches("pencil")
    assert not PENCIL.matches("pen")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SCRAM-SHA-256$",
        "SCRAM-SHA-1$4096:QQ==$QQ==:QQ==",
        str(PENCIL).replace("4096", "x"),
        str(PENCIL).replace("4096", "-1"),
        str(PENCIL).replace("4096", "4095"),
        str(PENCIL).replace("4096", "9999999999"),
        str(PENCIL).replace("W22Z", "!"),
        str(PENCIL).replace("W22ZaJ0SNY7soEsUEjb6gQ==", ""),
        str(PENCIL)[:-4],
        str(PENCIL) + "$",
    ],
)
def test_a_malformed_verifier_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not SCRAM|iterations"):
        Verifier.parse(text)


@pytest.fixture(scope="module")
def file() -> str:
    anna, bob = (
        entries("anna", "secret", RNG.randbytes),
        entries("bob", "b", RNG.randbytes, scram=False),
    )
    return "".join(f"{line}\n" for line in ["# who", *anna, "", *bob])


def test_a_plain_password_is_checked_against_its_verifier(file: str) -> None:
    found = Users.parse("u", file + f"carl:{Verifier.of('c', b'salt', 4096)}\n")
    assert list(found._users) == ["anna", "bob", "carl"]
    assert "anna" in found
    assert "Anna" not in found
    assert len(found) == 3
    for name, password, right in [
        ("anna", b"secret", True),
        ("anna", b"secret ", False),
        ("anna", b"", False),
        ("anna", b"\xff", False),
        ("bob", b"b", True),
        ("carl", b"c", True),
        ("carl", b"d", False),
        ("carl", b"\xff", False),
        ("nobody", b"nobody", False),
        ("", b"", False),
    ]:
        assert found.verify(name, password) is right, name
    assert found.verifier("bob") is None
    assert found.verifier("nobody") is None
    anna = found.verifier("anna")
    assert anna is not None
    assert anna.matches("secret")


def test_the_same_password_is_stored_differently_each_time() -> None:
    one, two = (set(entries("a", "x", RNG.randbytes)) for _ in range(2))
    assert not one & two


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("anna", "expected USER:HASH"),
        (":x", "must not be empty"),
        (" a:x", "begin or end with a space"),
        ("a\tb:x", "control characters"),
        ("a" * 1025 + ":x", "longer than 1024"),
        ("a:", "neither an argon2 hash"),
        ("a:secret", "neither an argon2 hash"),
        ("a:$7$101$abc$def", "neither an argon2 hash"),  # Mosquitto's
        ("a:SCRAM-SHA-256$1", "not SCRAM-SHA-256"),
        ("a:$argon2id$v=19$m=9999999,t=2,p=1$c2FsdHNhbHQ$aGFzaGhhc2g", "9999999 KiB"),
    ],
)
def test_faults_name_the_line(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^u:3: .*{message}"):
        Users.parse("u", f"# a comment\n\n{line}\n")


def test_a_user_has_one_line_of_each_kind(file: str) -> None:
    for line in file.splitlines()[1:3]:
        with pytest.raises(ConfigError, match=r"^u:6: a second .* line of this user"):
            Users.parse("u", file + line + "\n")


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("", "x"),
        ("a:b", "x"),
        ("#a", "x"),
        ("a\n", "x"),
        ("\ud800", "x"),
        ("a", ""),
        ("a", "x" * 65_536),
    ],
)
def test_a_name_or_password_that_cannot_be_stored_is_refused(name: str, password: str) -> None:
    with pytest.raises(ValueError, match=r"name|password"):
        entries(name, password, RNG.randbytes)


# ------------------------------------------------------------------ mqttree passwd


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is typed at the terminal, in order."""
    answers: list[str] = []
    monkeypatch.setattr(passwd, "_password", lambda name: answers.pop(0))
    return answers


def test_passwd_makes_changes_and_deletes(tmp_path: Path, typed: list[str]) -> None:
    path = tmp_path / "users"
    typed += ["one", "two", "three"]
    assert main(["passwd", str(path), "anna"]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    assert main(["passwd", str(path), "bob", "--no-scram"]) == 0
    assert main(["passwd", str(path), "anna", "--iterations", "5000"]) == 0
    assert path.stat().st_mode & 0o777 == 0o640
    found = Users.read(str(path))
    assert list(found._users) == ["anna", "bob"]
    assert found.verify("anna", b"three")
    assert not found.verify("anna", b"one")
    anna = found.verifier("anna")
    assert anna is not None
    assert anna.iterations == 5000
    assert found.verifier("bob") is None
    assert main(["passwd", str(path), "anna", "--delete"]) == 0
    assert list(Users.read(str(path))._users) == ["bob"]
    assert list(tmp_path.iterdir()) == [path]


def test_passwd_takes_a_line_of_the_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\r\nnot this\n"))
    assert main(["passwd", str(tmp_path / "u"), "anna"]) == 0
    assert Users.read(str(tmp_path / "u")).verify("anna", b"from a pipe")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["passwd", str(tmp_path / "u"), "anna"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{}/users", "a:b"], "user name 'a:b'"),
        (["{}/users", "a", "--iterations", "x"], "--iterations: 'x' is not a number"),
        (
            ["{}/users", "a", "--iterations", "1"],
            f"--iterations: 1 is not between {MIN_ITERATIONS} and",
        ),
        (["{}/users", "a", "--no-scram", "--iterations", "9999"], "--iterations: no SCRAM"),
        (["{}/users", "a", "--delete"], "there is no user 'a'"),
        (["{}/no/users", "a"], "cannot write"),
        (["{}", "a"], "cannot read"),
        (["{}/broken", "a"], "broken:1: expected USER:HASH"),
        (["{}/users"], "the following arguments are required: USER"),
    ],
)
def test_passwd_says_what_is_wrong_in_one_line(
    tmp_path: Path,
    typed: list[str],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    (tmp_path / "broken").write_text("nonsense\n")
    typed += ["x"]
    assert main(["passwd", *(word.format(tmp_path) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert (tmp_path / "broken").read_text() == "nonsense\n"
    assert not (tmp_path / "users").exists()
