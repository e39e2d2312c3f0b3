"""A web server that gives each client address so many bytes a second, whatever its connections.

    python throttled.py FOLDER ADDRESS RATE

It serves the files of FOLDER, prints its port, and ends when its standard input does.
"""

import asyncio
import sys
from pathlib import Path

PIECE = 16 << 10


class Share:
    """What an address may get: requests wait for their turn."""

    def __init__(self, rate: float) -> None:
        """Nothing is taken yet."""
        self.rate, self.free_at = rate, 0.0

    async def take(self, count: int) -> None:
        """Returns when so many bytes may be sent."""
        now = asyncio.get_running_loop().time()
        self.free_at = max(self.free_at, now - 0.05) + count / self.rate
        if self.free_at > now:
            await asyncio.sleep(self.free_at - now)


class Server:
    """Serves files to addresses."""

    def __init__(self, folder: Path, rate: float) -> None:
        """Reads all files, which are few megabytes each."""
        self.files = {f"/{path.name}": path for path in folder.iterdir()}
        self.rate, self.shares = rate, {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of a connection."""
        address = writer.get_extra_info("peername")[0]
        share = self.shares.setdefault(address, Share(self.rate))
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = request.split(b" ", 2)
                await self.answer(method, path.decode(), share, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, method: bytes, path: str, share: Share, writer: asyncio.StreamWriter) -> None:
        """Answers one request."""
        file = self.files.get(path)
        body = file.read_bytes() if file else b""
        status = b"200 OK" if file else b"404 Not Found"
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\nETag: \"%d\"\r\n\r\n" % (status, len(body), len(body)))
        if method == b"GET":
            for start in range(0, len(body), PIECE):
                piece = body[start : start + PIECE]
                await share.take(len(piece))
                writer.write(piece)
                await writer.drain()
        await writer.drain()


async def main() -> None:
    """Serves until the standard input ends."""
    folder, address, rate = sys.argv[1:]
    server = await asyncio.start_server(Server(Path(folder), float(rate)).serve, address, 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
