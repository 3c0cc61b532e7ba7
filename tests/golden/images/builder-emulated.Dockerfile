# Builds wheels of torch 1.13.1 (cpu) on aarch64, for development.
# Written by `invoke image` from build_configs/; run it again instead of changing this.

# docker.io/library/debian:bookworm-slim: docker-library/repo-info 05f354f (images of 2026-08-04)
FROM docker.io/library/debian@sha256:abd67ffcfa541b485a3dff59865ab629aa048a6c613e639d36e7456b0b229241

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
        python3.11-dev \
        python3.11-venv \
 && rm -rf /var/lib/apt/lists/*

# On x86_64, where this image is emulated, compilers need not be.
COPY cross-compilers.sh /opt/cross-compilers/
RUN sh /opt/cross-compilers/cross-compilers.sh x86_64
LABEL torchmill.cross-compilers=x86_64

COPY suite/requirements.txt /opt/torchmill/
COPY suite/packages /opt/torchmill/packages
WORKDIR /opt/torchmill
RUN python3.11 -m venv /opt/suite \
 && /opt/suite/bin/pip install --no-cache-dir -r requirements.txt

COPY suite/ /opt/torchmill/

RUN useradd --create-home --shell /bin/bash --uid 10001 builder
ENV PATH=/opt/suite/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    TORCHMILL_HOME=/home/builder/torchmill \
    NOX_ENVDIR=/home/builder/nox \
    TORCHMILL_TAG=v1.13.1
WORKDIR /opt/torchmill
USER 10001
CMD ["nox", "--list"]
