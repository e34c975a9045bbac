"""Posts are signed as Standard Webhooks says."""

from __future__ import annotations

from agents.webhook import key_of, signature, signed

SECRET = "whsec_plJ3nmyCDGBKInavdOK15jsl"
BODY = b'{"event_type":"ping","data":{"success":true}}'


def test_the_example_of_standard_webhooks_has_its_signature() -> None:
    """Source: the example in the specification's repository, github.com/standard-webhooks/standard-webhooks."""
    made = signature("msg_loFOjxBNrRLzqYUf", BODY, key_of(SECRET), 1731705121)
    assert made == "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="


def test_an_alert_has_one_name_however_often_it_is_posted() -> None:
    first, second = signed("a/0/1/drift/m@1/opened", BODY, None, 1), signed("a/0/1/drift/m@1/opened", BODY, b"k", 2)
    assert first["webhook-id"] == second["webhook-id"]
    assert "webhook-signature" not in first


def test_a_secret_that_is_no_base64_is_taken_as_it_is() -> None:
    assert key_of("whsec_???") == b"whsec_???"
    assert key_of("plain") == b"plain"
