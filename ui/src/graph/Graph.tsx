/**
 * Draws a graph whose nodes another component fills. It knows nothing of jobs: `Node` decides what a node
 * shows, and `flow` what can be done with the graph (drag, connect).
 */
import { createContext, memo, useContext, useEffect, useMemo, useRef, useState, type ComponentType } from "react";
import {
  BaseEdge,
  Controls,
  getBezierPath,
  Handle,
  Position,
  ReactFlow,
  useReactFlow,
  useStore,
  type Edge,
  type EdgeProps,
  type Node,
  type NodeProps,
  type ReactFlowProps,
} from "@xyflow/react";
import { place, shapeKey, type Direction, type Placed, type Size } from "./layout";
import type { Shape } from "./model";
import { useValue, Values, ValuesContext } from "./values";

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
  /** Shows a node; it gets its value with `useValue(id)`. */
  Node: ComponentType<{ id: string }>;
  /** The name of a node for screen readers. */
  nodeLabel: (id: string) => string;
  /** The name of the graph. */
  label: string;
  onOpen?: (id: string) => void;
  flow?: Partial<ReactFlowProps>;
}

const Content = createContext<{ Node: ComponentType<{ id: string }>; direction: Direction }>({
  Node: () => null,
  direction: "LR",
});

const Box = memo(function Box({ id }: NodeProps) {
  const { Node, direction } = useContext(Content);
  const [from, into] = direction === "LR" ? [Position.Right, Position.Left] : [Position.Bottom, Position.Top];
  return (
    <>
      <Handle type="target" position={into} isConnectable={false} />
      <Node id={id} />
      <Handle type="source" position={from} isConnectable={false} />
    </>
  );
});

const Line = memo(function Line(props: EdgeProps) {
  const value = useValue<EdgeValue>(props.id);
  const [path, x, y] = getBezierPath(props);
  return (
    <>
      <BaseEdge path={path} className={value?.isFlowing ? "is-flowing" : undefined} />
      {value?.label && (
        <text className="edge-label" x={x} y={y} dy="-0.5em" textAnchor="middle">
          {value.label}
        </text>
      )}
    </>
  );
});

const NODE_TYPES = { box: Box };
const EDGE_TYPES = { line: Line };
const SMALL = 640;
const TALLEST = 560;
/** Smaller nodes could not be read: of a large graph, a part is shown at first. */
const LEAST_ZOOM = 0.5;
/** More nodes than this are only drawn where they are in view. */
const LARGE = 60;
/** Numbers that are too small to be read change less often. */
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
  flow,
}: GraphProps) {
  const frame = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [values] = useState(() => new Values());
  // Before the first paint of the nodes, so that they do not appear empty.
  if (width === 0) values.replace(new Map<string, unknown>([...nodeValues, ...(edgeValues ?? [])]));
  const [isFar, setFar] = useState(false);
  const replaced = useRef(0);
  useEffect(() => {
    const now = performance.now();
    if (isFar && now - replaced.current < FAR_PAUSE) return;
    replaced.current = now;
    values.replace(new Map<string, unknown>([...nodeValues, ...(edgeValues ?? [])]));
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
  const edges = useMemo<Edge[]>(
    () => shape.edges.map((edge) => ({ ...edge, type: "line", focusable: false })),
    [placed],
  );
  const zoom = firstZoom(placed, width);
  const height = Math.round(Math.min(TALLEST, placed.height * zoom + ABOVE_AND_BELOW));
  const content = useMemo(() => ({ Node, direction }), [Node, direction]);
  const open = useRef(onOpen);
  open.current = onOpen;
  return (
    <div className="graph" ref={frame} style={{ height: `${height}px` }} role="group" aria-label={label}>
      {width > 0 && (
        <ValuesContext value={values}>
          <Content value={content}>
            <Canvas
              nodes={nodes}
              edges={edges}
              zoom={zoom}
              onFar={setFar}
              open={open}
              canOpen={onOpen !== undefined}
              flow={flow}
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
  edges,
  zoom,
  onFar,
  open,
  canOpen,
  flow,
}: {
  nodes: Node[];
  edges: Edge[];
  zoom: number;
  onFar: (isFar: boolean) => void;
  open: { current: ((id: string) => void) | undefined };
  canOpen: boolean;
  flow: Partial<ReactFlowProps> | undefined;
}) {
  return (
    <ReactFlow
      nodes={nodes}
      edges={edges}
      nodeTypes={NODE_TYPES}
      edgeTypes={EDGE_TYPES}
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
      edgesFocusable={false}
      elementsSelectable={canOpen}
      onlyRenderVisibleElements={nodes.length > LARGE}
      zoomOnScroll={false}
      preventScrolling={false}
      deleteKeyCode={null}
      {...flow}
    >
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
