"""The queues of the benchmarks: a fresh Redis or Kafka in a folder of its own, on a free port of loopback. They are
filled before the clock starts.
"""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.databases import found, started
from harness.servers import free_port

STREAM = "posts"  # of Redis, and the topic of Kafka
KAFKA = "kafka-4.4.0-1"  # what `scripts/install-test-kafka.sh` installs
# The log is written before the answer: what the server has acknowledged is never lost. It is not compacted meanwhile.
REDIS = ["--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always", "--save", "",
         "--auto-aof-rewrite-percentage", "0"]  # fmt: skip
JAVA = ["-Xmx1g", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
LOGGING = """rootLogger.level=WARN
rootLogger.appenderRefs=o
rootLogger.appenderRef.o.ref=O
appender.o.type=Console
appender.o.name=O
"""
SETTINGS = """process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/data
num.partitions=2
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@dataclass(frozen=True)
class Broker:
    """A running server of queues.

    `source` has the keys of a job's source, `fill` sends the lines of a file, `drain` is the shell command that reads
    all messages, does nothing with them and prints their number where `counts`, and `forget` makes groups begin again.
    """

    source: dict
    fill: Callable[[Path], None]
    drain: str
    counts: bool
    forget: Callable[[], None]
    pids: Sequence[int]
    port: int


@contextlib.contextmanager
def redis(program: str, *, keep: bool = True) -> Iterator[Broker]:
    """Redis with an empty stream; `program` is `redis-stream` of `benches/limit`. Without `keep` the stream is emptied
    when the groups begin again.
    """
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as name:
        folder, port = Path(name), free_port()
        cli = [found("redis-cli"), "-e", "-p", str(port)]
        command = [found("redis-server"), *REDIS, "--port", str(port), "--dir", name]

        def run(*words: str) -> str:
            return subprocess.run([*cli, *words], capture_output=True, text=True, check=True).stdout

        def fill(path: Path) -> None:
            subprocess.run([program, "fill", f"127.0.0.1:{port}", STREAM, str(path)], check=True, capture_output=True)

        def forget() -> None:
            if not keep:
                run("DEL", STREAM)
                return
            for group in ("load", "drain"):
                run("XGROUP", "DESTROY", STREAM, group)
            run("XGROUP", "CREATE", STREAM, "drain", "0")

        with started(command, folder, {}, [*cli, "PING"]) as process:
            source = {"read": f"redis://127.0.0.1:{port}/0", "redis": {"stream": STREAM, "group": "load"}}
            drain = f"{program} drain 127.0.0.1:{port} {STREAM} drain"
            yield Broker(source, fill, drain, True, forget, [process.pid], port)


@contextlib.contextmanager
def kafka() -> Iterator[Broker]:
    """Kafka with a topic of two partitions. What a group has read is in the target alone."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jars = cache / "millstream" / "test-servers" / KAFKA
    if not jars.exists():
        raise FileNotFoundError("Kafka is not installed: scripts/install-test-kafka.sh")
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as name:
        folder, port = Path(name), free_port()
        settings, logging = folder / "server.properties", folder / "log4j2.properties"
        settings.write_text(SETTINGS.format(port=port, controller=free_port(), folder=folder))
        logging.write_text(LOGGING)
        java = [found("java"), *JAVA, f"-Dlog4j2.configurationFile=file:{logging}", "-cp", f"{jars}/*"]
        make = ["format", "-t", "fk2BsXRFQS2hxtKLqS6Fuw", "--standalone", "-c", str(settings)]
        subprocess.run([*java, "kafka.tools.StorageTool", *make], check=True, capture_output=True)
        kcat = [found("kcat"), "-q", "-b", f"127.0.0.1:{port}"]

        def fill(path: Path) -> None:
            subprocess.run([*kcat, "-P", "-t", STREAM, "-l", str(path)], check=True, capture_output=True)

        with started([*java, "kafka.Kafka", str(settings)], folder, {}, [*kcat, "-L"]) as process:
            source = {"read": f"kafka://127.0.0.1:{port}/{STREAM}", "kafka": {"group": "load"}}
            drain = " ".join([*kcat, "-C", "-t", STREAM, "-o", "beginning", "-e", "> /dev/null"])
            yield Broker(source, fill, drain, False, lambda: None, [process.pid], port)
