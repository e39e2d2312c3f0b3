import type { ErrorJson, Problem } from "./types";

/** What the server has refused, or that it could not be reached (`status` 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly error: ErrorJson,
  ) {
    super(error.what);
  }
}

const KEY = "millstream.token";
let token: string | null = stored();
let whenRefused: () => void = () => {};

/** Storage may be refused: then the session ends with the page. */
function stored(): string | null {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

export const getToken = () => token;

export function setToken(value: string | null): void {
  token = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // As above.
  }
}

/** Calls `refused` when the server does not accept the token any more. */
export function onRefused(refused: () => void): void {
  whenRefused = refused;
}

export function authorization(): Record<string, string> {
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** Says that a request with `used` was refused. A token that has been replaced meanwhile does not count. */
export function refused(used: string | null): void {
  if (used === token) whenRefused();
}

type Query = Record<string, string | number | boolean | null | undefined>;

/** The address of an endpoint; parameters without a value are left out. */
export function endpoint(path: string, query: Query = {}): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") parameters.set(name, String(value));
  }
  const text = parameters.toString();
  return `/api/v1${path}${text && `?${text}`}`;
}

const plain = (kind: string, what: string, hint: string | null = null): ErrorJson => {
  return { kind, what, cause: null, hint, text: null };
};

export async function request<T>(method: string, url: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const used = token;
  const headers = { Accept: "application/json", ...authorization() } as Record<string, string>;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  let text: string;
  try {
    response = await fetch(url, { method, headers, body: JSON.stringify(body), signal, cache: "no-store" });
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, plain("io", "the server cannot be reached", "check that `millstream serve` is running"));
  }
  let json: unknown = null;
  try {
    json = text ? JSON.parse(text) : null;
  } catch {
    if (response.ok) throw new ApiError(response.status, plain("internal", "the server's answer is not JSON"));
  }
  if (response.ok) return json as T;
  if (response.status === 401 && url !== "/api/v1/session") refused(used);
  const problem = (json as Problem | null)?.error;
  throw new ApiError(response.status, problem ?? plain("io", `the server answered with status ${response.status}`));
}

export const api = {
  get: <T>(url: string, signal?: AbortSignal) => request<T>("GET", url, undefined, signal),
  post: <T>(url: string, body: unknown = {}) => request<T>("POST", url, body),
  put: <T>(url: string, body: unknown) => request<T>("PUT", url, body),
  delete: <T>(url: string) => request<T>("DELETE", url),
};

/** Any error in the form in which the server gives them. */
export function errorJson(error: unknown): ErrorJson {
  if (error instanceof ApiError) return error.error;
  return plain("internal", error instanceof Error ? error.message : String(error));
}
