/** How numbers and times are written. Pure functions: `now` is always handed in. */

const GROUPS = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** 1234567 → `1,234,567` */
export const count = (n: number): string => GROUPS.format(n);

/** 1234567 → `1.23M`, in at most five characters, for where there is little room. */
export function compact(n: number): string {
  const size = Math.abs(n);
  if (size < 10_000) return count(Math.round(n));
  for (const [limit, unit] of [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ] as const) {
    if (size >= limit * 0.9995) return `${digits(n / limit)}${unit}`;
  }
  return count(n);
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** 1536 → `1.5 KiB` */
export function bytes(n: number): string {
  let unit = 0;
  let value = n;
  while (value >= 1023.5 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : digits(value)} ${UNITS[unit]}`;
}

/** Three significant digits, without needless zeros. */
function digits(value: number): string {
  const size = Math.abs(value);
  const text = value.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** 75.2 → `1 min 15 s` */
export function duration(seconds: number): string {
  if (seconds < 0.0995) return `${Math.round(Math.max(0, seconds) * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(seconds < 9.95 ? 2 : 1).replace(/\.?0+$/, "")} s`;
  const whole = Math.round(seconds);
  const [d, h, m, s] = [
    Math.floor(whole / 86400),
    Math.floor(whole / 3600) % 24,
    Math.floor(whole / 60) % 60,
    whole % 60,
  ];
  if (d > 0) return `${d} d ${h} h`;
  if (h > 0) return `${h} h ${String(m).padStart(2, "0")} min`;
  return `${m} min ${String(s).padStart(2, "0")} s`;
}

/** A duration in full seconds, for what counts up: it does not change its width all the time. */
export const wholeDuration = (seconds: number): string =>
  seconds < 60 ? `${Math.floor(Math.max(0, seconds))} s` : duration(Math.floor(seconds));

export const rate = (perSecond: number): string => `${compact(perSecond)} rows/s`;

export const percent = (share: number): string =>
  share > 0 && share < 0.01 ? "<1 %" : `${Math.min(100, Math.floor(share * 100 + 1e-9))} %`;

const two = (n: number) => String(n).padStart(2, "0");

/** `2026-01-31` in the time zone of the browser */
export const day = (ms: number): string => {
  const t = new Date(ms);
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())}`;
};

/** `02:00:01` */
export const clock = (ms: number, withSeconds = true): string => {
  const t = new Date(ms);
  return `${two(t.getHours())}:${two(t.getMinutes())}${withSeconds ? `:${two(t.getSeconds())}` : ""}`;
};

/** `2026-01-31 02:00:01` */
export const moment = (ms: number, withSeconds = true): string => `${day(ms)} ${clock(ms, withSeconds)}`;

/** The time of an ISO 8601 text as it is on the clock there: `2026-01-31 02:00` */
export const localMoment = (iso: string): string => iso.slice(0, 16).replace("T", " ");

/** `3 min ago`, `in 2 h` */
export function relative(ms: number, now: number): string {
  const seconds = Math.round((ms - now) / 1000);
  if (Math.abs(seconds) < 5) return "now";
  const text = roughly(Math.abs(seconds));
  return seconds < 0 ? `${text} ago` : `in ${text}`;
}

/** The same of what has happened already: the clock of the server may be a little ahead of that of the browser. */
export const ago = (ms: number, now: number): string => relative(ms > now && ms - now < 60_000 ? now : ms, now);

/** A duration in seconds as one says it: with minutes only if there are few hours. */
function roughly(seconds: number): string {
  const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(seconds / unit)) as [
    number,
    number,
    number,
  ];
  if (minutes === 0) return `${seconds} s`;
  if (hours === 0) return `${minutes} min`;
  if (days > 0) return `${days} d`;
  return hours < 10 && minutes % 60 > 0 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
}

/** `1 row`, `2 rows` */
export const plural = (n: number, one: string, many = `${one}s`): string => `${count(n)} ${n === 1 ? one : many}`;

/** `load.yaml` of `shop/load.yaml` */
export const baseName = (path: string): string => path.slice(path.lastIndexOf("/") + 1);
