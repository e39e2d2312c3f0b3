import { api, ApiError, errorJson, getToken, onRefused, setToken } from "./client";
import { createStore, useStore } from "./store";
import type { Role, Session } from "./types";

export type SignedIn =
  { state: "starting" } | { state: "out"; message: string | null } | { state: "in"; session: Session };

export const signedIn = createStore<SignedIn>({ state: "starting" });

type Credentials = { token: string } | { user: string; password: string };

export async function signIn(credentials: Credentials): Promise<void> {
  const session = await api.post<Session>("/api/v1/session", credentials);
  setToken(session.token ?? null);
  signedIn.set({ state: "in", session });
}

export async function signOut(): Promise<void> {
  await api.delete("/api/v1/session").catch(() => {});
  setToken(null);
  signedIn.set({ state: "out", message: null });
}

/** The token of a pasted link, or the text itself. */
export function tokenOf(text: string): string {
  return /#token=([^&\s]+)/.exec(text)?.[1] ?? text.trim();
}

export const NOT_VALID =
  "This link is not valid: each works once, within an hour. `millstream access link` prints another.";

/** Signs in with the token of the address, or goes on with the session of this tab. */
export async function begin(): Promise<void> {
  onRefused(() => {
    setToken(null);
    signedIn.set({ state: "out", message: "Your session has ended. Sign in again to continue where you were." });
  });
  const token = /^#token=(.+)$/.exec(location.hash)?.[1];
  // The token must not stay in the address: it would end up in bookmarks and in the history.
  if (token) history.replaceState(history.state, "", location.pathname + location.search);
  try {
    if (token) await signIn({ token: decodeURIComponent(token) });
    else if (getToken()) signedIn.set({ state: "in", session: await api.get<Session>("/api/v1/session") });
    else signedIn.set({ state: "out", message: null });
  } catch (error) {
    const isRefused = error instanceof ApiError && error.status === 401;
    if (isRefused) setToken(null);
    const over = token ? NOT_VALID : "Your session has ended.";
    signedIn.set({ state: "out", message: isRefused ? over : sentence(errorJson(error).what) });
  }
}

const sentence = (text: string) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;

const RANK: Record<Role, number> = { look: 0, operate: 1, edit: 2 };

export function useSession(): Session | null {
  const now = useStore(signedIn);
  return now.state === "in" ? now.session : null;
}

/** Whether the user's role includes `role`. */
export function useMay(role: Role): boolean {
  const session = useSession();
  return session !== null && RANK[session.role] >= RANK[role];
}
