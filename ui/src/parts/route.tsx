/** The address: which page, and what its query says. Every state of a page that a link should keep is in it. */
import { useMemo, useSyncExternalStore, type AnchorHTMLAttributes, type MouseEvent } from "react";

const listeners = new Set<() => void>();
const notify = () => listeners.forEach((listener) => listener());
let isHeadingNext = false;
/** Says why what is shown must not be left, or nothing. */
let guard: (() => string | null) | null = null;

/** What is shown. The address is another one while the user is asked whether to go back. */
let shown = { path: location.pathname, search: location.search };
/** Where it is in the history of this tab: each entry has its number as its state. */
let place = placeOf(history.state) ?? 0;
history.replaceState({ place }, "");

function placeOf(state: unknown): number | null {
  const known = (state as { place?: unknown } | null)?.place;
  return typeof known === "number" ? known : null;
}

const isShown = ({ pathname, search }: { pathname: string; search: string }) =>
  pathname === shown.path && search === shown.search;

/** Whether `target` may be shown instead. What is shown already loses nothing. */
function mayLeave(target: { pathname: string; search: string }): boolean {
  const reason = isShown(target) ? null : guard?.();
  return !reason || window.confirm(reason);
}

function show(): void {
  shown = { path: location.pathname, search: location.search };
  notify();
}

window.addEventListener("popstate", ({ state }) => {
  const next = placeOf(state);
  // A link to a part of the page makes an entry without a number.
  if (next === null) history.replaceState({ place: (place += 1) }, "");
  else if (mayLeave(location)) place = next;
  else if (next !== place) return history.go(place - next);
  show();
});

const subscribe = (listener: () => void) => {
  listeners.add(listener);
  return () => listeners.delete(listener);
};

export const usePath = () => useSyncExternalStore(subscribe, () => shown.path);

export function useQuery(): URLSearchParams {
  const search = useSyncExternalStore(subscribe, () => shown.search);
  return useMemo(() => new URLSearchParams(search), [search]);
}

export function navigate(to: string, { replace = false } = {}): void {
  const target = new URL(to, location.href);
  const isOtherPage = target.pathname !== location.pathname;
  if (!mayLeave(target)) return;
  // As browsers do: a link to what is shown adds nothing to go back to.
  const isSame = replace || isShown(target);
  if (!isSame) place += 1;
  history[isSame ? "replaceState" : "pushState"]({ place }, "", to);
  isHeadingNext = isOtherPage;
  show();
  if (isOtherPage) window.scrollTo(0, 0);
}

/** Screen readers go on from the heading of a new page, once that is there. */
export function focusHeading(heading: HTMLElement | null): void {
  if (!isHeadingNext) return;
  isHeadingNext = false;
  heading?.focus({ preventScroll: true });
}

/** Changes parts of the query; null leaves a parameter out. */
export function setQuery(changes: Record<string, string | null>, { replace = true } = {}): void {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  navigate(`${location.pathname}${text && `?${text}`}`, { replace });
}

/** Asks before another page or view is shown, as long as `reason` gives one. */
export function setGuard(reason: (() => string | null) | null): void {
  guard = reason;
}

/** Goes to a page that the user has waited for, unless they do something else by now. */
export function navigateLater(): (to: string) => void {
  const { pathname } = location;
  return (to) => {
    if (location.pathname === pathname && !guard?.() && !document.querySelector("dialog[open]")) navigate(to);
  };
}

window.addEventListener("beforeunload", (event) => {
  if (guard?.()) event.preventDefault();
});

export function Link({ href, onClick, ...rest }: AnchorHTMLAttributes<HTMLAnchorElement> & { href: string }) {
  const follow = (event: MouseEvent<HTMLAnchorElement>) => {
    onClick?.(event);
    const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (event.defaultPrevented || !isPlain || rest.target) return;
    event.preventDefault();
    navigate(href);
  };
  return <a href={href} onClick={follow} {...rest} />;
}

const encoded = (path: string) => path.split("/").map(encodeURIComponent).join("/");

export const to = {
  run: (run: string) => `/runs/${encodeURIComponent(run)}`,
  rejects: (run: string) => `/runs/${encodeURIComponent(run)}/rejects`,
  job: (file: string) => `/jobs/${encoded(file)}`,
  newFile: (file: string) => `/jobs?${new URLSearchParams({ new: file })}`,
  runsOf: (file: string) => `/runs?${new URLSearchParams({ file })}`,
  history: (file: string) => `/history?${new URLSearchParams({ file })}`,
};
