/** Tests of logic, without a browser; quick. */
import { defineConfig } from "vitest/config";

export default defineConfig({
  test: { include: ["test/unit/**/*.test.ts"], environment: "node", testTimeout: 60_000 },
});
