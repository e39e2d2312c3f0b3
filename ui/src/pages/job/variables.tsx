import { useEffect, useState } from "react";
import { endpoint } from "../../api/client";
import { useData } from "../../api/data";
import { useMay } from "../../api/session";
import type { Explain, FileText } from "../../api/types";
import { variablesOf } from "./names";

/** Fields for the variables of a file that the user may set. What stays empty is not set. */
export function VariableFields({
  file,
  values,
  onChange,
}: {
  file: string;
  values: Record<string, string>;
  onChange: (set: Record<string, string>) => void;
}) {
  const text = useData<FileText>(endpoint("/file", { file })).data;
  const allow = useData<Explain>(endpoint("/explain", { file })).data?.allow ?? [];
  const mayAll = useMay("edit");
  const [set, setSet] = useState(values);
  const [others, setOthers] = useState<string[]>([]);
  const used = variablesOf(text?.text ?? "");
  const names = [...new Set([...used.map(({ name }) => name), ...allow, ...Object.keys(values)])];
  useEffect(() => {
    const may = (name: string) => mayAll || allow.includes(name);
    onChange(Object.fromEntries(Object.entries(set).filter(([name, value]) => name && value !== "" && may(name))));
  }, [set, mayAll, allow.join()]);
  const fallback = (name: string) => used.find((its) => its.name === name)?.fallback;
  if (names.length === 0 && !mayAll) return null;
  return (
    <fieldset>
      <legend>Variables</legend>
      {names.map((name) => {
        const isOpen = mayAll || allow.includes(name);
        return (
          <label key={name}>
            <code>{name}</code>
            <input
              value={isOpen ? (set[name] ?? "") : ""}
              disabled={!isOpen}
              placeholder={!isOpen ? "only with the role edit" : (fallback(name) ?? "from the environment")}
              onChange={({ target }) => setSet({ ...set, [name]: target.value })}
              spellCheck={false}
            />
          </label>
        );
      })}
      {others.map((name) => (
        <label key={name}>
          <code>{name}</code>
          <input
            value={set[name] ?? ""}
            onChange={({ target }) => setSet({ ...set, [name]: target.value })}
            spellCheck={false}
          />
        </label>
      ))}
      {mayAll && (
        <AddVariable
          onAdd={(name) => setOthers(names.includes(name) || others.includes(name) ? others : [...others, name])}
        />
      )}
    </fieldset>
  );
}

function AddVariable({ onAdd }: { onAdd: (name: string) => void }) {
  const [name, setName] = useState("");
  const isGood = /^[A-Za-z_]\w*$/.test(name);
  const add = () => {
    if (!isGood) return;
    onAdd(name);
    setName("");
  };
  return (
    <div className="add-variable">
      <input
        aria-label="Name of another variable"
        placeholder="another variable"
        value={name}
        onChange={({ target }) => setName(target.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter") return;
          event.preventDefault();
          add();
        }}
        spellCheck={false}
      />
      <button type="button" disabled={!isGood} onClick={add}>
        Add
      </button>
    </div>
  );
}
