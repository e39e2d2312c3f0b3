/** Draws a graph whose nodes another component fills. It knows nothing of jobs: `Node` decides what a node shows. */
import { createContext, memo, useContext, useEffect, useMemo, useRef, useState, type ComponentType } from "react";
import {
  Controls,
  EdgeLabelRenderer,
  getBezierPath,
  Position,
  ReactFlow,
  useReactFlow,
  useStore,
  type Node,
  type NodeProps,
} from "@xyflow/react";
import { place, shapeKey, type Direction, type Placed, type Size } from "./layout";
import type { GraphEdge, Shape } from "./model";
import { setText, useWritten, Values, ValuesContext } from "./values";

export interface EdgeValue {
  label: string;
  /** Rows go over it now. */
  isFlowing: boolean;
}

export interface GraphProps {
  shape: Shape;
  size: Size;
  /** What the nodes show, by their ids. */
  nodeValues: Map<string, unknown>;
  edgeValues?: Map<string, EdgeValue>;
  /** Shows a node; it gets its value with `useValue(id)` or `useWritten(id)`. */
  Node: ComponentType<{ id: string }>;
  /** The name of a node for screen readers. */
  nodeLabel: (id: string) => string;
  /** The name of the graph. */
  label: string;
  onOpen?: (id: string) => void;
}

const Content = createContext<ComponentType<{ id: string }>>(() => null);

const Box = memo(function Box({ id }: NodeProps) {
  const Node = useContext(Content);
  return <Node id={id} />;
});

/** An edge as it is drawn; its label stands at `x` and `y`. */
interface Line extends GraphEdge {
  path: string;
  x: number;
  y: number;
  /** It is no further than this from there. */
  reach: number;
}

function lineOf(edge: GraphEdge, { positions }: Placed, { width, height }: Size, direction: Direction): Line {
  const [from, into] = [positions.get(edge.source)!, positions.get(edge.target)!];
  const isRow = direction === "LR";
  const [path, x, y] = getBezierPath({
    sourceX: from.x + (isRow ? width : width / 2),
    sourceY: from.y + (isRow ? height / 2 : height),
    sourcePosition: isRow ? Position.Right : Position.Bottom,
    targetX: into.x + (isRow ? 0 : width / 2),
    targetY: into.y + (isRow ? height / 2 : 0),
    targetPosition: isRow ? Position.Left : Position.Top,
  });
  const reach = width + Math.max(Math.abs(from.x - into.x), Math.abs(from.y - into.y)) / 2;
  return { ...edge, path, x, y, reach };
}

/** All edges in one drawing: it moves as a whole, and only those that come into view or leave it render again. */
function Lines({ lines, hasLabels }: { lines: Line[]; hasLabels: boolean }) {
  return (
    <EdgeLabelRenderer>
      <svg className="edges">
        {lines.map((line) => (
          <Path key={line.id} line={line} />
        ))}
      </svg>
      {hasLabels && lines.map((line) => <Label key={line.id} line={line} />)}
    </EdgeLabelRenderer>
  );
}

/** Whether the middle of an edge is so near to what is in view that a part of the edge may be. */
function useIsSeen({ x, y, reach }: Line): boolean {
  return useStore(({ transform: [left, top, zoom], width, height }) => {
    const [atX, atY, far] = [left + x * zoom, top + y * zoom, reach * zoom];
    return atX > -far && atX < width + far && atY > -far && atY < height + far;
  });
}

const Path = memo(function Path({ line }: { line: Line }) {
  return useIsSeen(line) && <Curve {...line} />;
});

/** `source:orders` is shown as `orders`. */
const nodeName = (id: string): string => id.slice(id.indexOf(":") + 1);

function Curve({ id, source, target, path }: Line) {
  const element = useRef<SVGPathElement>(null);
  useWritten<EdgeValue>(id, (value) => element.current!.classList.toggle("is-flowing", value?.isFlowing ?? false));
  const label = `Edge from ${nodeName(source)} to ${nodeName(target)}`;
  return <path className="edge" d={path} role="img" aria-label={label} ref={element} />;
}

/** The text at an edge where it can be read: as HTML, since SVG has a new layout at each zoom. */
const Label = memo(function Label({ line }: { line: Line }) {
  const isFar = useStore(({ transform }) => transform[2] < FAR);
  return useIsSeen(line) && !isFar && <LabelText {...line} />;
});

function LabelText({ id, x, y }: Line) {
  const element = useRef<HTMLDivElement>(null);
  useWritten<EdgeValue>(id, (value) => setText(element.current!, value?.label ?? ""));
  return <div className="edge-label" style={{ left: `${x}px`, top: `${y}px` }} ref={element} aria-hidden="true" />;
}

const NODE_TYPES = { box: Box };
const SMALL = 640;
const TALLEST = 560;
/** Smaller nodes could not be read: of a large graph, a part is shown at first. */
const LEAST_ZOOM = 0.5;
/** More nodes than this are only drawn where they are in view. */
const LARGE = 60;
/** Numbers that are too small to be read are not painted, and bars change less often. */
const FAR = 0.3;
const FAR_PAUSE = 5_000;
/** Below the graph are the controls. */
const FIT = { padding: { x: "20px", top: "20px", bottom: "52px" }, maxZoom: 1 } as const;
const BESIDE = 40;
const ABOVE_AND_BELOW = 72;

/** How large the graph is at first: as a whole if that can be read, else as wide as the page. */
function firstZoom({ width, height }: Placed, room: number): number {
  const wide = Math.min(1, (room - BESIDE) / Math.max(1, width));
  const whole = Math.min(wide, (TALLEST - ABOVE_AND_BELOW) / Math.max(1, height));
  return whole >= LEAST_ZOOM ? whole : Math.max(LEAST_ZOOM, wide);
}

export default function Graph({
  shape,
  size,
  nodeValues,
  edgeValues,
  Node,
  nodeLabel,
  label,
  onOpen,
}: GraphProps) {
  const frame = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [values] = useState(() => new Values());
  // Before the first paint of the nodes, so that they do not appear empty.
  if (width === 0) values.replace(new Map<string, unknown>([...nodeValues, ...(edgeValues ?? [])]));
  const [isFar, setFar] = useState(false);
  const replaced = useRef(0);
  useEffect(() => {
    const show = () => {
      replaced.current = performance.now();
      values.replace(new Map<string, unknown>([...nodeValues, ...(edgeValues ?? [])]));
    };
    const pause = isFar ? replaced.current + FAR_PAUSE - performance.now() : 0;
    if (pause <= 0) return show();
    const timer = window.setTimeout(show, pause);
    return () => window.clearTimeout(timer);
  }, [nodeValues, edgeValues, values, isFar]);
  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const direction: Direction = width > 0 && width < SMALL ? "TB" : "LR";
  const key = shapeKey(shape);
  const placed = useMemo(() => place(shape, size, direction), [key, size.width, size.height, direction]);
  const nodes = useMemo<Node[]>(
    () =>
      shape.nodes.map((id) => ({
        id,
        type: "box",
        position: placed.positions.get(id) ?? { x: 0, y: 0 },
        data: {},
        width: size.width,
        height: size.height,
        ariaLabel: nodeLabel(id),
        // Known sizes spare a measuring pass over all nodes.
        measured: size,
      })),
    [placed],
  );
  const lines = useMemo(() => shape.edges.map((edge) => lineOf(edge, placed, size, direction)), [placed]);
  const zoom = firstZoom(placed, width);
  const height = Math.round(Math.min(TALLEST, placed.height * zoom + ABOVE_AND_BELOW));
  const open = useRef(onOpen);
  open.current = onOpen;
  return (
    <div
      className={isFar ? "graph is-far" : "graph"}
      ref={frame}
      style={{ height: `${height}px` }}
      role="group"
      aria-label={label}
    >
      {width > 0 && (
        <ValuesContext value={values}>
          <Content value={Node}>
            <Canvas
              nodes={nodes}
              lines={lines}
              zoom={zoom}
              onFar={setFar}
              open={open}
              canOpen={onOpen !== undefined}
              hasLabels={(edgeValues?.size ?? 0) > 0}
            />
          </Content>
        </ValuesContext>
      )}
    </div>
  );
}

/** The drawing itself, which new numbers do not render again. */
const Canvas = memo(function Canvas({
  nodes,
  lines,
  zoom,
  onFar,
  open,
  canOpen,
  hasLabels,
}: {
  nodes: Node[];
  lines: Line[];
  zoom: number;
  onFar: (isFar: boolean) => void;
  open: { current: ((id: string) => void) | undefined };
  canOpen: boolean;
  hasLabels: boolean;
}) {
  return (
    <ReactFlow
      nodes={nodes}
      nodeTypes={NODE_TYPES}
      onNodeClick={canOpen ? (_, node) => open.current?.(node.id) : undefined}
      onKeyDown={(event) => {
        const id = event.key === "Enter" && (event.target as HTMLElement).dataset.id;
        if (id) open.current?.(id);
      }}
      fitView
      fitViewOptions={{ ...FIT, minZoom: zoom }}
      minZoom={0.08}
      maxZoom={1.5}
      nodesDraggable={false}
      nodesConnectable={false}
      elementsSelectable={canOpen}
      onlyRenderVisibleElements={nodes.length > LARGE}
      zoomOnScroll={false}
      preventScrolling={false}
      deleteKeyCode={null}
    >
      <Lines lines={lines} hasLabels={hasLabels} />
      <Fit nodes={nodes} zoom={zoom} onFar={onFar} />
      <Controls showInteractive={false} orientation="horizontal" fitViewOptions={FIT} />
    </ReactFlow>
  );
});

/** Fits the graph into the frame, and again when the size of either changes. Says when it is seen from afar. */
function Fit({ nodes, zoom, onFar }: { nodes: Node[]; zoom: number; onFar: (isFar: boolean) => void }) {
  const { fitView } = useReactFlow();
  const size = useStore(({ width, height }) => (width > 0 && height > 0 ? `${width} ${height}` : ""));
  useEffect(() => {
    if (size) void fitView({ ...FIT, minZoom: zoom });
  }, [fitView, size, nodes, zoom]);
  const isFar = useStore(({ transform }) => transform[2] < FAR);
  useEffect(() => onFar(isFar), [onFar, isFar]);
  return null;
}
