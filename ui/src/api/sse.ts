/** An event of a stream of server-sent events. */
export interface SseEvent {
  event: string;
  data: string;
}

/**
 * Splits a stream of server-sent events. `push` takes text as it arrives, cut anywhere, and gives the events that are
 * complete. Comments, `id` and `retry` are left out.
 */
export class SseParser {
  private rest = "";
  private event = "";
  private data: string[] = [];

  push(text: string): SseEvent[] {
    const lines = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop() ?? "";
    const events: SseEvent[] = [];
    for (const line of lines) {
      if (line === "") {
        if (this.data.length > 0) events.push({ event: this.event || "message", data: this.data.join("\n") });
        this.event = "";
        this.data = [];
        continue;
      }
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") this.event = value;
      if (field === "data") this.data.push(value);
    }
    return events;
  }
}
