# A dev container for torch 1.13.1, Python 3.10.
# Written by `invoke image` from build_configs/; run it again instead of changing this.

# docker.io/library/python:3.10-slim-bookworm: docker-library/repo-info 33a22f4 (Python 3.10.21, images of 2026-08-25)
FROM docker.io/library/python@sha256:673f009e3763f8d03953b525c89b03a9ee8ca315bf6b8006979b5c4a4e2e4d68

# Versions are not pinned: archives drop one when the next comes, and it is not found any more.
# hadolint ignore=DL3008
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates \
        git \
        build-essential \
        ccache \
        libnuma-dev \
        libopenblas-openmp-dev \
        pkg-config \
        libjpeg-dev \
        libpng-dev \
        zlib1g-dev \
        python3.11-venv \
 && rm -rf /var/lib/apt/lists/*

COPY requirements.txt /opt/suite-requirements/
COPY packages /opt/suite-requirements/packages
WORKDIR /opt/suite-requirements
RUN /usr/bin/python3.11 -m venv /opt/suite \
 && /opt/suite/bin/pip install --no-cache-dir -r requirements.txt

RUN useradd --create-home --shell /bin/bash --uid 10001 dev

ENV PATH=/opt/suite/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1

USER 10001
