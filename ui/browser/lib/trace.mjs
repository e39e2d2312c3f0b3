// What frames cost the main thread of a page, by a trace of Chromium. Processor time of the thread, so that what else
// the machine does counts little; beside it the time on the clock.
const CATEGORIES = ["toplevel", "benchmark", "devtools.timeline", "disabled-by-default-devtools.timeline", "v8"];
const FRAME = "ProxyMain::BeginMainFrame";
const BUDGET = 12;
/** Milliseconds between frames at 60 a second. */
const PERIOD = 1000 / 60;

/** What events are work of which kind; the others are what the event around them is. */
const KINDS = [
  ["gc", /^(MinorGC|MajorGC|V8\.GC|BlinkGC)/],
  ["style", /^UpdateLayoutTree$/],
  ["layout", /^Layout$/],
  ["paint", /^(PrePaint|Paint|Layerize|UpdateLayer|Commit)$/],
  ["script", /^(FunctionCall|EvaluateScript|EventDispatch|TimerFire|FireAnimationFrame|RunMicrotasks)$/],
  ["script", /^(v8\.|BlinkScheduler_PerformMicrotaskCheckpoint$)/],
];
const NAMES = ["script", "style", "layout", "paint", "gc", "other"];
const kindOf = (name) => KINDS.find(([, pattern]) => pattern.test(name))?.[0];

/** The tasks of the main thread while `during` goes on, each with its times and those of its parts in milliseconds. */
export async function record(page, during) {
  const devtools = await page.context().newCDPSession(page);
  const events = [];
  devtools.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  const over = new Promise((resolve) => devtools.once("Tracing.tracingComplete", resolve));
  await devtools.send("Tracing.start", {
    transferMode: "ReportEvents",
    traceConfig: { includedCategories: CATEGORIES },
  });
  await during();
  await devtools.send("Tracing.end");
  await over;
  await devtools.detach();
  return tasksOf(events);
}

function tasksOf(events) {
  // A page that is loaded anew may get another process: the one that does the most is that of the page.
  const mains = events.filter(({ name, args }) => name === "thread_name" && args.name === "CrRendererMain");
  const of = ({ pid, tid }) => events.filter((its) => its.ph === "X" && its.pid === pid && its.tid === tid);
  const on = mains.map(of).sort((a, b) => b.length - a.length)[0];
  on.sort((a, b) => a.ts - b.ts || b.dur - a.dur);
  const tasks = [];
  const around = [];
  for (const { name, ts, dur = 0, tdur = dur } of on) {
    while (around.length > 0 && ts >= around.at(-1).end) around.pop();
    const parent = around.at(-1);
    // Only events of a few microseconds have no processor time.
    const cpu = tdur / 1000;
    const kind = kindOf(name) ?? parent?.kind ?? "other";
    const task = parent?.task ?? { at: ts / 1000, cpu, wall: dur / 1000, parts: {}, isFrame: false };
    if (!parent) tasks.push(task);
    else task.parts[parent.kind] -= cpu;
    task.parts[kind] = (task.parts[kind] ?? 0) + cpu;
    if (name === FRAME) task.isFrame = true;
    around.push({ end: ts + dur, kind, task });
  }
  return tasks;
}

/**
 * A frame is all that the thread does from the beginning of one to that of the next. Where nothing is drawn for longer,
 * what begins within the time of a frame counts as one.
 */
function framesOf(tasks) {
  const frames = [];
  for (const { at, cpu, wall, parts, isFrame } of tasks) {
    let frame = frames.at(-1);
    if (!frame || isFrame || at - frame.at > PERIOD) frames.push((frame = { at, cpu: 0, wall: 0, parts: {} }));
    frame.cpu += cpu;
    frame.wall += wall;
    for (const kind of NAMES) frame.parts[kind] = (frame.parts[kind] ?? 0) + (parts[kind] ?? 0);
  }
  // Between updates the thread wakes up for next to nothing: not a frame.
  return frames.filter(({ cpu }) => cpu > 0.5);
}

const at = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0;
const ms = (n) => n.toFixed(1).padStart(5);

function spread(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const [median, p95, p99, max] = [0.5, 0.95, 0.99, 1].map((share) => ms(at(sorted, share)));
  return `median ${median}  p95 ${p95}  p99 ${p99}  max ${max}`;
}

/** Measures the frames while `during` goes on for so many seconds, and prints what they cost. */
export async function measureFrames(page, what, during) {
  const start = performance.now();
  const frames = framesOf(await record(page, during));
  const seconds = (performance.now() - start) / 1000;
  const over = frames.filter(({ cpu }) => cpu > BUDGET).length;
  const total = frames.reduce((sum, { cpu }) => sum + cpu, 0) / seconds;
  console.log(`${what}: ${frames.length} frames in ${seconds.toFixed(0)} s, ${over} over ${BUDGET} ms`);
  console.log(`  processor  ${spread(frames.map(({ cpu }) => cpu))}  (${total.toFixed(0)} ms a second)`);
  console.log(`  clock      ${spread(frames.map(({ wall }) => wall))}`);
  for (const kind of NAMES) console.log(`    ${kind.padEnd(8)} ${spread(frames.map(({ parts }) => parts[kind]))}`);
  for (const { cpu, parts } of [...frames].sort((a, b) => b.cpu - a.cpu).slice(0, 3)) {
    console.log(`    a frame of ${ms(cpu)}: ${NAMES.map((kind) => `${kind} ${parts[kind].toFixed(1)}`).join(", ")}`);
  }
}

/** The longest tasks until the graph is there. */
export async function measureLoad(page, url) {
  const start = performance.now();
  let shown = 0;
  const tasks = await record(page, async () => {
    await page.goto("about:blank");
    await page.goto(url);
    await page.locator(".react-flow__node").first().waitFor();
    shown = performance.now() - start;
    await page.waitForTimeout(1000);
  });
  const longest = [...tasks].sort((a, b) => b.cpu - a.cpu).slice(0, 4);
  const text = longest.map(({ cpu, wall }) => `${cpu.toFixed(0)} (${wall.toFixed(0)} on the clock)`).join(", ");
  console.log(`the graph appears after ${shown.toFixed(0)} ms, longest tasks ${text} ms`);
}

/** The live graph: at first, while it is pointed at, moved and enlarged, and as a whole, for so many seconds each. */
export async function measureGraph(page, seconds) {
  const box = await page.locator(".react-flow").boundingBox();
  const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
  const { mouse, keyboard } = page;
  /** Moves by small steps, each of which is drawn. */
  const forSeconds = async (most, step) => {
    const end = performance.now() + most * 1000;
    for (let n = 0; performance.now() < end; n += 1) {
      await step(n);
      await page.waitForTimeout(12);
    }
  };
  const wave = (n, size, length) => size * Math.sin((2 * Math.PI * n) / length);
  const enlarge = async (by) => {
    await keyboard.down("Control");
    await mouse.wheel(0, by);
    await keyboard.up("Control");
  };
  const hover = (n) => mouse.move(x + wave(n, box.width * 0.45, 170), y + wave(n, box.height * 0.45, 410));
  const pan = async (n) => {
    if (n === 0) await mouse.down();
    await mouse.move(x + wave(n, 60, 90), y + wave(n, box.height * 0.45, 200));
  };
  const rest = () => page.waitForTimeout(seconds * 1000);
  await measureFrames(page, "at first", rest);
  await measureFrames(page, "pointed at", () => forSeconds(seconds, hover));
  await mouse.move(x, y);
  await measureFrames(page, "moved", () => forSeconds(seconds, pan));
  await mouse.up();
  await measureFrames(page, "enlarged and made smaller", () => forSeconds(seconds, (n) => enlarge(wave(n, 30, 60))));
  await mouse.move(0, 0);
  const inView = async () => `${await page.locator(".react-flow__node").count()} nodes in view`;
  await page.getByRole("button", { name: "Fit View" }).click();
  await page.waitForTimeout(2000);
  await measureFrames(page, await inView(), rest);
  // As many as can be read: from afar, numbers change less often.
  const zoom = () => page.locator(".react-flow__viewport").evaluate((its) => new DOMMatrix(its.style.transform).a);
  while ((await zoom()) < 0.3) {
    await page.getByRole("button", { name: "Zoom In" }).click();
    await page.waitForTimeout(500);
  }
  await page.waitForTimeout(2000);
  await measureFrames(page, await inView(), rest);
}
