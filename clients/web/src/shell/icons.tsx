/** Line icons; each stands beside a name, or in a button that has one. */
const PATHS = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM5 15V5h10",
  check: "M5 12l5 5 9-10",
  again: "M4 12a8 8 0 1 0 2.5-5.8M4 4v5h5",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  menu: "M4 7h16M4 12h16M4 17h16",
  settings: "M4 8h9M17 8h3M4 16h3M11 16h9M13 6v4M9 14v4",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M19 5l-2 2M7 17l-2 2",
  moon: "M20 14a8 8 0 0 1-10-10 8 8 0 1 0 10 10z",
  half: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  down: "M12 5v14M6 13l6 6 6-6",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  close: "M6 6l12 12M18 6L6 18",
  keyboard: "M3 7h18v10H3zM7 11h.01M11 11h.01M15 11h.01M8 14h8",
  pause: "M9 6v12M15 6v12",
  play: "M8 5l11 7-11 7z",
  tokens: "M4 5.5h6v5H4zM14 5.5h6v5h-6zM4 13.5h9v5H4zM17 13.5h3v5h-3z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}

/** A button that shows an icon alone; the label is its name and its hint. */
export function IconButton(props: {
  icon: IconName;
  label: string;
  onClick: () => void;
  pressed?: boolean;
  expanded?: boolean;
  disabled?: boolean;
  class?: string;
}) {
  return (
    <button
      type="button"
      class={`icon-button ${props.class ?? ""}`}
      aria-label={props.label}
      title={props.label}
      aria-pressed={props.pressed}
      aria-expanded={props.expanded}
      disabled={props.disabled}
      onClick={props.onClick}
    >
      <Icon name={props.icon} />
    </button>
  );
}
