"""The handshake's machine: both ends prove the key, and no message of an observer or of a rogue opens anything."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrain.cluster import JOINING
from dtrain.errors import PeerRefusedError
from dtrain.messages import Challenge, Hello, Opening, Proof
from dtrain.wire.security import proof
from dtrain.wire.security.keys import SALT_BYTES, Keyring

SALT = b"s" * SALT_BYTES
HELLO = Hello(run_id="run", cluster_hash="hash", task="worker:1")
SECRET = "dtrain1-" + "5a" * 32
OTHER = "dtrain1-" + "5b" * 32


class Server:
    def __init__(self, task="ps:0", secret=SECRET, own=b"o" * 32, salt=SALT):
        self.keyring, self.salt = Keyring(secret, salt), salt
        self.examiner = proof.Examiner(task, own)
        self.asked = 0

    def challenge(self, opening, now_s=100.0):
        self.asked += 1
        random = self.asked.to_bytes(proof.RANDOM_BYTES, "big")
        return self.examiner.challenge(opening, self.salt, self.keyring.key, random, now_s)

    def admit(self, answer, now_s=101.0):
        return self.examiner.admit(answer, self.keyring.key, now_s)


def opening(nonce=b"c" * proof.NONCE_BYTES, task="worker:1"):
    return Opening(task=task, nonce=nonce)


def answered(server, secret=SECRET, peer="ps:0", hello=HELLO, said=None):
    said = said or opening(task=hello.task)
    return proof.answer(hello, peer, said, server.challenge(said), Keyring(secret, SALT).key)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_two_ends_with_one_key_let_each_other_in(secret):
    server = Server(secret=secret)
    assert server.admit(answered(server, secret)) == HELLO


@pytest.mark.parametrize(("here", "there"), [(SECRET, OTHER), (SECRET, None), (None, SECRET)])
def test_a_client_says_nothing_more_to_a_server_with_another_key(here, there):
    with pytest.raises(PeerRefusedError, match=f"^{proof.STRANGER}$"):
        answered(Server(secret=there), here)


def test_a_server_of_the_run_cannot_pass_for_another_one():
    with pytest.raises(PeerRefusedError, match=proof.STRANGER):
        answered(Server("ps:1"), peer="ps:0")


def test_a_worker_that_joins_knows_no_server_and_takes_any_of_the_run():
    hello = Hello(run_id="", cluster_hash="", task=str(JOINING))
    server = Server("ps:1")
    answer = answered(server, hello=hello, peer="the server")
    assert server.admit(answer) == hello
    with pytest.raises(PeerRefusedError, match=proof.STRANGER):
        answered(Server("ps:1", OTHER), hello=hello, peer="the server")
    with pytest.raises(PeerRefusedError, match="answers no challenge"):
        server.admit(msgspec.structs.replace(answer, hello=HELLO))


def test_a_proof_for_one_server_opens_no_other_one():
    first, second = Server("ps:0"), Server("ps:1", own=b"p" * 32)
    with pytest.raises(PeerRefusedError, match="answers no challenge of this server"):
        second.admit(answered(first))
    again = Server("ps:1")  # even if it knew its nonces
    with pytest.raises(PeerRefusedError, match="its secret is another"):
        again.admit(answered(first))


def test_a_server_s_own_proof_is_not_one_of_a_client():
    server = Server()
    said = opening()
    challenge = server.challenge(said)
    answer = proof.answer(HELLO, "ps:0", said, challenge, server.keyring.key)
    with pytest.raises(PeerRefusedError, match="its secret is another"):
        server.admit(msgspec.structs.replace(answer, proof=challenge.proof))


def test_a_proof_is_good_once_and_not_for_long():
    server = Server()
    answer = answered(server)
    assert server.admit(answer) == HELLO
    with pytest.raises(PeerRefusedError, match="used before"):
        server.admit(answer)
    later = 100.0 + proof.PROOF_LIMIT_S
    with pytest.raises(PeerRefusedError, match="used before"):
        server.admit(answer, later)
    for now_s in (later + 0.01, 99.9):
        with pytest.raises(PeerRefusedError, match="more than 10 s after the challenge"):
            server.admit(answer, now_s)


def test_a_server_remembers_used_proofs_only_as_long_as_they_could_be_used_again():
    server = Server()
    for second in range(100):
        said = opening()
        challenge = server.challenge(said, float(second))
        server.admit(proof.answer(HELLO, "ps:0", said, challenge, server.keyring.key), float(second))
    assert len(server.examiner._taken) <= proof.PROOF_LIMIT_S + 1


def test_a_server_keeps_nothing_for_those_who_have_proven_nothing():
    server = Server()
    for _ in range(100):
        answer = answered(server, SECRET)
        with pytest.raises(PeerRefusedError):
            server.admit(msgspec.structs.replace(answer, proof=b"x" * 32))
    assert not server.examiner._taken


@given(data=st.data())
def test_a_changed_proof_is_refused(data):
    server = Server()
    answer = answered(server)
    encoded = bytearray(msgspec.msgpack.encode(answer))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    try:
        changed = msgspec.msgpack.decode(bytes(encoded), type=type(answer))
    except (msgspec.DecodeError, ValueError):
        return
    if changed == answer or changed == msgspec.structs.replace(answer, version=changed.version):
        return  # another form of the same; the version is compared when the message is read
    with pytest.raises(PeerRefusedError):
        server.admit(changed)


@given(salt=st.binary(max_size=40), nonce=st.binary(max_size=80), said=st.binary(max_size=40))
def test_no_made_up_challenge_is_believed(salt, nonce, said):
    made_up = Challenge(salt=salt, nonce=nonce, proof=said)
    with pytest.raises(PeerRefusedError, match=proof.STRANGER):
        proof.answer(HELLO, "ps:0", opening(), made_up, Keyring(SECRET, SALT).key)


@given(nonce=st.binary(max_size=80), proved=st.binary(max_size=40), salt=st.binary(max_size=20))
def test_no_made_up_proof_lets_anybody_in(nonce, proved, salt):
    made_up = Proof(hello=HELLO, salt=salt, challenge=nonce, nonce=b"c" * 32, proof=proved)
    with pytest.raises(PeerRefusedError):
        Server().admit(made_up)


@pytest.mark.parametrize(
    "said", [opening(b""), opening(b"c" * 31), opening(b"c" * 33), opening(task="worker:" + "9" * 99)]
)
def test_what_is_no_opening_is_not_answered(said):
    with pytest.raises(PeerRefusedError, match="not dtrain's"):
        Server().challenge(said)


def test_a_key_depends_on_secret_and_salt_and_a_person_s_is_slow_to_guess():
    person = Keyring("correct-horse-battery", SALT)
    keys = {
        person.key(SALT),
        person.key(b"t" * SALT_BYTES),
        Keyring(SECRET, SALT).key(SALT),
        Keyring(SECRET, SALT).key(b"t" * SALT_BYTES),
        Keyring(None, SALT).key(SALT),
    }
    assert len(keys) == 5
    assert person.is_slow
    assert not Keyring(SECRET, SALT).is_slow


def test_a_rogue_s_salts_take_no_more_memory_than_a_few_keys():
    keyring = Keyring(SECRET, SALT)
    for number in range(100):
        keyring.key(number.to_bytes(SALT_BYTES, "big"))
    assert len(keyring._keys) <= 16


def test_a_server_takes_over_the_salt_of_the_first_proven_server():
    keyring = Keyring(SECRET, SALT)
    for salt in (b"1" * SALT_BYTES, b"2" * SALT_BYTES):
        keyring.adopt(salt)
    assert keyring.salt == b"1" * SALT_BYTES


def test_a_name_says_nothing_of_a_person_s_secret_and_cannot_be_computed_without_a_made_one():
    names = [Keyring(secret, SALT).named("ps:0", "run") for secret in (None, "letmein123letmein", "a" * 16)]
    assert len(set(names)) == 1
    made = [Keyring(secret, SALT).named("ps:0", "run") for secret in (SECRET, OTHER)]
    assert len({*names, *made}) == 3
