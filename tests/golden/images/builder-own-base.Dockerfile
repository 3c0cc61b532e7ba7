# Builds wheels of torch 1.13.1 (cpu) on x86_64, for development.
# Written by `invoke image` from build_configs/; run it again instead of changing this.

# localhost/mine:1 has no digest here: what the name stands for can change.
FROM localhost/mine:1

RUN . /etc/os-release \
 && case "$ID $VERSION_ID" in \
      "debian 12"*) ;; \
      *) echo "torchmill: the base image is $ID $VERSION_ID, and debian 12 is needed: see --base" >&2; exit 1 ;; \
    esac

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
        python3.11-dev \
        python3.11-venv \
 && rm -rf /var/lib/apt/lists/*

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
