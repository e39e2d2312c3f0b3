/** The address: which page, and what its query says. Every state of a page that a link should keep is in it. */
import { useMemo, useSyncExternalStore, type AnchorHTMLAttributes, type MouseEvent } from "react";

const listeners = new Set<() => void>();
const notify = () => listeners.forEach((listener) => listener());
let isHeadingNext = false;
/** Says why the page must not be left, or nothing. */
let guard: (() => string | null) | null = null;

window.addEventListener("popstate", notify);

const subscribe = (listener: () => void) => {
  listeners.add(listener);
  return () => listeners.delete(listener);
};

export const usePath = () => useSyncExternalStore(subscribe, () => location.pathname);

export function useQuery(): URLSearchParams {
  const search = useSyncExternalStore(subscribe, () => location.search);
  return useMemo(() => new URLSearchParams(search), [search]);
}

export function navigate(to: string, { replace = false } = {}): void {
  const target = new URL(to, location.href);
  const isOtherPage = target.pathname !== location.pathname;
  if (isOtherPage) {
    const reason = guard?.();
    if (reason && !window.confirm(reason)) return;
  }
  history[replace ? "replaceState" : "pushState"](null, "", to);
  isHeadingNext = isOtherPage;
  notify();
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

/** Asks before the page is left, as long as `reason` gives one. */
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
  runsOf: (file: string) => `/runs?${new URLSearchParams({ file })}`,
  history: (file: string) => `/history?${new URLSearchParams({ file })}`,
};
