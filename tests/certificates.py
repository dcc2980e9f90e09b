"""A certificate authority of the tests' own, and server certificates that it signs."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID_DAYS = 2


class Authority:
    """``certificate`` is its own PEM file, which clients are told to trust."""

    def __init__(self, folder: Path, name: str = "eaglefeed test authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._key, self._name = folder, ec.generate_private_key(ec.SECP256R1()), _name(name)
        self.certificate = folder / "authority.pem"
        builder = _builder(self._name, self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = builder.add_extension(usage, critical=True).add_extension(identifier, critical=False)
        _write(self.certificate, builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(self, host: str = "127.0.0.1") -> tuple[Path, Path]:
        """PEM files of a server certificate for ``host`` and of its private key."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        builder = _builder(_name(host), self._name, key)
        builder = builder.add_extension(x509.SubjectAlternativeName([name]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = builder.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        certificate, private = self.folder / f"{host}.pem", self.folder / f"{host}.key"
        _write(certificate, signed.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8
        _write(private, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        return certificate, private


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o600)
