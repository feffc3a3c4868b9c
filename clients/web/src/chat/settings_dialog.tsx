/** The system prompt and the sampling parameters of a conversation. Empty: the server's default. */
import { useId, useRef, useState } from "preact/hooks";
import { Dialog } from "../shell/dialog";
import { useServices } from "../shell/services";
import { whole } from "./measures";
import { LONGEST_ANSWER, SERVER_DEFAULTS, type Sampling } from "./records";
import {
  type NumberField,
  type NumberName,
  NUMBER_FIELDS,
  parseNumber,
  writeNumber,
} from "./sampling_fields";

type Texts = Record<NumberName, string>;

function textsOf(sampling: Sampling): Texts {
  return Object.fromEntries(
    NUMBER_FIELDS.map(({ name }) => [name, writeNumber(sampling[name])]),
  ) as Texts;
}

export function SettingsDialog({ onClose }: { onClose: () => void }) {
  const { store } = useServices();
  const current = store.active;
  const [instructions, setInstructions] = useState(current?.instructions ?? "");
  const [sampling, setSampling] = useState<Sampling>(current?.sampling ?? SERVER_DEFAULTS);
  const [texts, setTexts] = useState(() => textsOf(sampling));
  const [stopLines, setStopLines] = useState(sampling.stop.join("\n"));
  /** After a try to save, what is wrong is told at each field. */
  const [isChecked, setChecked] = useState(false);
  const form = useRef<HTMLFormElement>(null);

  function change(changes: Partial<Sampling>): void {
    setSampling({ ...sampling, ...changes });
  }

  function save(event: SubmitEvent): void {
    event.preventDefault();
    const parsed = NUMBER_FIELDS.map((field) => ({
      field,
      ...parseNumber(field, texts[field.name]),
    }));
    const wrong = parsed.find(({ problem }) => problem !== null);
    if (wrong !== undefined) {
      setChecked(true);
      form.current?.querySelector<HTMLElement>(`[name="${wrong.field.name}"]`)?.focus();
      return;
    }
    const numbers = Object.fromEntries(parsed.map(({ field, value }) => [field.name, value]));
    const conversation = store.active ?? store.create();
    const stop = stopLines.split("\n").filter((line) => line !== "");
    store.configure(conversation.id, {
      instructions,
      sampling: { ...sampling, ...numbers, stop },
    });
    onClose();
  }

  return (
    <Dialog title="System prompt and sampling" class="wide" onClose={onClose}>
      <form class="form" ref={form} noValidate onSubmit={save}>
        <label class="field">
          <span>System prompt</span>
          <textarea
            rows={3}
            value={instructions}
            placeholder="None"
            onInput={(event) => setInstructions(event.currentTarget.value)}
          />
        </label>
        <fieldset class="field-grid">
          <legend>Sampling</legend>
          {NUMBER_FIELDS.map((field) => (
            <NumberInput
              key={field.name}
              field={field}
              text={texts[field.name]}
              isChecked={isChecked}
              onInput={(text) => setTexts({ ...texts, [field.name]: text })}
            />
          ))}
          <label class="field">
            <span>Speculation</span>
            <select
              value={sampling.speculation ?? ""}
              onChange={(event) =>
                change({ speculation: (event.currentTarget.value || null) as Sampling["speculation"] })
              }
            >
              <option value="">the server decides</option>
              <option value="on">always on</option>
              <option value="off">off</option>
            </select>
          </label>
          <label class="field">
            <span>Drafter</span>
            <select
              value={sampling.drafter ?? ""}
              onChange={(event) =>
                change({ drafter: (event.currentTarget.value || null) as Sampling["drafter"] })
              }
            >
              <option value="">the server decides</option>
              <option value="model">draft model</option>
              <option value="ngram">n-gram lookup</option>
              <option value="none">none</option>
            </select>
          </label>
        </fieldset>
        <label class="field">
          <span>Stop at these texts, one a line</span>
          <textarea
            rows={2}
            value={stopLines}
            onInput={(event) => setStopLines(event.currentTarget.value)}
          />
        </label>
        <p class="hint">
          An empty field leaves the choice to the server, except for the longest answer, which is
          then {whole(LONGEST_ANSWER)} tokens. New conversations begin with the settings of the one
          before.
        </p>
        <div class="form-actions">
          <button
            type="button"
            onClick={() => {
              setInstructions("");
              setSampling(SERVER_DEFAULTS);
              setTexts(textsOf(SERVER_DEFAULTS));
              setStopLines("");
            }}
          >
            Clear all
          </button>
          <button type="submit" class="primary">
            Save
          </button>
        </div>
      </form>
    </Dialog>
  );
}

/** On a phone: the digits' keyboards have no minus. */
function keyboardFor(field: NumberField): "numeric" | "decimal" | "text" {
  if (field.isWhole) return "numeric";
  return (field.min ?? 0) < 0 ? "text" : "decimal";
}

/** A field that keeps what was typed. isChecked: say what would be right where that is not. */
function NumberInput(props: {
  field: NumberField;
  text: string;
  isChecked: boolean;
  onInput: (text: string) => void;
}) {
  const { field, text } = props;
  const id = useId();
  const problem = props.isChecked ? parseNumber(field, text).problem : null;
  return (
    <div class="field">
      <label for={id}>{field.label}</label>
      <input
        id={id}
        name={field.name}
        type="text"
        inputMode={keyboardFor(field)}
        autocomplete="off"
        placeholder={field.hint}
        value={text}
        aria-invalid={problem !== null}
        aria-describedby={problem === null ? undefined : `${id}-problem`}
        onInput={(event) => props.onInput(event.currentTarget.value)}
      />
      {problem !== null && (
        <p class="problem" id={`${id}-problem`}>
          {problem}
        </p>
      )}
    </div>
  );
}
