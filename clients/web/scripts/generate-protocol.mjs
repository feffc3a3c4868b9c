// Writes the message types from the protocol's AsyncAPI document.
//
//   node scripts/generate-protocol.mjs            writes src/protocol.generated.ts
//   node scripts/generate-protocol.mjs --check    exits with 1 when that file is out of date
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { compile } from "json-schema-to-typescript";

const source = fileURLToPath(new URL("../../../protocol/asyncapi.json", import.meta.url));
const target = fileURLToPath(new URL("../src/protocol.generated.ts", import.meta.url));

/** The types, as TypeScript text. */
export async function generate() {
  const text = readFileSync(source, "utf8");
  const document = JSON.parse(text);
  const { schemas, messages } = document.components;
  const directions = Object.values(document.operations).map((operation) => [
    operation.action === "receive" ? "ClientEvent" : "ServerEvent",
    operation.messages.map((message) => resolve(document, message.$ref)),
  ]);
  const root = {
    title: "Messages",
    type: "object",
    additionalProperties: false,
    properties: {},
    definitions: Object.fromEntries(
      Object.entries(schemas).map(([name, schema]) => [name, toDraft7(schema)]),
    ),
  };
  for (const name of Object.keys(messages)) {
    if (!(name in schemas)) throw new Error(`message ${name} has no schema of its name`);
  }
  const body = await compile(root, "Messages", {
    bannerComment: "",
    additionalProperties: false,
    unreachableDefinitions: true,
    style: { printWidth: 100 },
    ignoreMinAndMaxItems: true,
  });
  const unions = directions.map(
    ([name, types]) => `export type ${name} =\n${types.map((type) => `  | ${type}`).join("\n")};\n`,
  );
  // A digest of the schemas lets a check without Node see that this file is out of date.
  const digest = createHash("sha256").update(text).digest("hex");
  return [
    "// Generated from protocol/asyncapi.json by scripts/generate-protocol.mjs; do not edit.",
    `// sha256 of the document: ${digest}`,
    `export const PROTOCOL_VERSION = ${JSON.stringify(document.info.version)};`,
    "",
    withoutProvenance(body).trim(),
    "",
    ...unions,
  ].join("\n");
}

/** Without the root that only carries the definitions, and without notes about it. */
function withoutProvenance(body) {
  return body
    .replace(/export interface Messages \{\s*\}\n/, "")
    .replace(/^\/\*\*\n \* This interface was referenced by .*\n.*\n \*\/\n/gm, "")
    .replace(/^ \*\s*\n \* This interface was referenced by .*\n \* via the `definition` .*\n/gm, "");
}

function resolve(document, reference) {
  const node = reference.slice(2).split("/").reduce(
    (value, key) => value[key.replaceAll("~1", "/").replaceAll("~0", "~")],
    document,
  );
  return node.$ref ? resolve(document, node.$ref) : node.title;
}

/** References into `definitions`; ranges and defaults say nothing about the type. */
function toDraft7(schema) {
  if (Array.isArray(schema)) return schema.map(toDraft7);
  if (schema === null || typeof schema !== "object") return schema;
  const result = {};
  for (const [key, value] of Object.entries(schema)) {
    if (key === "$ref") result.$ref = value.replace("#/components/schemas/", "#/definitions/");
    else if (key === "title") continue;
    else if (key !== "default") result[key] = toDraft7(value);
  }
  return result;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const text = await generate();
  if (process.argv.includes("--check")) {
    if (readFileSync(target, "utf8") !== text) {
      console.error("src/protocol.generated.ts is out of date: run `npm run protocol`");
      process.exit(1);
    }
  } else writeFileSync(target, text);
}
