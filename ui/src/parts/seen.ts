import { useEffect, useRef, useState, type RefObject } from "react";

/**
 * The value, as long as the element with the ref is in view; otherwise the last value that was in view. So what is out
 * of view costs nothing. With `pause`, the value changes at most once in so many milliseconds.
 */
export function useWhileSeen<T>(value: T, pause = 0): [RefObject<HTMLDivElement | null>, T] {
  const element = useRef<HTMLDivElement>(null);
  const [isSeen, setSeen] = useState(true);
  const kept = useRef({ value, at: 0 });
  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => setSeen(entry?.isIntersecting ?? true), {
      rootMargin: "80px",
    });
    if (element.current) observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  const now = performance.now();
  if (isSeen && kept.current.value !== value && now - kept.current.at >= pause) kept.current = { value, at: now };
  return [element, kept.current.value];
}
