/** The frame around the pages: signing in, navigation and shortcuts. */
import { useEffect, useState } from "react";
import { forget } from "./api/data";
import { signedIn, signOut, useMay } from "./api/session";
import { useStore } from "./api/store";
import { connection } from "./api/stream";
import { announcement, begin as beginSync } from "./api/sync";
import type { Session } from "./api/types";
import { Page } from "./pages";
import { SignIn } from "./pages/sign-in";
import { baseName } from "./parts/format";
import { ShortcutHelp, useShortcuts } from "./parts/keys";
import { Link, usePath } from "./parts/route";
import { ThemeButton } from "./parts/theme";
import { Toasts } from "./parts/toasts";

export function App() {
  const now = useStore(signedIn);
  if (now.state === "starting") return null;
  if (now.state === "out") return <SignIn message={now.message} />;
  return <Shell key={`${now.session.user} ${now.session.role}`} session={now.session} />;
}

function Shell({ session }: { session: Session }) {
  const [isHelpOpen, setHelpOpen] = useState(false);
  useShortcuts(() => setHelpOpen(true));
  useEffect(() => {
    const ending = new AbortController();
    beginSync(ending.signal);
    return () => {
      ending.abort();
      forget();
    };
  }, []);
  return (
    <>
      <a className="skip" href="#main">
        Skip to the content
      </a>
      <header className="top">
        <Link href="/" className="brand">
          <svg viewBox="0 0 24 24" aria-hidden="true">
            <path d="M3 9c3-3 6-3 9 0s6 3 9 0M3 15c3-3 6-3 9 0s6 3 9 0" />
          </svg>
          Millstream
        </Link>
        <Nav />
        <div className="top-end">
          <span className="where" title={`${session.folder} on ${session.host}, version ${session.version}`}>
            {baseName(session.folder) || session.folder} <span className="muted">on {session.host}</span>
          </span>
          <button
            type="button"
            className="quiet icon-button"
            aria-label="Keyboard shortcuts"
            title="Keyboard shortcuts (?)"
            onClick={() => setHelpOpen(true)}
          >
            ?
          </button>
          <ThemeButton />
          <button
            type="button"
            className="quiet"
            onClick={() => void signOut()}
            title={`Signed in as ${session.user} (${session.role})`}
          >
            Sign out
          </button>
        </div>
      </header>
      <ConnectionNote />
      <main id="main" tabIndex={-1}>
        <Page />
      </main>
      <Announcer />
      <Toasts />
      {isHelpOpen && <ShortcutHelp onClose={() => setHelpOpen(false)} />}
    </>
  );
}

function Nav() {
  const path = usePath();
  const mayEdit = useMay("edit");
  const places: [string, string, boolean][] = [
    ["/", "Overview", path === "/"],
    ["/runs", "Runs", path.startsWith("/runs") || path === "/history"],
    ["/jobs", "Jobs", path.startsWith("/jobs")],
    ["/machine", "Machine", path === "/machine"],
  ];
  if (mayEdit) places.push(["/audit", "Audit", path === "/audit"]);
  return (
    <nav aria-label="Main">
      {places.map(([href, name, isHere]) => (
        <Link key={href} href={href} aria-current={isHere ? (path === href ? "page" : "true") : undefined}>
          {name}
        </Link>
      ))}
    </nav>
  );
}

function ConnectionNote() {
  const isLost = useStore(connection, (state) => state === "lost");
  return (
    <div role="status">
      {isLost && <p className="connection">The connection to the server is lost. Trying again…</p>}
    </div>
  );
}

function Announcer() {
  return (
    <p className="visually-hidden" role="status" aria-live="polite">
      {useStore(announcement)}
    </p>
  );
}
