import { useState, useSyncExternalStore } from "react";
import { createStore } from "../api/store";
import { Icon } from "./icons";

type Theme = "auto" | "light" | "dark";

const NEXT: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };
const ICON = { auto: "auto", light: "sun", dark: "moon" } as const;
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const changes = createStore(0);

export function ThemeButton() {
  const [theme, setTheme] = useState<Theme>(
    () => (document.documentElement.dataset.theme as Theme | undefined) ?? "auto",
  );
  const toggle = () => {
    const next = NEXT[theme];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      if (next === "auto") localStorage.removeItem("theme");
      else localStorage.setItem("theme", next);
    } catch {
      // Storage may be refused: the theme holds until the page is left.
    }
    setTheme(next);
    changes.update((n) => n + 1);
  };
  const label = `Theme: ${theme === "auto" ? "as the system" : theme}`;
  return (
    <button type="button" className="quiet icon-button" onClick={toggle} aria-label={label} title={label}>
      <Icon name={ICON[theme]} />
    </button>
  );
}

/** Whether the page is dark, for what is not drawn by CSS. */
export function useIsDark(): boolean {
  return useSyncExternalStore(
    (listener) => {
      const stop = changes.subscribe(listener);
      dark.addEventListener("change", listener);
      return () => {
        stop();
        dark.removeEventListener("change", listener);
      };
    },
    () => {
      const { theme } = document.documentElement.dataset;
      return theme ? theme === "dark" : dark.matches;
    },
  );
}
