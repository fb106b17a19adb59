"""Provides the TLS context that several brokers' clients need to connect. Used by `rabbitmq` and `rocketmq`."""

from __future__ import annotations

import ssl

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.source.settings import TlsFilesConfig


def tls_context(config: TlsFilesConfig) -> ssl.SSLContext:
    """Returns a context that verifies certificate and host name. Raises ConfigurationError if a file cannot be used."""
    try:
        context = ssl.create_default_context(cafile=str(config.ca_file) if config.ca_file else None)
        if config.certificate_file:
            context.load_cert_chain(config.certificate_file, config.key_file)
    except (OSError, ssl.SSLError) as error:
        files = [str(file) for file in (config.ca_file, config.certificate_file, config.key_file) if file]
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"brokers.tls: {', '.join(files)} cannot be used: {why}") from None
    return context
