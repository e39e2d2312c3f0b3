import { useId, useLayoutEffect, useRef, type ReactNode } from "react";

/** A window over the page. The browser keeps the focus in it, gives it back, and closes it with Esc. */
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  // Before the element is removed, since only closing gives the focus back.
  useLayoutEffect(() => {
    const element = dialog.current;
    element?.showModal();
    return () => element?.close();
  }, []);
  return (
    <dialog
      ref={dialog}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => {
        if (event.target === dialog.current) onClose();
      }}
    >
      <div className="dialog-body">
        <h2 id={id}>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

/** Asks before something is done that cannot be taken back. */
export function Confirm({
  title,
  children,
  yes,
  onYes,
  onClose,
}: {
  title: string;
  children: ReactNode;
  yes: string;
  onYes: () => void;
  onClose: () => void;
}) {
  return (
    <Dialog title={title} onClose={onClose}>
      {children}
      <div className="dialog-buttons">
        <button type="button" onClick={onClose}>
          Back
        </button>
        <button type="button" className="danger" onClick={onYes}>
          {yes}
        </button>
      </div>
    </Dialog>
  );
}
