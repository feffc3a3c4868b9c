/** The system prompt and the sampling parameters of a conversation. Empty: the server's default. */
import { useState } from "preact/hooks";
import { Dialog } from "../shell/dialog";
import { useServices } from "../shell/services";
import { SERVER_DEFAULTS, type Sampling } from "./records";

interface NumberField {
  readonly name: {
    [K in keyof Sampling]: Sampling[K] extends number | null ? K : never;
  }[keyof Sampling];
  readonly label: string;
  readonly min: number;
  readonly max?: number;
  readonly step: number | "any";
  readonly hint: string;
}

const FIELDS: readonly NumberField[] = [
  { name: "temperature", label: "Temperature", min: 0, max: 5, step: "any", hint: "0 is greedy" },
  { name: "top_p", label: "Top-p", min: 0.0001, max: 1, step: "any", hint: "above 0, up to 1" },
  { name: "top_k", label: "Top-k", min: 0, step: 1, hint: "0 keeps all" },
  { name: "min_p", label: "Min-p", min: 0, max: 1, step: "any", hint: "0 to 1" },
  {
    name: "repetition_penalty",
    label: "Repetition penalty",
    min: 0.01,
    step: "any",
    hint: "1 is none",
  },
  {
    name: "presence_penalty",
    label: "Presence penalty",
    min: -2,
    max: 2,
    step: "any",
    hint: "−2 to 2",
  },
  {
    name: "frequency_penalty",
    label: "Frequency penalty",
    min: -2,
    max: 2,
    step: "any",
    hint: "−2 to 2",
  },
  { name: "max_output_tokens", label: "Longest answer", min: 1, step: 1, hint: "tokens" },
  { name: "seed", label: "Seed", min: 0, step: 1, hint: "same seed, same text" },
  {
    name: "num_speculative_tokens",
    label: "Drafted tokens",
    min: 0,
    max: 16,
    step: 1,
    hint: "0 to 16",
  },
];

export function SettingsDialog({ onClose }: { onClose: () => void }) {
  const { store } = useServices();
  const current = store.active;
  const [instructions, setInstructions] = useState(current?.instructions ?? "");
  const [sampling, setSampling] = useState<Sampling>(current?.sampling ?? SERVER_DEFAULTS);
  const [stopLines, setStopLines] = useState(sampling.stop.join("\n"));

  function change(changes: Partial<Sampling>): void {
    setSampling({ ...sampling, ...changes });
  }

  function save(event: SubmitEvent): void {
    event.preventDefault();
    const conversation = store.active ?? store.create();
    const stop = stopLines.split("\n").filter((line) => line !== "");
    store.configure(conversation.id, { instructions, sampling: { ...sampling, stop } });
    onClose();
  }

  return (
    <Dialog title="System prompt and sampling" class="wide" onClose={onClose}>
      <form class="form" onSubmit={save}>
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
          {FIELDS.map((field) => (
            <label class="field" key={field.name}>
              <span>{field.label}</span>
              <input
                type="number"
                min={field.min}
                max={field.max}
                step={field.step}
                placeholder={field.hint}
                value={sampling[field.name] ?? ""}
                onInput={(event) => {
                  const value = event.currentTarget.valueAsNumber;
                  change({ [field.name]: Number.isNaN(value) ? null : value });
                }}
              />
            </label>
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
          An empty field leaves the choice to the server. New conversations begin with the settings
          of the one before.
        </p>
        <div class="form-actions">
          <button
            type="button"
            onClick={() => {
              setInstructions("");
              setSampling(SERVER_DEFAULTS);
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
