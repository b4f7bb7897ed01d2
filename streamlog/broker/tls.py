"""TLS of a broker's listener, and who a client's certificate says it is."""

from __future__ import annotations

import ssl
from typing import Any

from streamlog.broker.settings import BrokerSettings
from streamlog.errors import InvalidRequestError

# RFC 4514's short names; others keep the name that OpenSSL gives.
_SHORT = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


def server_context(settings: BrokerSettings) -> ssl.SSLContext | None:
    """TLS 1.2 or newer; None if the settings name no certificate."""
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except (OSError, ValueError) as error:
        raise InvalidRequestError(
            f"tls_cert {settings.tls_cert} with tls_key {settings.tls_key} cannot be used: {error}. Give "
            "the certificate (with its chain) and its key, not encrypted, as PEM files"
        ) from error
    if settings.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except (OSError, ValueError) as error:
            raise InvalidRequestError(
                f"tls_client_ca {settings.tls_client_ca} cannot be used: {error}. Give the certificates of "
                "the authorities that sign clients' certificates, as a PEM file"
            ) from error
    return context


def principal(certificate: Any) -> str | None:
    """The principal of a client's certificate as Kafka writes it, such as `User:CN=app,O=Example`."""
    if not certificate or not certificate.get("subject"):
        return None
    parts = [
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in names)
        for names in reversed(certificate["subject"])
    ]
    return f"User:{','.join(parts)}"


def _escaped(value: str) -> str:
    """RFC 4514, so that a name with a comma in it cannot pass for two."""
    escaped = "".join(f"\\{c}" if c in ',+"\\<>;=' else c for c in value)
    if escaped.startswith(("#", " ")):
        escaped = f"\\{escaped}"
    if escaped.endswith(" ") and len(value) > 1:
        escaped = f"{escaped[:-1]}\\ "
    return escaped


def _no_password() -> str:
    # Without this OpenSSL would ask for it at the terminal, and a server would wait for ever.
    raise ValueError("the key is encrypted")
