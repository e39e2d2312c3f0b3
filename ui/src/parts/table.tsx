import type { ReactNode } from "react";

export interface Column<T> {
  name: string;
  cell: (row: T) => ReactNode;
  /** Numbers stand at the right. */
  isNumber?: boolean;
  /** The cell that names the row. */
  isHead?: boolean;
  /** Left out on small screens. */
  isMinor?: boolean;
  /** May take several lines. */
  isText?: boolean;
}

const LONG = 25;

/** A table with a caption for screen readers, which scrolls sideways by itself if it is too wide. */
export function Table<T>({
  caption,
  columns,
  rows,
  rowKey,
  isBoxed,
}: {
  caption: string;
  columns: Column<T>[];
  rows: T[];
  rowKey: (row: T, index: number) => string;
  /** Scrolls by itself if it is long, so that what follows stays within reach. */
  isBoxed?: boolean;
}) {
  const classes = (column: Column<T>) =>
    [column.isNumber && "number", column.isMinor && "minor", column.isText && "text"].filter(Boolean).join(" ") ||
    undefined;
  return (
    <div
      className={isBoxed && rows.length > LONG ? "table-scroll is-long" : "table-scroll"}
      tabIndex={0}
      role="group"
      aria-label={caption}
    >
      <table>
        <caption className="visually-hidden">{caption}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.name} scope="col" className={classes(column)}>
                {column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={rowKey(row, index)}>
              {columns.map((column) =>
                column.isHead ? (
                  <th key={column.name} scope="row" className={classes(column)}>
                    {column.cell(row)}
                  </th>
                ) : (
                  <td key={column.name} className={classes(column)}>
                    {column.cell(row)}
                  </td>
                ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
