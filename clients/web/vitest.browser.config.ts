/** Tests that drive Chromium; slow, and run by `npm run test:browser`. */
import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/browser/**/*.spec.ts"],
    environment: "node",
    fileParallelism: false,
    testTimeout: 300_000,
    hookTimeout: 900_000,
  },
});
