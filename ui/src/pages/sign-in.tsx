import { useEffect, useRef, useState, type FormEvent } from "react";
import { errorJson, ApiError } from "../api/client";
import { NOT_VALID, signIn, tokenOf } from "../api/session";
import { Text, useTitle } from "../parts/basics";
import { ThemeButton } from "../parts/theme";

/** Asks for a link or a password. The address stays as it is, so that the place is kept. */
export function SignIn({ message }: { message: string | null }) {
  useTitle("Sign in");
  const [way, setWay] = useState<"link" | "password">("link");
  const [error, setError] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const first = useRef<HTMLInputElement>(null);
  useEffect(() => first.current?.focus(), [way]);

  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const text = (name: string) => String(form.get(name) ?? "");
    setBusy(true);
    setError(null);
    try {
      await signIn(
        way === "link" ? { token: tokenOf(text("token")) } : { user: text("user"), password: text("password") },
      );
    } catch (failure) {
      const isRefused = failure instanceof ApiError && failure.status === 401;
      const wrong = way === "link" ? NOT_VALID : "User and password do not match.";
      setError(isRefused ? wrong : errorJson(failure).what);
      setBusy(false);
      first.current?.focus();
    }
  };

  return (
    <main className="sign-in">
      <div className="sign-in-box">
        <div className="sign-in-head">
          <h1>Sign in to Millstream</h1>
          <ThemeButton />
        </div>
        {message && (
          <div className="note note-info" role="status">
            <p>
              <Text>{message}</Text>
            </p>
          </div>
        )}
        <form onSubmit={(event) => void submit(event)}>
          {way === "link" ? (
            <label>
              Link printed by the server, or its token
              <input ref={first} name="token" type="password" autoComplete="off" required spellCheck={false} />
            </label>
          ) : (
            <>
              <label>
                User
                <input
                  ref={first}
                  name="user"
                  autoComplete="username"
                  required
                  spellCheck={false}
                  autoCapitalize="none"
                />
              </label>
              <label>
                Password
                <input name="password" type="password" autoComplete="current-password" required />
              </label>
            </>
          )}
          {error && (
            <p className="form-error" role="alert">
              <Text>{error}</Text>
            </p>
          )}
          <button type="submit" className="primary" disabled={isBusy}>
            Sign in
          </button>
          <button type="button" className="quiet" onClick={() => setWay(way === "link" ? "password" : "link")}>
            {way === "link" ? "Use a user name and password" : "Use a link"}
          </button>
        </form>
      </div>
    </main>
  );
}
