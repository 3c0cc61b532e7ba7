# Builds wheels of torch 1.13.1 (cpu) on x86_64, for development.
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
        pkg-config \
        libjpeg-dev \
        libpng-dev \
        zlib1g-dev \
        curl \
        libbz2-dev \
        libffi-dev \
        liblzma-dev \
        libreadline-dev \
        libsqlite3-dev \
        libssl-dev \
        xz-utils \
        python3.11-dev \
        python3.11-venv \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /unpacked
RUN curl --fail --silent --show-error --location --remote-name https://www.python.org/ftp/python/3.7.17/Python-3.7.17.tgz \
 && printf '%s  %s\n' fd50161bc2a04f4c22a0971ff0f3856d98b4bf294f89740a9f06b520aae63b49 Python-3.7.17.tgz > digests \
 && sha256sum --check digests \
 && tar --extract --file Python-3.7.17.tgz --strip-components=1 \
 && ./configure \
 && make --jobs "$(nproc)" \
 && make altinstall \
 && rm -rf /unpacked/*

RUN python3.11 -m venv /opt/uv \
 && /opt/uv/bin/pip install --no-cache-dir uv==0.13.9 \
 && UV_PYTHON_INSTALL_DIR=/opt/pythons UV_PYTHON_BIN_DIR=/usr/local/bin \
    /opt/uv/bin/uv python install --no-cache 3.8 3.9 3.10

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
