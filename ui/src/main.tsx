import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { begin } from "./api/session";
import { App } from "./app";

void begin();
createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
