// How many bytes the first page takes, compressed as the server sends them.
import { readFileSync } from "node:fs";
import { get } from "node:http";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const dist = fileURLToPath(new URL("../../dist", import.meta.url));

function transferred(url) {
  return new Promise((resolve, reject) => {
    get(url, { headers: { "accept-encoding": "gzip" } }, (response) => {
      let size = 0;
      response.on("data", (data) => (size += data.length));
      response.on("end", () => resolve(size));
    }).on("error", reject);
  });
}

const onDisk = (path) => gzipSync(readFileSync(`${dist}${path === "/" ? "/index.html" : path}`)).length;

export async function firstLoad(page, url) {
  const paths = new Set(["/"]);
  const note = (request) => {
    const { pathname } = new URL(request.url());
    if (pathname.startsWith("/assets/")) paths.add(pathname);
  };
  page.on("request", note);
  await page.reload({ waitUntil: "networkidle" });
  page.off("request", note);
  const files = [];
  for (const path of [...paths].sort()) {
    files.push({ path, bytes: process.env.DIST ? onDisk(path) : await transferred(`${url}${path}`) });
  }
  return { files, total: files.reduce((sum, { bytes }) => sum + bytes, 0) };
}
