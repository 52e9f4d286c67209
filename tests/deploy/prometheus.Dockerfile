# Stands in for prom/prometheus where no image can be pulled: Debian's package, with the command that compose gives.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}
# Whatever version Debian has:
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends prometheus \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=65534 --group=65534 /prometheus
USER 65534:65534
ENTRYPOINT ["prometheus"]
