import { Graph, layout } from "@dagrejs/dagre";
import type { Shape } from "./model";

export interface Size {
  width: number;
  height: number;
}

export interface Placed {
  positions: Map<string, { x: number; y: number }>;
  width: number;
  height: number;
}

export type Direction = "LR" | "TB";

/** Where the nodes stand. The same shape has the same layout, whatever its numbers are. */
export function place(shape: Shape, size: Size, direction: Direction): Placed {
  const graph = new Graph();
  graph.setGraph({ rankdir: direction, nodesep: direction === "LR" ? 22 : 28, ranksep: direction === "LR" ? 104 : 56 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const id of shape.nodes) graph.setNode(id, { ...size });
  for (const { source, target } of shape.edges) graph.setEdge(source, target);
  layout(graph);
  const positions = new Map<string, { x: number; y: number }>();
  for (const id of shape.nodes) {
    const { x, y } = graph.node(id) as { x: number; y: number };
    positions.set(id, { x: x - size.width / 2, y: y - size.height / 2 });
  }
  const { width = 0, height = 0 } = graph.graph() as Partial<Size>;
  return { positions, width, height };
}

/** Says when two shapes have the same layout. */
export const shapeKey = (shape: Shape): string =>
  `${shape.nodes.join("\n")}\n\n${shape.edges.map(({ id }) => id).join("\n")}`;
