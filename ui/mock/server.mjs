// Stands in for the server while pages are developed: made-up data behind the same API and the same security policy.
// `node mock/server.mjs [PORT]`. The tokens `look`, `operate` and `edit` give these roles.
import { createServer } from "node:http";
import { existsSync, readFileSync, statSync } from "node:fs";
import { dirname, extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { answer, clients, emit, RANK, session } from "./answers.mjs";
import { ok, problem } from "./detail.mjs";
import { liveOf, sequence, tick } from "./live.mjs";
import { live } from "./runs.mjs";

const dist = join(dirname(fileURLToPath(import.meta.url)), "../dist");
const port = Number(process.argv[2] ?? 8321);
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; " +
  "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";
const TYPES = {
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
  ".html": "text/html; charset=utf-8",
  ".txt": "text/plain",
};

setInterval(() => {
  tick();
  emit("runs", { runs: Object.values(live) });
  for (const client of clients) {
    const run = Object.values(live).find((its) => its.run === client.run);
    if (run)
      emit(
        "live",
        {
          run: run.run,
          live: run.kind === "job" ? liveOf(run) : null,
          steps: run.kind === "sequence" ? sequence(run) : null,
        },
        [client],
      );
  }
}, 1000);

function file(url, response) {
  const path = join(dist, url.pathname);
  const isFile = url.pathname.startsWith("/assets/") || url.pathname === "/licences.txt";
  if (isFile && !existsSync(path)) return response.writeHead(404).end();
  const name = isFile && statSync(path).isFile() ? path : join(dist, "index.html");
  response.writeHead(200, {
    "Content-Type": TYPES[extname(name)] ?? "application/octet-stream",
    "Content-Encoding": "gzip",
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
  });
  response.end(gzipSync(readFileSync(name)));
}

createServer(async (request, response) => {
  const url = new URL(request.url, "http://localhost");
  if (!url.pathname.startsWith("/api/v1")) return file(url, response);
  let text = "";
  for await (const chunk of request) text += chunk;
  const body = text ? JSON.parse(text) : {};
  const send = ({ status, body }) =>
    response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(body));
  const path = url.pathname.slice("/api/v1".length);
  if (path === "/session" && request.method === "POST") {
    const role = body.token ?? (body.password === body.user ? body.user : "");
    return send(
      role in RANK ? ok({ ...session(role), token: role }) : problem(401, "refused", "the token is not known"),
    );
  }
  const role = request.headers.authorization?.replace("Bearer ", "") ?? "";
  if (!(role in RANK)) return send(problem(401, "refused", "sign in first"));
  if (path === "/session") return send(ok(session(role)));
  if (path === "/events") {
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    const client = { response, run: url.searchParams.get("run") };
    clients.add(client);
    emit("hello", {}, [client]);
    request.on("close", () => clients.delete(client));
    return;
  }
  send(answer(request.method, path, url.searchParams, body, role));
}).listen(port, "127.0.0.1", () => console.log(`http://127.0.0.1:${port}/#token=edit`));
tick();
