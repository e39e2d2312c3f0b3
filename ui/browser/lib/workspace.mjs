// A temporary folder with jobs, data and a state folder of its own, and a server for it.
import { execFile, spawn, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createConnection } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { until } from "./wait.mjs";

const PROGRAM = process.env.MILLSTREAM;

/** Those that are not removed yet. */
const living = new Set();

// If the tests are interrupted, or end by a fault of their own, nothing of them stays.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.once(signal, () => process.exit(1));
process.once("exit", () => living.forEach((workspace) => workspace.removeNow()));

export class Workspace {
  #server = null;
  #token = null;

  /** Makes the folder, and starts the server. `folder`: where, instead of a new temporary folder. */
  static async make(files, folder) {
    const workspace = new Workspace();
    if (folder) mkdirSync(folder);
    workspace.root = folder ?? mkdtempSync(join(tmpdir(), "millstream-pages-"));
    living.add(workspace);
    try {
      workspace.jobs = join(workspace.root, "jobs");
      for (const name of ["home", "tmp", "jobs"]) mkdirSync(join(workspace.root, name));
      workspace.env = {
        PATH: process.env.PATH,
        HOME: join(workspace.root, "home"),
        TMPDIR: join(workspace.root, "tmp"),
        MILLSTREAM_STATE: join(workspace.root, "state"),
        TZ: "UTC",
      };
      for (const [name, text] of Object.entries(files)) workspace.write(name, text);
      await workspace.start();
      return workspace;
    } catch (error) {
      await workspace.remove();
      throw error;
    }
  }

  write(name, text) {
    const path = join(this.jobs, name);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text);
  }

  read(name) {
    return readFileSync(join(this.jobs, name), "utf8");
  }

  delete(name) {
    rmSync(join(this.jobs, name));
  }

  /** Runs the program in the folder of the jobs, and gives what it prints. */
  run(...args) {
    return this.runWith("", ...args);
  }

  /** The same with an input. */
  runWith(input, ...args) {
    return new Promise((resolve) => {
      const options = { cwd: this.jobs, env: this.env, timeout: 120_000 };
      const child = execFile(PROGRAM, args, options, (error, stdout, stderr) =>
        resolve({ code: error ? (error.code ?? 1) : 0, stdout, stderr }),
      );
      // It may have ended without reading its input.
      child.stdin.on("error", () => {});
      child.stdin.end(input);
    });
  }

  /** Starts a worker for the run that listens at `address`, as on another machine. It is ended by its `kill`. */
  worker(address, secret) {
    const args = ["worker", "--join", address, "--secret", secret, "--cores", "1", "--memory", "256MiB"];
    const env = { ...this.env, MILLSTREAM_STATE: join(this.root, "state-of-worker") };
    return spawn(PROGRAM, args, { cwd: this.jobs, env, stdio: "ignore" });
  }

  async start(...options) {
    const args = ["serve", ".", "--listen", this.port ? String(this.port) : "0", "--json", ...options];
    const server = spawn(PROGRAM, args, { cwd: this.jobs, env: this.env, stdio: ["ignore", "pipe", "pipe"] });
    this.#server = server;
    let said = "";
    server.stderr.on("data", (data) => (said = (said + data).slice(-4000)));
    const first = new Promise((resolve, reject) => {
      createInterface({ input: server.stdout }).once("line", resolve);
      server.once("error", reject);
      server.once("exit", (code) => reject(new Error(`the server ended with ${code}: ${said}`)));
    });
    const { url } = JSON.parse(await first);
    this.url = url;
    this.port = Number(new URL(url).port);
  }

  /** Ends the server: with SIGKILL as a crash does. */
  async stop(signal = "SIGTERM") {
    const server = this.#server;
    this.#server = null;
    if (!server || server.exitCode !== null || server.signalCode !== null) return;
    const ended = new Promise((resolve) => server.once("exit", resolve));
    const timer = setTimeout(() => server.kill("SIGKILL"), 15_000);
    server.kill(signal);
    await ended;
    clearTimeout(timer);
  }

  /** Ends the server and what still runs, and removes the folder. */
  async remove() {
    if (this.env) {
      const { stdout } = await this.run(...RUNS);
      for (const run of runningOf(stdout)) await this.run("cancel", run);
    }
    await this.stop();
    rmSync(this.root, { recursive: true, force: true, maxRetries: 5 });
    living.delete(this);
  }

  /** The same at the end of the process, when nothing can be waited for. */
  removeNow() {
    const options = { cwd: this.jobs, env: this.env, encoding: "utf8", timeout: 30_000 };
    if (this.env) {
      const runs = runningOf(spawnSync(PROGRAM, RUNS, options).stdout ?? "");
      if (runs.length > 0) spawnSync(PROGRAM, ["cancel", ...runs], options);
    }
    this.#server?.kill("SIGKILL");
    rmSync(this.root, { recursive: true, force: true, maxRetries: 5 });
  }

  async link(role = "edit") {
    const { stdout, stderr } = await this.run("access", "link", "--role", role);
    const link = stdout.trim();
    if (!link.startsWith("http")) throw new Error(`no link: ${stdout}${stderr}`);
    return link;
  }

  /** Asks the server as a program does. */
  async api(path, { method = "GET", body } = {}) {
    this.#token ??= (await this.run("access", "add-token", "tests", "--role", "edit")).stdout.trim();
    const response = await fetch(`${this.url}/api/v1${path}`, {
      method,
      headers: { authorization: `Bearer ${this.#token}` },
      body: body && JSON.stringify(body),
    });
    const json = await response.json();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${JSON.stringify(json)}`);
    return json;
  }

  /** The last run of a file. */
  async last(file, outcome) {
    const { runs } = await this.api(`/runs?file=${encodeURIComponent(file)}&steps=true&limit=20`);
    return runs.find((run) => !outcome || run.outcome === outcome);
  }

  /** Starts a file by the server, and gives its run once that is known. */
  async begin(file, set = {}) {
    const { id } = await this.api("/start", { method: "POST", body: { file, set } });
    return until(`${file} to begin`, async () => (await this.api(`/actions/${id}`)).run);
  }

  async ended(run) {
    return until(`run ${run} to end`, async () => {
      const detail = await this.api(`/runs/${run}`);
      return detail.run.outcome !== "running" && detail.run;
    });
  }

  /** Whether something listens at the server's port. */
  isListening() {
    return new Promise((resolve) => {
      const socket = createConnection(this.port, "127.0.0.1");
      socket.once("connect", () => resolve(socket.destroy() && true));
      socket.once("error", () => resolve(false));
    });
  }
}

const RUNS = ["runs", "--json", "--most", "100"];

function runningOf(text) {
  try {
    return JSON.parse(text).runs.flatMap(({ run, outcome }) => (outcome === "running" ? [run] : []));
  } catch {
    return [];
  }
}
