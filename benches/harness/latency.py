"""How long messages take from their sending to a row that others see, at a steady rate.

    python latency.py PORT STREAM MESSAGES RATE RESULT CLIENT MILLSTREAM JOB

Messages go into a stream of Redis, while MILLSTREAM runs JOB, a service that loads them. CLIENT is the command of the
database's own client, as JSON; it asks for the largest id all the time. RESULT gets milliseconds: the median, the 99th
percentile and the most.
"""

import json
import signal
import socket
import subprocess
import sys
import threading
import time

LONGEST = 30  # seconds that may pass without a new row
QUESTION = "SELECT COALESCE(MAX(id), 0) FROM posts;\n"


class Rows:
    """The largest id in the table, by a client that stays connected."""

    def __init__(self, client: list[str]) -> None:
        """Starts the client."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.client = subprocess.Popen([*client, "--unbuffered"], text=True, bufsize=1, **pipes)

    def largest(self) -> int:
        """Asks for the id; 0 if there is no row."""
        self.client.stdin.write(QUESTION)
        self.client.stdin.flush()
        return int(self.client.stdout.readline())

    def close(self) -> None:
        """Ends the client."""
        self.client.stdin.close()
        self.client.wait()


def message(stream: str, number: int) -> bytes:
    """The command that adds a message."""
    words = [word.encode() for word in ("XADD", stream, "*", "body", json.dumps({"id": number}))]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def send(port: int, stream: str, count: int, rate: int, sent: list[float]) -> None:
    """Sends the messages 1 to `count`, and notes when each was sent."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=lambda: [None for _ in iter(lambda: link.recv(1 << 16), b"")], daemon=True).start()
        start = time.monotonic()
        for number in range(1, count + 1):
            time.sleep(max(0.0, start + number / rate - time.monotonic()))
            sent.append(time.monotonic())
            link.sendall(message(stream, number))
        link.shutdown(socket.SHUT_WR)


def measured(rows: Rows, sent: list[float], count: int) -> list[float]:
    """The seconds of each message, in the order of the messages."""
    took, last = [], time.monotonic()
    while len(took) < count:
        largest, now = rows.largest(), time.monotonic()
        if largest > len(took):
            took += [now - sent[number] for number in range(len(took), largest)]
            last = now
        if now > last + LONGEST:
            raise SystemExit(f"{len(took)} of {count} rows arrived")
        time.sleep(0.001)
    return took


def main() -> None:
    """Runs the service, sends messages and writes how long they took."""
    port, stream, count, rate, result, client, millstream, job = sys.argv[1:]
    service = subprocess.Popen([millstream, "run", "--quiet", job])
    try:
        # The first epochs of a service set up its connections.
        time.sleep(1)
        sent: list[float] = []
        rows = Rows(json.loads(client))
        sender = threading.Thread(target=send, args=(int(port), stream, int(count), int(rate), sent))
        sender.start()
        took = sorted(measured(rows, sent, int(count)))
        sender.join()
        rows.close()
    finally:
        service.send_signal(signal.SIGTERM)
        status = service.wait()
    if status != 0:
        raise SystemExit(f"the service ended with {status}")
    found = {"median": took[len(took) // 2], "p99": took[len(took) * 99 // 100], "most": took[-1]}
    with open(result, "w", encoding="utf-8") as file:
        json.dump({name: 1_000 * seconds for name, seconds in found.items()}, file)
    print(len(took))


if __name__ == "__main__":
    main()
