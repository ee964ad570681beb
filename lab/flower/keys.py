"""Certificates and keys of a federation on this machine, made anew for a demonstration.

In a real one every institution makes its own key and hands out the public half only, and the
server's certificate comes from an authority that all trust.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = datetime.timedelta(days=1)


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: str) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            getattr(serialization.PrivateFormat, form),
            serialization.NoEncryption(),
        )
    )


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    signer: ec.EllipticCurvePrivateKey,
    *extensions: x509.ExtensionType,
) -> x509.Certificate:
    """A certificate for a day."""

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
    )
    for extension in extensions:
        builder = builder.add_extension(
            extension, critical=isinstance(extension, x509.BasicConstraints)
        )
    return builder.sign(signer, hashes.SHA256())


def tls(folder: Path) -> None:
    """`ca.crt`, and `server.pem` with `server.key` for this machine's own address."""
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    ca = _certificate(
        "demo authority",
        authority,
        "demo authority",
        authority,
        x509.BasicConstraints(ca=True, path_length=None),
        x509.SubjectKeyIdentifier.from_public_key(authority.public_key()),
        usage,
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = _certificate(
        "localhost",
        server,
        "demo authority",
        authority,
        x509.BasicConstraints(ca=False, path_length=None),
        x509.SubjectAlternativeName(names),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
        x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]),
    )
    folder.mkdir(parents=True, exist_ok=True)
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(ca.public_bytes(pem))
    (folder / "server.pem").write_bytes(certificate.public_bytes(pem))
    _write_private(folder / "server.key", server, "PKCS8")


def node(folder: Path, name: str) -> tuple[Path, Path]:
    """A node's private and public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / name, folder / f"{name}.pub"
    _write_private(private, key, "OpenSSH")
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    return private, public
