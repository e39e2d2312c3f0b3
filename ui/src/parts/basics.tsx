/** The small pieces that all pages are made of. */
import { useEffect, useRef, useState, type ReactNode } from "react";
import { errorJson } from "../api/client";
import type { ErrorJson } from "../api/types";
import { Icon } from "./icons";
import { percent } from "./format";
import { focusHeading } from "./route";

/** The head of a page: its heading, what belongs to it, and what can be done. */
export function PageHead({
  title,
  over,
  children,
  tools,
}: {
  title: ReactNode;
  /** What stands above the heading: where the page belongs. */
  over?: ReactNode;
  children?: ReactNode;
  tools?: ReactNode;
}) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => focusHeading(heading.current), []);
  return (
    <div className="page-head">
      <div className="page-head-text">
        {over && <div className="over">{over}</div>}
        <h1 tabIndex={-1} ref={heading}>
          {title}
        </h1>
        {children}
      </div>
      {tools && <div className="tools">{tools}</div>}
    </div>
  );
}

export function useTitle(title: string): void {
  useEffect(() => {
    document.title = `${title} – Millstream`;
  }, [title]);
}

/** A part of a page. `id` makes it the target of links. */
export function Section({
  title,
  id,
  tools,
  children,
}: {
  title: string;
  id?: string;
  tools?: ReactNode;
  children: ReactNode;
}) {
  return (
    <section className="section" aria-label={title} id={id}>
      <div className="section-head">
        <h2>{title}</h2>
        {tools}
      </div>
      {children}
    </section>
  );
}

/** A sentence in which `names` stand in backticks. */
export function Text({ children }: { children: string }) {
  // One backtick alone is text.
  return children.split(/`([^`]*)`/).map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part));
}

/** What is only there when it is opened: it would cost time as often as it changes. */
export function Folded({ summary, children }: { summary: string; children: ReactNode }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{summary}</summary>
      {isOpen && children}
    </details>
  );
}

/** What to say where there is nothing. */
export function Empty({ children }: { children: ReactNode }) {
  return <p className="empty">{children}</p>;
}

/** An error as the terminal shows it: what, where, text, cause, and what to do. One that `isOld` is not announced. */
export function ErrorNote({ error, isOld = false }: { error: ErrorJson; isOld?: boolean }) {
  const place = [
    error.uri,
    error.member && `member ${error.member}`,
    error.line != null && `line ${error.line}`,
    error.byte != null && `byte ${error.byte}`,
    error.column && `column ${error.column}`,
  ].filter(Boolean);
  return (
    <div className="note note-error" role={isOld ? undefined : "alert"}>
      <Icon name="error" />
      <div>
        <p>
          <span className="visually-hidden">Error: </span>
          <Text>{error.what}</Text>
        </p>
        {place.length > 0 && <p className="muted">at {place.join(", ")}</p>}
        {error.step && <p className="muted">step {error.step}</p>}
        {error.text && (
          <p className="muted">
            text <code>{error.text}</code>
          </p>
        )}
        {error.cause && <p className="muted">cause <Text>{error.cause}</Text></p>}
        {error.hint && <p>
            hint: <Text>{error.hint}</Text>
          </p>}
      </div>
    </div>
  );
}

/** Shows what is loaded, or how that stands: an error only if there is nothing to show. */
export function Ready<T>({
  of,
  children,
}: {
  of: { data: T | undefined; error: unknown; reload: () => void };
  children: (data: T) => ReactNode;
}) {
  if (of.data !== undefined) return children(of.data);
  if (of.error) {
    return (
      <div className="stack">
        <ErrorNote error={errorJson(of.error)} />
        <div>
          <button type="button" onClick={of.reload}>
            Try again
          </button>
        </div>
      </div>
    );
  }
  return (
    <p className="loading" role="status">
      Loading…
    </p>
  );
}

/** How far something is; without a share, that it goes on. */
export function Progress({ share, label }: { share: number | null; label: string }) {
  const value = share === null ? undefined : Math.round(share * 1000) / 10;
  return (
    <div
      className={share === null ? "progress is-open" : "progress"}
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={value}
      aria-valuetext={share === null ? "running" : percent(share)}
    >
      <div style={{ transform: share === null ? undefined : `scaleX(${share})` }} />
    </div>
  );
}

/** A value with its name, in a `dl`. */
export function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div className="fact">
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** How much of something is used. */
export function Meter({ share, label, isLimit }: { share: number; label: string; isLimit?: boolean }) {
  const level = share > 0.9 && !isLimit ? "is-full" : "";
  return (
    <div
      className={`meter ${level}`}
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.min(100, Math.round(share * 100))}
    >
      <div style={{ transform: `scaleX(${Math.min(1, Math.max(0, share))})` }} />
    </div>
  );
}
