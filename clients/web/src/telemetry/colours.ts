/** The theme's colours as a canvas understands them. */

/** Resolves `var(--name)`, `light-dark()` and the like to a plain colour, by asking the browser. */
export function resolveColours(names: readonly string[], around: Element): string[] {
  const probe = document.createElement("span");
  probe.hidden = true;
  around.append(probe);
  const colours = names.map((name) => {
    probe.style.color = name;
    return getComputedStyle(probe).color;
  });
  probe.remove();
  return colours;
}
