/** Small drawings. All are decoration: the text beside them says the same. */
const PATHS = {
  done: "M3.5 8.5l3 3 6-7",
  failed: "M4 4l8 8M12 4l-8 8",
  interrupted: "M5.5 3.5v9M10.5 3.5v9",
  killed: "M9 2L4 9h4l-1 5 5-7H8z",
  skipped: "M4 4l4 4-4 4M9 4l4 4-4 4",
  running: "M5 3.5v9l7.5-4.5z",
  waiting: "M8 3.5V8l3 2M8 1.8a6.2 6.2 0 100 12.4A6.2 6.2 0 008 1.8",
  sun: "M8 5.2a2.8 2.8 0 100 5.6 2.8 2.8 0 000-5.6M8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15M3 3l1.2 1.2M11.8 11.8L13 13",
  moon: "M13.5 9.6A5.8 5.8 0 016.4 2.5a5.8 5.8 0 107.1 7.1z",
  auto: "M8 2a6 6 0 100 12A6 6 0 008 2M8 2v12M8 4.5h4.8M8 8h6M8 11.5h4.8",
  job: "M3 3.5h4v3H3zM9 9.5h4v3H9zM7 5h2.5v4.5",
  sequence: "M2.5 4h3M2.5 8h7M2.5 12h11",
  test: "M6 2v4.5L2.8 13h10.4L10 6.5V2M5 2h6",
  other: "M4 2h5l3 3v9H4zM9 2v3h3",
  warning: "M8 2.5L14.5 13.5H1.5zM8 6.5v3.2M8 11.4v.6",
  error: "M8 1.8a6.2 6.2 0 100 12.4A6.2 6.2 0 008 1.8M8 4.8v4M8 10.8v.5",
  info: "M8 1.8a6.2 6.2 0 100 12.4A6.2 6.2 0 008 1.8M8 7.3v4M8 4.8v.5",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg className="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
