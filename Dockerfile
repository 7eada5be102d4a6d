# Any base with Python 3.11 or newer and its venv module will do.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /src
RUN python3 -m venv /opt/mqttree
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY stp stp
COPY discovery discovery
COPY routing routing
COPY broker broker
COPY mqttree mqttree
COPY bench bench
# A network that needs pip configuration of its own gives it as the secret "pip"; it does not stay in the image.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf,required=false \
    /opt/mqttree/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt setuptools \
    && /opt/mqttree/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt \
        --no-build-isolation .

FROM ${BASE}
COPY --from=build /opt/mqttree /opt/mqttree
ENV PATH=/opt/mqttree/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --system --no-create-home --home-dir /var/lib/mqttree --shell /usr/sbin/nologin mqttree \
    && install -d -o mqttree -g mqttree -m 750 /var/lib/mqttree
USER mqttree
WORKDIR /var/lib/mqttree
VOLUME /var/lib/mqttree
# MQTT, health and metrics, discovery
EXPOSE 1883 8080 18830/udp
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["mqttree"]
CMD ["run", "--listen", "0.0.0.0:1883", "--admin", "0.0.0.0:8080", "--data-dir", "/var/lib/mqttree"]
