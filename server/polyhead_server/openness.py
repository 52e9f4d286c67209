"""A word of warning for servers that other machines can reach."""

from polyhead_server.address import is_loopback
from polyhead_server.logs import LOGGER
from polyhead_server.settings import Settings


def warn_of_openness(settings: Settings) -> None:
    """Says in the log what a server lacks that other machines can reach."""
    if settings.metrics and not is_loopback(settings.metrics_host):
        LOGGER.warning(
            "metrics on %s, beyond this machine, have neither TLS nor a token, so everybody may read "
            "them: keep that port on a network of your own (--metrics-host)",
            settings.metrics_host,
        )
    if is_loopback(settings.host):
        return
    missing = []
    if settings.tls_cert is None:
        missing.append("TLS (--tls-cert, --tls-key), so what is sent can be read on the way")
    if settings.token_file is None and settings.tls_client_ca is None:
        missing.append(
            "a token (--token-file) or client certificates (--tls-client-ca), so everybody may call"
        )
    for one in missing:
        LOGGER.warning("listening on %s, beyond this machine, without %s", settings.host, one)
