"""Makes the TLS context and the client of the schema registry from the settings in conf/, for all kinds of brokers."""

from __future__ import annotations

import functools
import ssl

from sluice.cdc_engine.brokers.registry.client import AVRO_TYPE, HttpRegistry
from sluice.cdc_engine.config.brokers import RegistryConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.source.settings import TlsFilesConfig


def tls_context(config: TlsFilesConfig, setting: str = "brokers.tls") -> ssl.SSLContext:
    """Returns a TLS context that verifies the server's certificate and host name. `setting` is the key of `config` in conf/, for errors.
    Raises ConfigurationError if a file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=str(config.ca_file) if config.ca_file else None)
        if config.certificate_file:
            context.load_cert_chain(config.certificate_file, config.key_file)
    except (OSError, ssl.SSLError) as error:
        files = [str(file) for file in (config.ca_file, config.certificate_file, config.key_file) if file]
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(
            f"{setting}: {', '.join(files)} cannot be used: {why}; correct these paths or files"
        ) from None
    return context


def registry_of(config: RegistryConfig, schema_type: str = AVRO_TYPE) -> HttpRegistry:
    """Returns a client of the schema registry for schemas of one type. The client connects when the first schema is looked up."""
    context = functools.partial(tls_context, config.tls or TlsFilesConfig(), "registry.tls")
    return HttpRegistry(config, context, schema_type)
