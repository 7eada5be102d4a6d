# Any base with Python 3.11 or newer and its venv module will do.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /src
# COMPILE=0 makes an image without a compiled core, and needs no compiler.
ARG COMPILE=1
RUN [ "$COMPILE" = 0 ] || command -v gcc >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends gcc libc6-dev python3-dev; }
# The environment that goes into the image has no pip: that of the other one installs into it.
RUN python3 -m venv --without-pip /opt/mqttree && python3 -m venv /opt/build
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY stp stp
COPY discovery discovery
COPY routing routing
COPY placement placement
COPY broker broker
COPY mqttree mqttree
COPY bench bench
# A network that needs pip configuration of its own gives it as the secret "pip"; it does not stay in the image.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf,required=false \
    MQTTREE_COMPILE=$COMPILE PIP_CONSTRAINT=constraints.txt /opt/build/bin/pip wheel --no-cache-dir \
        --disable-pip-version-check --no-deps --wheel-dir /wheels . \
    && /opt/build/bin/pip --python /opt/mqttree/bin/python install --no-cache-dir --disable-pip-version-check \
        -c constraints.txt /wheels/*.whl

FROM ${BASE}
COPY --from=build /opt/mqttree /opt/mqttree
ENV PATH=/opt/mqttree/bin:$PATH PYTHONUNBUFFERED=1
# The second folder is for a volume with the cluster's secret (compose.yaml).
RUN groupadd --gid 10001 mqttree \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/mqttree --shell /usr/sbin/nologin mqttree \
    && install -d -o mqttree -g mqttree -m 700 /var/lib/mqttree /var/lib/mqttree-secret
# As a number, so that Kubernetes sees that it is not root. Nothing is written but below /var/lib/mqttree.
USER 10001:10001
WORKDIR /var/lib/mqttree
VOLUME /var/lib/mqttree
# The defaults, which a mounted file replaces. None of them is a variable or a flag, as these would win over the file.
COPY deploy/container/mqttree.yaml /etc/mqttree/mqttree.yaml
# For `mqttree status` and others in the container: they find the admin port as the broker does.
ENV MQTTREE_CONFIG=/etc/mqttree/mqttree.yaml
# MQTT, health and metrics, discovery
EXPOSE 1883 8080 18830/udp
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["mqttree"]
CMD ["run", "-c", "/etc/mqttree/mqttree.yaml"]
