export interface Token {
  kind: "key" | "comment" | "string" | "variable" | null;
  text: string;
}

const PARTS = new RegExp(
  [
    String.raw`(?<comment>(?:^|(?<=\s))#.*$)`,
    String.raw`(?<variable>\$\{[^}]*\})`,
    String.raw`(?<string>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*')`,
    String.raw`(?<key>[\w.*-]+(?=:(?:\s|$)))`,
  ].join("|"),
  "g",
);

/** Colours a line of YAML: by the line alone, so a text over several lines may be taken for keys. */
export function tokens(line: string): Token[] {
  const found: Token[] = [];
  let end = 0;
  for (const match of line.matchAll(PARTS)) {
    if (match.index > end) found.push({ kind: null, text: line.slice(end, match.index) });
    const kind = Object.entries(match.groups!).find(([, text]) => text !== undefined)![0] as Token["kind"];
    found.push({ kind, text: match[0] });
    end = match.index + match[0].length;
  }
  if (end < line.length || found.length === 0) found.push({ kind: null, text: line.slice(end) });
  return found;
}
