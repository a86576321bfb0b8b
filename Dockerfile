# The one image of kvbench: simulated pod, router, exporter and load, each a verb of `kvbench` or `locust`.
#
#   docker build -t kvbench .
#   docker build -t kvbench --build-arg PYTHON_IMAGE=python:3.13-slim .
#   docker build -t kvbench --build-arg COMPILED=1 .   # two minutes more; a request costs the router half
#
# Behind a proxy, or with an index of your own, nothing of that stays in the image:
#   docker build --secret id=ca_bundle,src=/etc/ssl/certs/ca-certificates.crt --secret id=pip_conf,src=$HOME/.config/pip/pip.conf .
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS needed
COPY pyproject.toml /
RUN python3 -c 'import tomllib; print(*tomllib.load(open("/pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' >/needed.txt

FROM ${PYTHON_IMAGE} AS build
ARG COMPILED=
RUN if [ -n "$COMPILED" ]; then apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev python3-dev; fi
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# What kvbench needs changes less often than kvbench: a layer of its own, which a new commit does not build again.
COPY --from=needed /needed.txt .
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf --mount=type=secret,id=ca_bundle --mount=type=cache,target=/root/.cache/pip \
    if [ -s /run/secrets/ca_bundle ]; then export PIP_CERT=/run/secrets/ca_bundle; fi \
 && python3 -m venv /opt/kvbench \
 && /opt/kvbench/bin/pip install --only-binary :all: -r needed.txt
COPY pyproject.toml README.md LICENSE ./
COPY kvbench kvbench
COPY workloads workloads
COPY scripts/compiled.py scripts/
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf --mount=type=secret,id=ca_bundle --mount=type=cache,target=/root/.cache/pip \
    if [ -s /run/secrets/ca_bundle ]; then export PIP_CERT=/run/secrets/ca_bundle; fi \
 && export HATCH_BUILD_HOOK_ENABLE_CUSTOM=${COMPILED:+1} \
 && /opt/kvbench/bin/pip wheel --no-deps --wheel-dir /dist . \
 && /opt/kvbench/bin/pip install --no-deps /dist/*.whl \
 && /opt/kvbench/bin/pip uninstall --yes pip setuptools \
 && cd /opt/kvbench/lib/python3*/site-packages && rm -r pyarrow/include \
 && find . -type d -name tests -prune -exec rm -r {} +

FROM ${PYTHON_IMAGE}
# Runs go to /data/runs, weights to /models: a volume that is mounted there gets its owner from here.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin kvbench \
 && install -d -o kvbench -g kvbench /data /data/runs /models /cache
COPY --from=build /opt/kvbench /opt/kvbench
ENV PATH=/opt/kvbench/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp MPLCONFIGDIR=/tmp
WORKDIR /data
USER 10001:10001
ENTRYPOINT ["kvbench"]
CMD ["--help"]
