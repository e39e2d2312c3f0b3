/**
 * Says when a tab has been hidden for a while, and when it is seen again. A hidden tab holds no connection: browsers
 * allow six to a server, and each stream of events takes one.
 */
export interface Page {
  isHidden(): boolean;
  /** Calls `changed` when it is hidden or seen; gives what ends this. */
  listen(changed: () => void): () => void;
  /** Calls `run` later; gives what calls it off. */
  later(run: () => void, milliseconds: number): () => void;
}

/** A tab that is left for less is not away: most are seen again soon. */
export const PATIENCE = 10_000;

const browser: Page = {
  isHidden: () => document.visibilityState === "hidden",
  listen: (changed) => {
    document.addEventListener("visibilitychange", changed);
    return () => document.removeEventListener("visibilitychange", changed);
  },
  later: (run, milliseconds) => {
    const timer = window.setTimeout(run, milliseconds);
    return () => window.clearTimeout(timer);
  },
};

/** Calls `away` with true once the page has been hidden for a while, and with false when it is seen after that. */
export function followHidden(away: (isAway: boolean) => void, page: Page = browser): () => void {
  let isAway = false;
  let callOff: (() => void) | null = null;
  const set = (now: boolean) => {
    if (isAway === now) return;
    isAway = now;
    away(now);
  };
  const changed = () => {
    if (!page.isHidden()) {
      callOff?.();
      callOff = null;
      set(false);
    } else if (!isAway) {
      callOff ??= page.later(() => {
        callOff = null;
        set(true);
      }, PATIENCE);
    }
  };
  const stop = page.listen(changed);
  changed();
  return () => {
    stop();
    callOff?.();
    callOff = null;
  };
}
