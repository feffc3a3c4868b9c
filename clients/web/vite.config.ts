import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const server = process.env.PACELINE_URL ?? "http://127.0.0.1:8765";

export default defineConfig({
  // Relative, so that the app also works below a path of a proxy.
  base: "./",
  build: {
    outDir: fileURLToPath(new URL("../../backend/paceline/server/web", import.meta.url)),
    emptyOutDir: true,
    target: "es2022",
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    modulePreload: { polyfill: false },
  },
  server: {
    proxy: { "/v1": { target: server, ws: true, changeOrigin: true } },
  },
});
